"""The runtime of a device: on a GPU where there is one, else the CPU's, which does at once what a GPU queues."""

import numpy as np
import pytest
import torch

from octavo.platforms import DeviceRuntime, runtime_of
from octavo.platforms.transfer import HostCopies, to_device


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def runtime(request: pytest.FixtureRequest) -> DeviceRuntime:
    if request.param != "cpu" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device: runs on the H200")
    return runtime_of(torch.device(request.param))


def test_copies_go_there_and_back(runtime: DeviceRuntime) -> None:
    values = np.arange(12).reshape(3, 4)
    there = to_device(values[:, ::2], runtime.device)
    assert there.device.type == runtime.device.type
    copies = HostCopies(runtime)
    back = copies.add(there + 1)
    copies.seal()
    copies.wait()
    assert back.numpy().tolist() == (values[:, ::2] + 1).tolist()


def test_events_take_the_time_of_what_is_between(runtime: DeviceRuntime) -> None:
    x = torch.ones(400, 400, device=runtime.device)
    marks = [runtime.new_event(has_timing=True) for _ in range(3)]
    marks[0].synchronize()
    for mark, repeats in zip(marks, (1, 1, 20), strict=True):
        for _ in range(repeats):
            x = torch.tanh(x @ x)
        mark.record()
    marks[2].synchronize()
    first, both = marks[0].elapsed_time(marks[1]), marks[0].elapsed_time(marks[2])
    assert 0 < first < both


def test_side_streams_see_the_work_before_and_are_seen_after(runtime: DeviceRuntime) -> None:
    x = torch.ones(1000, 1000, device=runtime.device)
    for _ in range(10):
        x = x @ x / 1000
    stream = runtime.side_stream()
    with stream.use():
        y = x + 1
    stream.join()
    assert torch.equal(y, torch.full_like(y, 2))
    stream.synchronize()
    runtime.synchronize()


def test_a_replay_reads_its_inputs_anew_and_keeps_its_outputs(runtime: DeviceRuntime) -> None:
    x = torch.zeros(4, device=runtime.device)
    total = torch.zeros(1, device=runtime.device)

    def add_up() -> tuple[torch.Tensor, ...]:
        total.add_(x.sum())
        return x * 2, total[:1]

    with runtime.graph_capture() as graphs:
        add_up()
        graph, (doubled, seen) = graphs.capture(add_up)
    total.zero_()
    address = doubled.data_ptr()
    for value in (1.0, 3.0):
        x.fill_(value)
        graph.replay()
        assert doubled.tolist() == [2 * value] * 4
    assert seen.tolist() == [16.0]
    assert doubled.data_ptr() == address


def test_memory(runtime: DeviceRuntime) -> None:
    zeros = runtime.zeros((3, 5, 1024), torch.bfloat16)
    assert zeros.shape == (3, 5, 1024)
    assert zeros.dtype is torch.bfloat16
    assert zeros.device.type == runtime.device.type
    assert not zeros.any()
    zeros += 1  # may be written
    host = runtime.empty_host(4, 6, dtype=torch.uint8)
    assert host.shape == (4, 6)
    assert host.is_cpu
    assert host.is_pinned() == (not runtime.is_host)
    runtime.return_memory()
    assert runtime.last_cache_bytes() > 0
