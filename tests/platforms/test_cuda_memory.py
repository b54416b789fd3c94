"""What a process knows of its share of a GPU, on a device made up for the test."""

import pytest
import torch

from octavo.platforms import CudaPlatform

MIB = 1 << 20


class Driver:
    """A GPU's figures, as torch tells them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free, self.reserved, self.cached = 1000 * MIB, 0, 0
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (self.free, 1600 * MIB))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: self.reserved)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "empty_cache", self.empty_cache)

    def allocate(self, num_bytes: int) -> None:
        self.reserved += num_bytes
        self.free -= num_bytes

    def empty_cache(self) -> None:
        self.reserved, self.free, self.cached = self.reserved - self.cached, self.free + self.cached, 0


def test_the_context_allocations_and_what_the_driver_took_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    platform = CudaPlatform()
    context = platform.context_bytes
    assert platform.used_by_process() == context
    driver.allocate(300 * MIB)
    assert platform.used_by_process() == context + 300 * MIB
    driver.free -= 50 * MIB  # kernels or graphs
    assert platform.used_by_process() == context + 350 * MIB


def test_memory_that_is_only_kept_for_reuse_is_given_back_first(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    platform = CudaPlatform()
    driver.allocate(300 * MIB)
    driver.cached = 100 * MIB
    assert platform.used_by_process() == platform.context_bytes + 200 * MIB


def test_an_earlier_engine_of_this_process_counts_and_others_that_leave_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    driver.allocate(100 * MIB)
    platform = CudaPlatform()
    assert platform.used_by_process() == platform.context_bytes + 100 * MIB
    driver.free += 500 * MIB
    assert platform.used_by_process() == platform.context_bytes + 100 * MIB
