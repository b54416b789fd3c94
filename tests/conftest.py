"""Triton's kernels run on a GPU where there is one, elsewhere in Triton's interpreter."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from shared_trials import sharing_trials

from octavo.scheduling.admission import Admission
from octavo.scheduling.outlook import Outlook

pytest_plugins = ("amount", "pytester")

# How long examples take says more about what else the machine does than about the code.
hypothesis.settings.register_profile("octavo", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("octavo")


@pytest.fixture
def hasty_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are let in while there is a block for each, as if none would grow: later some have to give way."""
    monkeypatch.setattr(Outlook, "fits", lambda *_: True)
    monkeypatch.setattr(Admission, "_num_reserved", lambda *_: 0)


@pytest.fixture(scope="module")
def importable_in_engines() -> Iterator[None]:
    """Engine processes can import this folder's modules, and run one thread each."""
    tests = Path(__file__).parent
    with pytest.MonkeyPatch.context() as patch:
        # The second for what is imported before the interpreter looks into its folder.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(tests), str(tests.parent)]), prepend=os.pathsep)
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def shared_trials() -> Iterator[None]:
    """Engines of this process let one process try their grammars, not one each."""
    with sharing_trials():
        yield


if not torch.cuda.is_available():
    # Read once, when a kernel is defined.
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_for_numpy(tensor: type, scope: Any) -> None:
        """Let scalars, arrays of one element there, bound loops: NumPy 2.4 refuses Triton 3.6's way of it."""
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_tensor_for_numpy

    splat = interpreter.InterpreterBuilder.create_splat

    def splat_conditions(builder: Any, result_type: Any, scalar: Any) -> Any:
        """Keep conditions conditions: Triton 3.9 makes integers of a scalar one and then takes none for a mask."""
        block = splat(builder, result_type, scalar)
        if scalar.data.dtype == np.bool_:
            block.data = block.data.astype(np.bool_)
        return block

    interpreter.InterpreterBuilder.create_splat = splat_conditions

    convert_float = interpreter._convert_float
    float8_types = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}

    def convert_float_as_devices_do(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        """Round to float8 as devices do: Triton's way loses what carries over into the exponent."""
        if target.name not in float8_types or source.name != "fp32":
            return convert_float(values, source, target, rounding)
        wide = torch.from_numpy(np.array(values)).view(torch.float32)
        return wide.to(float8_types[target.name]).view(torch.uint8).numpy()

    interpreter._convert_float = convert_float_as_devices_do
