"""What attention by clusters is launched with, and when it is chosen, with a driver that only keeps it."""

import math
from collections.abc import Iterator

import pytest
import torch
from fakes import FakeCompiler, FakeDriver

from octavo.kernels import AttentionSpec, HeadNorms
from octavo.kernels.cuda import attention as attention_module
from octavo.kernels.cuda.attention import (
    SOURCE,
    AttentionForm,
    AttentionTile,
    attend,
    attention_kernel,
    choose,
    choose_tile,
)
from octavo.kernels.cuda.library import KernelLibrary
from octavo.kernels.cuda.nvrtc import CompileError

NUM_SMS = 132
HEADS, KV_HEADS, SIZE = 16, 8, 128


@pytest.fixture(autouse=True)
def _forgotten(library: KernelLibrary) -> Iterator[None]:
    attention_module._prepare.cache_clear()
    yield
    attention_module._prepare.cache_clear()


def tensors(dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values; cosines; sines; two norms; a cache."""
    qkv = torch.zeros(3, (HEADS + 2 * KV_HEADS) * SIZE, dtype=dtype)
    cos, sin = torch.zeros(2, 3, 1, SIZE, dtype=dtype)
    return qkv, cos, sin, *torch.ones(2, SIZE, dtype=dtype), torch.zeros(2, 5, KV_HEADS, 32, SIZE, dtype=dtype)


def run(tile: AttentionTile, *, has_norms: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """A launch, whose queries and cache are returned."""
    qkv, cos, sin, q_norm, k_norm, cache = tensors()
    lengths = torch.ones(3, dtype=torch.int32)
    norms = (q_norm, k_norm) if has_norms else (None, None)
    attend(
        qkv, cos, sin, *norms, 1e-6, cache, torch.zeros(4, 7, dtype=torch.int32), torch.zeros(3, dtype=torch.int64),
        lengths, lengths, torch.empty(3, HEADS, SIZE, dtype=torch.bfloat16), num_rows=3, scale=0.5, tile=tile,
    )  # fmt: skip
    return qkv, cache


def test_operands_follow_the_tensors(fake_driver: FakeDriver) -> None:
    tile = AttentionTile(2, 4, 3, 1)
    run(tile)
    qkv, cache = run(tile)
    form = AttentionForm(SIZE, HEADS // KV_HEADS, True, torch.bfloat16)
    operands = attention_module._prepare(form, tile, 3, KV_HEADS, qkv.device).operands
    assert operands.qkv == qkv.data_ptr() and operands.kv_cache == cache.data_ptr()
    strides = operands.part_stride, operands.block_stride, operands.head_stride
    assert strides == (5 * KV_HEADS * 32 * SIZE, KV_HEADS * 32 * SIZE, 32 * SIZE)
    assert (operands.log_block_size, operands.slot_words, operands.table_stride) == (5, 2, 7)
    assert (operands.num_kv_heads, operands.scale) == (KV_HEADS, 0.5)
    assert [stream for _, stream, _ in fake_driver.launched] == [7, 7]


def test_a_kernel_is_compiled_once_for_a_form_and_a_tile(fake_driver: FakeDriver, fake_compiler: FakeCompiler) -> None:
    for _ in range(2):
        run(AttentionTile(2, 4, 3, 1))
    (options,) = fake_compiler.options
    assert {"-DHEAD_DIM=128", "-DGROUP=2", "-DWARPS=4", "-DCLUSTER=2", "-DSTAGES=3", "-DNORMED=1"} <= set(options)
    run(AttentionTile(2, 4, 3, 1), has_norms=False)
    run(AttentionTile(1, 4, 3, 1))
    assert len(fake_driver.loaded) == 3 and len(fake_driver.launched) == 4


def chooses(
    *,
    dtype: torch.dtype = torch.bfloat16,
    cache_type: torch.dtype = torch.bfloat16,
    norm_type: torch.dtype = torch.bfloat16,
    head_dim: int = SIZE,
    rotary_dim: int = SIZE,
    group: int = 2,
    block_size: int = 16,
    num_rows: int = 8,
) -> bool:
    """Whether a step is taken, the usual one but for what is given."""
    qkv = torch.zeros(num_rows, 8, dtype=dtype)
    cos, sin = torch.zeros(2, num_rows, 1, rotary_dim, dtype=dtype)
    norms = HeadNorms(*torch.ones(2, head_dim, dtype=norm_type), 1e-6)
    cache = torch.zeros(2, 3, KV_HEADS, block_size, head_dim, dtype=cache_type)
    spec = AttentionSpec(group * KV_HEADS, KV_HEADS, head_dim, 0.1)
    return choose(qkv, (cos, sin), norms, cache, spec, num_rows, 4096, NUM_SMS) is not None


@pytest.mark.usefixtures("fake_driver")
def test_what_the_kernel_does_not_take_is_left_to_others(library: KernelLibrary) -> None:
    half = torch.float16
    assert chooses() and chooses(block_size=64) and chooses(head_dim=64, rotary_dim=64) and chooses(group=8)
    assert chooses(dtype=half, cache_type=half, norm_type=half)
    assert not chooses(norm_type=torch.float32) and not chooses(cache_type=torch.float8_e4m3fn)
    assert not chooses(dtype=torch.float32, cache_type=torch.float32, norm_type=torch.float32)
    assert not chooses(head_dim=256, rotary_dim=256) and not chooses(rotary_dim=64)
    assert not chooses(group=9) and not chooses(block_size=8) and not chooses(block_size=48)
    assert not chooses(num_rows=400)
    library._give_up(SOURCE, CompileError("a log"))
    assert not chooses()


@pytest.mark.parametrize("max_len", [1024, 40960])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("group", [1, 2, 4, 7, 8])
def test_all_blocks_of_a_launch_run_at_once(group: int, head_dim: int, max_len: int) -> None:
    form = AttentionForm(head_dim, group, True, torch.bfloat16)
    chosen = {num_programs: choose_tile(form, num_programs, max_len, NUM_SMS) for num_programs in range(1, 600)}
    for num_programs, tile in chosen.items():
        if tile is not None:
            num_at_once = math.ceil(tile.cluster_size * num_programs / NUM_SMS)
            assert num_at_once * (attention_kernel(form, tile).shared_bytes + 1024) <= 227 << 10
            assert tile.num_stages >= tile.num_at_once
    assert all(chosen[num_programs] is not None for num_programs in (4, 8, 16, 32, 64))
    assert chosen[1] is None and chosen[512] is None


@pytest.mark.parametrize(
    ("num_programs", "group", "max_len", "tile"),
    [
        (4, 8, 40960, AttentionTile(16, 4, 3, 1)),
        (4, 8, 16384, AttentionTile(8, 4, 4, 2)),
        (8, 2, 40960, AttentionTile(8, 4, 3, 1)),
        (8, 4, 40960, AttentionTile(8, 4, 4, 2)),
        (64, 2, 40960, AttentionTile(2, 4, 3, 1)),
        (64, 4, 40960, AttentionTile(2, 4, 4, 1)),
        (128, 8, 40960, AttentionTile(1, 4, 3, 1)),
        (256, 4, 40960, AttentionTile(1, 4, 3, 1)),
    ],
)
def test_the_more_rows_the_smaller_their_clusters(
    num_programs: int, group: int, max_len: int, tile: AttentionTile
) -> None:
    form = AttentionForm(128, group, True, torch.bfloat16)
    assert choose_tile(form, num_programs, max_len, NUM_SMS) == tile
