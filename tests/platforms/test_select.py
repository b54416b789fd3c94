"""Which platform is chosen, with the devices and builds of torch that a test says there are."""

import ctypes
import logging
import threading
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch

from octavo.compat.platform import current_platform
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.platforms import (
    CpuPlatform,
    CudaPlatform,
    begin_device,
    cuda,
    describe_torch,
    has_cuda,
    select,
    select_platform,
)

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Sets what torch finds."""

    def set_up(*, has_gpu: bool, hip: str | None = None, cuda: str | None = None) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 2 << 30))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        select._warn_of_rocm.cache_clear()

    return set_up


def test_a_gpu_is_taken_where_there_is_one(machine: Machine) -> None:
    machine(has_gpu=True, cuda="13.0")
    assert isinstance(select_platform("auto"), CudaPlatform)
    assert isinstance(select_platform("cuda"), CudaPlatform)
    assert isinstance(select_platform("cpu"), CpuPlatform)
    assert (select_platform("auto").kernel_set, select_platform("cpu").kernel_set) == ("cuda", "cpu")
    assert describe_torch() == "13.0, available: True"


def test_a_rank_has_the_gpu_of_its_number(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(has_gpu=True, cuda="13.0")
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    platform = select_platform("cuda", 1)
    assert chosen == [1]
    for size, backend, words in ((2, None, ""), (3, "ray", ""), (3, None, "is 3, but this machine has 2 GPUs")):
        settings = EngineConfig.from_kwargs(model="m", tensor_parallel_size=size, distributed_executor_backend=backend)
        with pytest.raises(ConfigError, match=words) if words else nullcontext():
            platform.check_and_update_config(settings)


@pytest.mark.parametrize(
    ("device", "build", "is_used", "error", "calls"),
    [
        ("auto", "13.0", False, 0, ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]),
        ("cuda", "13.0", False, 100, ["cuInit"]),
        ("cuda", "13.0", True, 0, []),
        ("cpu", "13.0", False, 0, []),
        ("auto", None, False, 0, []),
    ],
)
def test_the_context_of_a_gpu_is_begun_where_one_may_be_used(
    device: str,
    build: str | None,
    is_used: bool,
    error: int,
    calls: list[str],
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine(has_gpu=True, cuda=build)
    called: list[str] = []

    class Driver:
        def __getattr__(self, name: str) -> Callable[..., int]:
            return lambda *_: (called.append(name), error)[1]

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_used)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    begin_device(device)
    for thread in threading.enumerate():
        if thread.name == "cuda-context":
            thread.join(10)
    assert called == calls


def test_nothing_is_begun_without_a_driver(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    cuda._create_context()


def test_without_a_gpu_the_cpu_is_taken(machine: Machine) -> None:
    machine(has_gpu=False)
    assert isinstance(select_platform("auto"), CpuPlatform)
    with pytest.raises(ConfigError, match="no usable CUDA device"):
        select_platform("cuda")
    assert describe_torch() == "none, available: False"


def test_rocm_is_not_taken_for_cuda(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine(has_gpu=True, hip="7.1")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert isinstance(select_platform("auto"), CpuPlatform)
    assert [record.message for record in caplog.records] == [
        "This torch is built for ROCm, which is not supported yet; running on the CPU."
    ]
    with pytest.raises(ConfigError, match="ROCm, which is not supported yet; use 'cpu'"):
        select_platform("cuda")
    assert not has_cuda()
    assert current_platform.device_type == "cpu"
    assert current_platform.get_device_name() == "cpu"
    assert describe_torch() == "ROCm 7.1, available: True"


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_rocm_build_without_a_gpu_warns_of_nothing(
    device: str, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine(has_gpu=False, hip="7.1")
    with caplog.at_level(logging.WARNING):
        assert isinstance(select_platform(device), CpuPlatform)
    assert not caplog.records
