"""Kernels in CUDA C++ on a GPU: clusters, TMA, dependent launches, graphs."""

from pathlib import Path

import pytest
import torch
from share_tile import COLUMNS, ROWS, ShareTile, expected, share_tile_kernel

from octavo.kernels.cuda.library import KernelLibrary, library
from octavo.kernels.triton.launch import is_hopper
from octavo.platforms import runtime_of

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or not is_hopper(torch.device("cuda")), reason="needs Hopper; run on an NVIDIA H100"
)


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def x(device: torch.device) -> torch.Tensor:
    return torch.randn(2 * ROWS, 3 * COLUMNS, device=device)


@pytest.mark.parametrize("cluster_size", [1, 2, 8, 16])
def test_a_tile_reaches_all_blocks_of_a_cluster(cluster_size: int, x: torch.Tensor) -> None:
    y = ShareTile(share_tile_kernel(cluster_size), x, 2.0).run(x)
    assert torch.equal(y, expected(x, 2.0, cluster_size))


@pytest.mark.parametrize("is_dependent", [True, False])
def test_launches_follow_one_another(x: torch.Tensor, is_dependent: bool) -> None:
    """A kernel that may start early waits for the data of its predecessor."""
    op = ShareTile(share_tile_kernel(1), x, 2.0, is_dependent=is_dependent)
    for _ in range(20):
        y = x
        for _ in range(8):
            y = op.run(y).view_as(x)
            y = y.view(2, 3, ROWS, COLUMNS).transpose(1, 2).reshape(x.shape)
        assert torch.equal(y, x * 256)


@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_graph_replays_launches(is_loaded: bool, x: torch.Tensor, device: torch.device) -> None:
    """On the memory that they had at the capture, whatever was launched since."""
    op = ShareTile(share_tile_kernel(2), x, 3.0)
    library.functions.clear()
    if is_loaded:
        op.run(x)
    with runtime_of(device).graph_capture() as capture:
        graph, (y,) = capture.capture(lambda: (op.run(x),))
    other = torch.randn_like(x)
    assert torch.equal(op.run(other), expected(other, 3.0, 2))
    for _ in range(3):
        x += 1
        graph.replay()
        assert torch.equal(y, expected(x, 3.0, 2))


def test_launches_run_on_the_current_stream(x: torch.Tensor) -> None:
    op = ShareTile(share_tile_kernel(2), x, 2.0)
    op.run(x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        x.add_(1)
        y = op.run(x)
        done = stream.record_event()
    assert not done.query()
    stream.synchronize()
    assert torch.equal(y, expected(x, 2.0, 2))


def test_kernels_that_are_compiled_ahead_do_not_run(
    x: torch.Tensor, device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from octavo.kernels.cuda import launch

    own = KernelLibrary(tmp_path)
    monkeypatch.setattr(launch, "library", own)
    op = ShareTile(share_tile_kernel(4), x, 2.0)
    with own.compile_ahead(runtime_of(device).make_current), own.compile_only():
        y = torch.zeros(6, 4, ROWS, COLUMNS, device=device)
        monkeypatch.setattr(x, "new_empty", lambda shape: y)
        op.run(x)
        torch.cuda.synchronize()
        assert not y.any()
    assert len(own.functions) == 1
    assert len(list(tmp_path.glob("share_tile-*.cubin"))) == 1
    op.run(x)
    assert torch.equal(y, expected(x, 2.0, 4))
