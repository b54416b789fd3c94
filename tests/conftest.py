"""Triton's kernels run on a GPU where there is one, elsewhere in Triton's interpreter."""

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
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
    import triton_interpreter

    triton_interpreter.amend()
