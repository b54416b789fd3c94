"""Kernels are loaded once, compiled together before they run, and given up where they do not compile."""

import ctypes
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import FakeDriver

from octavo.kernels.cuda import library as library_module
from octavo.kernels.cuda.driver import Driver, DriverError, LaunchConfig, TensorMap, launch_config
from octavo.kernels.cuda.kernel import CudaKernel
from octavo.kernels.cuda.launch import Launch
from octavo.kernels.cuda.library import KernelLibrary
from octavo.kernels.cuda.nvrtc import CompileError, CompilerMissingError

DEVICE = torch.device("cuda", 0)


def new_launch(kernel: CudaKernel, *numbers: int) -> Launch:
    return Launch(kernel, DEVICE, (1, 1, 1), 32, [ctypes.c_int32(number) for number in numbers])


def test_a_launch_loads_its_kernel_once(
    library: KernelLibrary, fake_driver: FakeDriver, new_source: Callable[..., Path]
) -> None:
    kernel = CudaKernel(new_source(), "multiply")
    first, second = new_launch(kernel, 1, 2), new_launch(kernel, 3)
    for each in (first, second, first):
        each.run()
    assert fake_driver.launched == [(1, 7, [1, 2]), (1, 7, [3]), (1, 7, [1, 2])]
    assert len(fake_driver.loaded) == 1


def test_a_caller_exchanges_arguments(
    library: KernelLibrary, fake_driver: FakeDriver, new_source: Callable[..., Path]
) -> None:
    launch, other = new_launch(CudaKernel(new_source(), "multiply"), 1, 2), ctypes.c_int32(5)
    launch.arguments[1] = ctypes.addressof(other)
    launch.run()
    assert fake_driver.launched == [(1, 7, [1, 5])]


def test_kernels_are_compiled_together_and_not_run(
    library: KernelLibrary, fake_driver: FakeDriver, new_source: Callable[..., Path]
) -> None:
    source, prepared = new_source(), list[bool]()
    kernels = [CudaKernel(source, "multiply", (("ROWS", rows),)) for rows in (16, 32, 64)]
    new_launch(kernels[0]).run()
    with library.compile_ahead(lambda: prepared.append(True)):
        with library.compile_only() as loading:
            for kernel in (*kernels, *kernels):
                new_launch(kernel).run()
        assert len(loading) == 2
        assert len(fake_driver.launched) == 1
        new_launch(kernels[2]).run()  # waits for its kernel
        assert len(fake_driver.launched) == 2
    assert len(fake_driver.loaded) == 3
    assert prepared
    new_launch(kernels[1]).run()
    assert len(fake_driver.loaded) == 3
    assert len(fake_driver.launched) == 3


def test_a_source_that_does_not_compile_is_given_up(
    library: KernelLibrary, new_source: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    wrong, right = new_source("error", "wrong.cu"), new_source()
    kernels = [CudaKernel(wrong, "multiply", (("ROWS", rows),)) for rows in (16, 32)]
    assert library.has(wrong)
    with caplog.at_level(logging.WARNING), library.compile_ahead(lambda: None):
        with library.compile_only():
            for kernel in (*kernels, CudaKernel(right, "multiply")):
                new_launch(kernel).run()
            assert library.has(wrong)  # nothing waits where kernels are only compiled
        assert not library.has(wrong)
    assert library.has(right)
    (message,) = caplog.messages
    assert "wrong.cu" in message and "error: it has one" in message
    with pytest.raises(CompileError):
        new_launch(kernels[0]).run()


def test_a_missing_compiler_is_reported_once(
    library: KernelLibrary,
    new_source: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find() -> None:
        raise CompilerMissingError("NVRTC is missing")

    monkeypatch.setattr(library_module, "find_compiler", find)
    with caplog.at_level(logging.WARNING):
        assert not library.has(new_source())
        assert not library.has(new_source())
    assert caplog.messages == ["NVRTC is missing; slower kernels are used for some GEMMs and attention."]


def test_without_a_driver_nothing_is_said(
    library: KernelLibrary,
    new_source: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library_module, "find_driver", lambda: None)
    assert not library.has(new_source())
    assert not caplog.messages


def test_structures_have_the_drivers_layout() -> None:
    """Offsets as the C compiler gives them for ``cuda.h``."""
    offsets = {name: getattr(LaunchConfig, name).offset for name, _ in LaunchConfig._fields_}
    assert offsets == {"grid": 0, "block": 12, "shared_bytes": 24, "stream": 32, "attributes": 40, "num_attributes": 48}
    config = launch_config((4, 2, 1), 256, shared_bytes=1024, cluster=(4, 1, 1), is_dependent=True)
    memory = ctypes.string_at(config.attributes, 2 * 72)
    words = memoryview(memory).cast("I")
    assert list(words[:5]) == [4, 0, 4, 1, 1]
    assert list(words[18:21]) == [6, 0, 1]
    assert ctypes.sizeof(TensorMap) == 128
    assert not any(ctypes.addressof(TensorMap.new()) % 64 for _ in range(20))


@pytest.mark.parametrize(("error", "has_others", "is_alone"), [(0, 0, True), (0, 1, False), (1, 0, False)])
def test_whether_other_processes_share_a_device(error: int, has_others: int, is_alone: bool) -> None:
    """A driver that cannot tell is taken to share it."""

    class Library:
        @staticmethod
        def cuLaunchKernelEx(*arguments: Any) -> int:  # noqa: N802
            raise AssertionError("nothing is launched")

        @staticmethod
        def cuDeviceGetAttribute(value: Any, attribute: int, device: int) -> int:  # noqa: N802
            assert (attribute, device) == (133, 1)
            value._obj.value = has_others
            return error

    Library.cuLaunchKernelEx.argtypes = None  # type: ignore[attr-defined]
    assert Driver(Library()).runs_alone(1) is is_alone  # type: ignore[arg-type]


def test_an_error_of_the_driver_is_named() -> None:
    class Library:
        @staticmethod
        def cuLaunchKernelEx(*arguments: Any) -> int:  # noqa: N802
            return 719

        @staticmethod
        def cuGetErrorString(error: int, text: Any) -> int:  # noqa: N802
            text._obj.value = b"unspecified launch failure"
            return 0

    Library.cuLaunchKernelEx.argtypes = None  # type: ignore[attr-defined]
    config = launch_config((1, 1, 1), 32, shared_bytes=0, cluster=(1, 1, 1), is_dependent=False)
    with pytest.raises(DriverError, match="error 719: unspecified launch failure"):
        Driver(Library()).launch(config, 1, (ctypes.c_void_p * 0)())  # type: ignore[arg-type]
