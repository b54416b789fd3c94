"""Which implementation of an operation runs: that of the kernel set that is bound for the device's type."""

import sys
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from octavo.kernels import dispatch
from octavo.kernels.dispatch import bind, device_function, kernel
from octavo.kernels.select import bind_kernels
from octavo.platforms import ImaginedGpu

GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(dispatch, "_operations", dispatch._operations.copy())
    bound = dispatch._bound_sets.copy()
    yield
    dispatch._bound_sets.clear()
    dispatch._bound_sets.update(bound)
    for operation in dispatch._operations:
        operation.rebind()


def on(device: torch.device) -> Any:
    """As much of a tensor as a call looks at."""
    return SimpleNamespace(device=device)


def test_the_set_decides_and_not_the_device_type() -> None:
    @kernel
    def name(x: torch.Tensor) -> str:
        return "reference"

    @device_function
    def name_of(device: torch.device) -> str:
        return "reference"

    for operation in (name, name_of):
        for kernel_set in ("rocm", "cuda"):
            operation.register(kernel_set)(lambda _, kernel_set=kernel_set: kernel_set)
    assert name(on(GPU)) == name_of(GPU) == "reference", "no set is bound"
    bind(GPU, "cuda")
    assert name(on(GPU)) == name_of(GPU) == "cuda"
    bind(torch.device("cuda", 1), "rocm")
    assert name(on(GPU)) == name_of(GPU) == "rocm"
    assert name(on(torch.device("meta"))) == name(on(torch.device("cpu"))) == "reference"


def test_what_a_set_lacks_runs_as_the_reference() -> None:
    @kernel
    def name(x: torch.Tensor) -> str:
        return "reference"

    name.register("rocm")(lambda x: "rocm")
    bind_kernels(ImaginedGpu(1 << 30))
    assert name(on(GPU)) == "reference"
    name.register("cuda")(lambda x: "cuda")
    assert name(on(GPU)) == "cuda", "registered after its set was bound"


def test_a_lazy_implementation_is_imported_by_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    @kernel
    def name(x: torch.Tensor) -> str:
        return "reference"

    name.register_lazily("cuda", "module_that_comes_late", "name")
    bind(GPU, "cuda")
    late = SimpleNamespace(name=lambda x: "late")
    monkeypatch.setitem(sys.modules, "module_that_comes_late", late)
    assert name(on(GPU)) == "late"
    assert name.bound["cuda"] is late.name, "later calls are direct"


def test_every_lazy_implementation_of_a_gpu_exists() -> None:
    pytest.importorskip("triton", reason="Triton is not installed; run on an AMD EPYC that has it")
    from octavo.kernels.triton.register import MODULES

    for module, operations in MODULES.items():
        for operation in operations:
            assert callable(getattr(import_module(f"octavo.kernels.triton.{module}"), operation.__name__))


def test_a_platform_binds_its_set() -> None:
    from octavo.kernels import attention_backend, basic, linear

    bind_kernels(ImaginedGpu(1 << 30))
    for operation in (basic.rms_norm, basic.qk_rope_store, linear, attention_backend):
        assert operation.bound["cuda"] is operation.implementations["cuda"]
    assert basic.rms_norm.bound["cpu"] is basic.rms_norm.implementations["cpu"], "that of the CPU stays bound"
