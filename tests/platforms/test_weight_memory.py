"""Memory for weights: where tensors lie, and that it goes back."""

import gc
import sys
from pathlib import Path

import pytest
import torch

from octavo.platforms.host_threads import HostThreads
from octavo.platforms.weight_memory import WeightMemory, huge_zeros

MEGABYTE = 1 << 20


def test_large_tensors_lie_side_by_side() -> None:
    with WeightMemory():
        first = torch.empty(300, 1000, dtype=torch.bfloat16)
        second = torch.empty((1000, 301))
        small = torch.empty(10)
        elsewhere = torch.empty(1000, 1000, device="meta")
    assert 0 < second.data_ptr() - first.data_ptr() < MEGABYTE
    assert (first.shape, first.dtype, first.data_ptr() % 4096) == ((300, 1000), torch.bfloat16, 0)
    assert (second.shape, second.dtype, second.is_contiguous()) == ((1000, 301), torch.float32, True)
    assert (small.shape, elsewhere.device.type) == ((10,), "meta")
    first.fill_(1)
    second.fill_(2)
    assert first.float().sum() == 300_000 and second.sum() == 602_000
    assert torch.empty(1000, 1000).untyped_storage().resizable(), "outside, malloc's"


def test_a_tensor_may_be_larger_than_a_mapping() -> None:
    with WeightMemory():
        before = torch.empty(100_000)
        large = torch.empty(100 * MEGABYTE, dtype=torch.uint8)
        behind = torch.empty(100_000)
    for tensor in (before, large[:10], large[-10:], behind):
        tensor.fill_(3)
    assert large[0] == large[-1] == before[-1] == behind[-1] == 3


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc; run on Linux, an AMD EPYC")
def test_what_a_tensor_occupied_goes_back_with_it() -> None:
    with WeightMemory():
        freed = torch.empty(40 * MEGABYTE, dtype=torch.uint8)
        kept = torch.empty(1 * MEGABYTE, dtype=torch.uint8)
    kept.fill_(7)
    freed.fill_(1)
    before = resident_bytes()
    del freed
    gc.collect()
    assert before - resident_bytes() > 35 * MEGABYTE
    assert kept.min() == 7


def test_zeros() -> None:
    zeros = huge_zeros((3, 5, 1000), torch.bfloat16)
    assert zeros.shape == (3, 5, 1000) and not zeros.any()


def test_host_threads_are_the_callers_outside() -> None:
    before = torch.get_num_threads()
    threads = HostThreads(before + 2)
    with threads:
        with threads:
            assert torch.get_num_threads() == before + 2
        assert torch.get_num_threads() == before + 2
    assert torch.get_num_threads() == before


def resident_bytes() -> int:
    """Anonymous memory of this process."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024
