"""Warp-specialised prefill attention for Hopper (FlashAttention-3, arXiv:2407.08608).

Two consumer warpgroups (:mod:`prefill_hopper_consume`) compute a tile of 128 queries, 64 each. One producer warp
(:mod:`prefill_hopper_produce`) finds tiles and loads keys and values by TMA: contiguous blocks for a row that starts in
this step or whose keys :mod:`prefill_expand` left in a row, page by page for others with a cached prefix. Each
consumer overlaps its next matmul with the softmax of the current block, and the two consumers alternate in issuing
matmuls, so that one multiplies while the other computes exponentials. Programs are persistent: the next tile's keys are
loaded while the last tile's results are stored.
"""

import functools
from dataclasses import dataclass

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from octavo.kernels.triton.launch import dependent_launch, is_hopper, num_multiprocessors
from octavo.kernels.triton.prefill_hopper_consume import consume
from octavo.kernels.triton.prefill_hopper_produce import produce
from octavo.kernels.triton.prefill_tiles import choose_queued_heads

LOG2_E = 1.4426950408889634
HALF_TILE = 64
"""Queries per consumer warpgroup."""
PAGE_COLUMNS = 64
"""Values of a head per TMA copy of a page: one swizzled row of shared memory."""
_ELEMENTS = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


@dataclass(frozen=True, slots=True)
class HopperConfig:
    """Keys per block, blocks in flight, tiles of queries in flight, whether consumers alternate in issuing matmuls."""

    block_n: int
    num_stages: int
    num_tiles: int
    takes_turns: bool


def hopper_config(head_dim: int) -> HopperConfig:
    """Key/value blocks as large as registers allow, and two stages of them, as much as shared memory holds.

    Heads of 64 leave room for a third. Exponentials take most of their time, so turns at matmuls only delay them.
    Heads of up to 128 leave room for the next tile's queries, which are loaded while a tile is computed.
    """
    if head_dim <= 64:
        return HopperConfig(128, 3, 2, False)
    return HopperConfig(128, 2, 2, True) if head_dim <= 128 else HopperConfig(64, 2, 1, True)


def can_hopper_prefill(q: torch.Tensor, k: torch.Tensor, kv_cache: torch.Tensor | None) -> bool:
    """Whether the kernel supports these queries, keys and, if given, this cache."""
    head_dim = q.shape[2]
    if q.dtype not in _ELEMENTS or head_dim not in {64, 128, 256} or not is_hopper(q.device):
        return False
    if not all(x.data_ptr() % 16 == 0 and x.stride(0) % 8 == 0 for x in (q, k)):
        return False
    if kv_cache is None:
        return True
    are_rows = kv_cache.stride(3) == head_dim and all(stride % head_dim == 0 for stride in kv_cache.stride()[1:3])
    return are_rows and kv_cache.data_ptr() % 16 == 0 and kv_cache.shape[3] in {8, 16, 32, 64}


def can_hopper_store(q: torch.Tensor) -> bool:
    """Whether a block of keys is a tile's own, so that each tile can store its keys and values in the cache."""
    return hopper_config(q.shape[2]).block_n == 2 * HALF_TILE


def hopper_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_cache: torch.Tensor | None,
    block_tables: torch.Tensor,
    slots: torch.Tensor,
    query_starts: torch.Tensor,
    seq_lens: torch.Tensor,
    counts: torch.Tensor,
    out: torch.Tensor,
    *,
    num_tokens: int,
    num_rows: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    config: HopperConfig,
    slot_mapping: torch.Tensor | None = None,
    key_starts: torch.Tensor | None = None,
) -> None:
    """Launch the kernel; see ``prefill_attention`` for arguments. Launches must not overlap: they share a work queue.

    Args:
        k, v: with ``key_starts``, those of all tokens that the step's queries see.
        kv_cache: None if every chunk starts at position 0, unless with ``slot_mapping``: then it is only written. None
            with ``key_starts``.
        key_starts: ``[R]`` int32, where position 0 of each row would lie in ``k`` and ``v``.
    """
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = k.shape[1]
    group = num_heads // num_kv_heads
    is_paged = kv_cache is not None and slot_mapping is None
    has_context = is_paged or key_starts is not None
    box = (config.block_n, head_dim)
    key_shape, key_stride = (k.shape[0], num_kv_heads * head_dim), k.stride(0)
    # For TMA, the cache is a matrix whose rows are one token of one head; the rows of a page are contiguous.
    pages: list[TensorDescriptor | None] = [None, None]
    block_rows, head_rows = 0, 0
    if kv_cache is not None:
        page = (kv_cache.shape[3], PAGE_COLUMNS)
        num_values = head_dim + sum((kv_cache.shape[i] - 1) * kv_cache.stride(i) for i in (1, 2, 3))
        shape = (num_values // head_dim, head_dim)
        pages = [_descriptor(half, shape, head_dim, page) for half in (kv_cache[0], kv_cache[1])]
        block_rows, head_rows = kv_cache.stride(1) // head_dim, kv_cache.stride(2) // head_dim
    num_tiles, num_programs = num_tokens // (2 * HALF_TILE) + num_rows, num_multiprocessors(q.device)
    _hopper_kernel[(min(num_tiles * num_heads, num_programs),)](
        _descriptor(q, (q.shape[0], num_heads * head_dim), q.stride(0), (HALF_TILE, head_dim)),
        _descriptor(k, key_shape, key_stride, box), _descriptor(v, key_shape, key_stride, box), *pages,
        out, query_starts, seq_lens, counts, slots, block_tables, slot_mapping, key_starts, sinks, _queue(q.device),
        out.stride(0), block_tables.stride(0), block_rows, head_rows,
        scale * LOG2_E if softcap is None else scale / softcap,
        0.0 if softcap is None else softcap * LOG2_E,
        window or 0, choose_queued_heads(num_tiles, num_rows, num_kv_heads, group, num_programs, not has_context),
        num_kv_heads, GROUP=group, BLOCK_N=config.block_n, D=head_dim, STAGES=config.num_stages,
        TILES=config.num_tiles, PAGED=is_paged, CAP=softcap is not None, WINDOW=window is not None,
        SINKS=sinks is not None, TAKE_TURNS=config.takes_turns, num_warps=4,
        **dependent_launch(q.device),
    )  # fmt: skip


@gluon.jit(do_not_specialize=["heads_at_once", "num_kv_heads"], do_not_specialize_on_alignment=["sinks_ptr"])
def _hopper_kernel(
    q_desc,  # [T, H · D], boxes of 64 tokens of a head
    k_desc,  # [T, Hkv · D], boxes of BLOCK_N tokens of a head, those before the chunks included if they are contiguous
    v_desc,
    k_pages,  # the cache's keys as rows of a head, in boxes of a page; None if it is neither read nor written
    v_pages,
    out_ptr,  # [T, H, D]
    starts_ptr,  # [R + 1]
    lens_ptr,  # [R]
    counts_ptr,
    slots_ptr,  # [R]
    tables_ptr,  # [S, M]
    mapping_ptr,  # [T] where tokens of chunks go in the cache; None if they are there
    key_starts_ptr,  # [R] where the keys of each row's position 0 would lie; None if rows lie as the step's tokens do
    sinks_ptr,  # [H]
    queue_ptr,  # [2] zeros: items handed out, programs that have finished
    out_stride,
    table_stride,
    block_rows,  # rows of the cache per block
    head_rows,  # rows of the cache per head of a block
    scale,  # of scores to base-2 logits, or to the cap's argument if there is a cap
    softcap,  # in base-2 logits
    window,
    heads_at_once,  # see prefill_tiles
    num_kv_heads,
    GROUP: gl.constexpr,
    BLOCK_N: gl.constexpr,
    D: gl.constexpr,
    STAGES: gl.constexpr,
    TILES: gl.constexpr,
    PAGED: gl.constexpr,
    CAP: gl.constexpr,
    WINDOW: gl.constexpr,
    SINKS: gl.constexpr,
    TAKE_TURNS: gl.constexpr,
    PDL: gl.constexpr,
):
    """All tiles of all rows and heads, distributed over persistent programs by a work queue; grid (programs)."""
    dtype: gl.constexpr = q_desc.dtype
    kv_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, D], dtype)
    q_smem = gl.allocate_shared_memory(dtype, [2 * TILES, q_desc.block_shape[0], D], q_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, D], kv_layout)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, D], kv_layout)
    q_full = gl.allocate_shared_memory(gl.int64, [2 * TILES, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [2 * TILES, 1], mbarrier.MBarrierLayout())
    notes = gl.allocate_shared_memory(gl.int32, [2 * 5, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    notes_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    notes_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(notes_full.index(i), count=1)
        mbarrier.init(notes_empty.index(i), count=2)
        mbarrier.init(turns.index(i), count=1)
    for i in gl.static_range(2 * TILES):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=2)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(v_empty.index(i), count=2)
    fence_async_shared()
    rings = ((q_smem, q_full, q_empty), (k_smem, k_full, k_empty), (v_smem, v_full, v_empty))
    board = (notes, notes_full, notes_empty)
    stores: gl.constexpr = mapping_ptr is not None
    has_context: gl.constexpr = PAGED or key_starts_ptr is not None
    batch = (starts_ptr, lens_ptr, counts_ptr)
    pages = (slots_ptr, tables_ptr, table_stride, block_rows, head_rows)
    gl.warp_specialize(
        [
            (consume, (0, rings, board, turns, out_ptr, out_stride, sinks_ptr, scale, softcap, window,
                        BLOCK_N, D, STAGES, has_context, CAP, WINDOW, SINKS, TAKE_TURNS, PDL)),
            (consume, (1, rings, board, turns, out_ptr, out_stride, sinks_ptr, scale, softcap, window,
                        BLOCK_N, D, STAGES, has_context, CAP, WINDOW, SINKS, TAKE_TURNS, PDL)),
            (produce, ((q_desc, k_desc, v_desc, k_pages, v_pages), rings, board, batch, pages, mapping_ptr,
                        key_starts_ptr, queue_ptr, heads_at_once, num_kv_heads, window, GROUP, BLOCK_N, D, STAGES,
                        PAGED, has_context, stores, WINDOW, PDL)),
        ],
        [4, 1],
        [232, 40] if has_context or stores else [240, 24],
    )  # fmt: skip


def _descriptor(x: torch.Tensor, shape: tuple[int, int], stride: int, box: tuple[int, int]) -> TensorDescriptor:
    """A TMA descriptor of a tensor as a matrix, loaded in boxes."""
    return TensorDescriptor(x, list(shape), [stride, 1], list(box), _layout(x.dtype, box))


@functools.cache
def _layout(dtype: torch.dtype, box: tuple[int, int]) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for(list(box), _ELEMENTS[dtype])


@functools.cache
def _queue(device: torch.device) -> torch.Tensor:
    """The device's work queue, zero between launches."""
    return torch.zeros(2, dtype=torch.int32, device=device)
