"""Decode attention of few rows for Hopper, by thread-block clusters (``attention.cu``)."""

import ctypes
import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from octavo.kernels.attention import AttentionSpec, HeadNorms, RopeTables
from octavo.kernels.cuda.kernel import CudaKernel
from octavo.kernels.cuda.launch import Launch
from octavo.kernels.cuda.library import library

SOURCE = Path(__file__).with_name("attention.cu")

_PIECE = 16
"""Tokens that a warp attends to at a time."""
_TYPES = (torch.bfloat16, torch.float16)
_HEAD_DIMS = (64, 128)
_MAX_GROUP = 8
_REGISTERS, _MOST_REGISTERS = 65536, 128
"""Of a multiprocessor, and of a thread."""
_SHARED_BYTES, _RESERVED_BYTES = 227 << 10, 1 << 10
"""Of a multiprocessor, and of those what each block takes beside its own."""
_FEWEST_PROGRAMS = 4
"""With fewer rows times key/value heads, one cluster each leaves most of the device idle."""
_LONG = 16384
"""Tokens of a row beyond which it takes 64 blocks to read four heads' keys and values as fast as 132 do; up to it, 32
smaller ones, which start earlier."""


class AttentionTile(NamedTuple):
    """How the warps of a row and key/value head are arranged.

    Attributes:
        cluster_size: blocks.
        num_warps: of a block.
        num_stages: pieces of 16 tokens that each warp has requested at a time.
        num_at_once: pieces whose scores a warp has at a time.
    """

    cluster_size: int
    num_warps: int
    num_stages: int
    num_at_once: int


class AttentionForm(NamedTuple):
    """What a kernel is compiled for, beside the tile."""

    head_dim: int
    group: int
    is_normed: bool
    dtype: torch.dtype


def choose_tile(form: AttentionForm, num_programs: int, max_len: int, num_sms: int) -> AttentionTile | None:
    """The fastest tile that was timed; None where another kernel is faster, or none was.

    All blocks run at once: otherwise those that wait for room cannot read early.

    Args:
        num_programs: rows times key/value heads.
        max_len: maximum number of tokens of a row.
    """
    for tile in _candidates(form, num_programs, max_len, num_sms):
        num_at_once = -(-tile.cluster_size * num_programs // num_sms)
        if num_at_once * (attention_kernel(form, tile).shared_bytes + _RESERVED_BYTES) <= _SHARED_BYTES:
            return tile
    return None


def _candidates(form: AttentionForm, num_programs: int, max_len: int, num_sms: int) -> Sequence[AttentionTile]:
    """The best tile first, if it fits."""
    num_blocks = num_sms // num_programs  # that each program can have
    if num_programs < _FEWEST_PROGRAMS:
        return ()
    if form.head_dim == 64:
        if num_blocks >= 16:
            return AttentionTile(16, 4, 2, 1), AttentionTile(8, 4, 4, 2)
        if num_blocks >= 8:
            return (AttentionTile(8, 4, 4, 2),)
        if num_blocks >= 4:
            return (AttentionTile(8, 4, 3, 1),)
        return (AttentionTile(2, 8, 4, 2),) if num_blocks >= 2 else ()
    if num_blocks >= 32:
        return (AttentionTile(16, 4, 3, 1) if max_len > _LONG else AttentionTile(8, 4, 4, 2),)
    # Larger models than those of two queries a head: with their GEMMs, a deeper ring does not start later.
    is_large = form.group > 2
    if num_blocks >= 8:
        return (AttentionTile(8, 4, 4, 2) if is_large else AttentionTile(8, 4, 3, 1),)
    if num_blocks >= 4:
        return (AttentionTile(8, 2, 3, 1),)
    if num_blocks >= 2:
        return (AttentionTile(2, 4, 4 if is_large else 3, 1),)
    if num_blocks >= 1:
        return AttentionTile(2, 4, 3, 1), AttentionTile(1, 4, 3, 1)
    return (AttentionTile(1, 4, 3, 1),) if num_programs <= 2 * num_sms else ()


class _Operands(ctypes.Structure):
    """``Operands`` of ``attention_layout.cuh``."""

    _fields_ = (
        ("qkv", ctypes.c_void_p),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("q_norm", ctypes.c_void_p),
        ("k_norm", ctypes.c_void_p),
        ("kv_cache", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("seq_lens", ctypes.c_void_p),
        ("counts", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("qkv_stride", ctypes.c_int64),
        ("cos_stride", ctypes.c_int64),
        ("sin_stride", ctypes.c_int64),
        ("part_stride", ctypes.c_int64),
        ("block_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("table_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("num_kv_heads", ctypes.c_int32),
        ("log_block_size", ctypes.c_int32),
        ("slot_words", ctypes.c_int32),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
    )


@dataclass
class _PreparedAttention:
    launch: Launch
    operands: _Operands
    lock: threading.Lock = field(default_factory=threading.Lock)


@functools.cache
def _prepare(
    form: AttentionForm, tile: AttentionTile, num_rows: int, num_kv_heads: int, device: torch.device
) -> _PreparedAttention:
    operands = _Operands(num_kv_heads=num_kv_heads)
    launch = Launch(
        attention_kernel(form, tile),
        device,
        (tile.cluster_size * num_kv_heads, num_rows, 1),
        32 * tile.num_warps,
        [operands],
        cluster=(tile.cluster_size, 1, 1),
    )
    return _PreparedAttention(launch, operands)


def attention_kernel(form: AttentionForm, tile: AttentionTile) -> CudaKernel:
    """The kernel of a form and a tile."""
    constants = (
        ("HEAD_DIM", form.head_dim),
        ("GROUP", form.group),
        ("WARPS", tile.num_warps),
        ("CLUSTER", tile.cluster_size),
        ("STAGES", tile.num_stages),
        ("AT_ONCE", tile.num_at_once),
        ("NORMED", int(form.is_normed)),
        ("HALF", int(form.dtype is torch.float16)),
        ("MIN_BLOCKS", _REGISTERS // _MOST_REGISTERS // (32 * tile.num_warps)),
    )
    row_bytes = 2 * form.head_dim
    num_tiles, num_all = form.head_dim // 16, tile.cluster_size * tile.num_warps
    pair_bytes = 16 * ((form.group + 1) // 2)
    shared_bytes = tile.num_warps * tile.num_stages * 2 * _PIECE * row_bytes
    shared_bytes += 9 * (row_bytes + 64) + row_bytes
    shared_bytes += num_all * (num_tiles // min(tile.cluster_size, num_tiles) * 8 + 1) * pair_bytes + 8
    return CudaKernel(SOURCE, "attend", constants, shared_bytes=shared_bytes, cluster_size=tile.cluster_size)


def choose(
    qkv: torch.Tensor,
    rope: RopeTables,
    norms: HeadNorms | None,
    kv_cache: torch.Tensor,
    spec: AttentionSpec,
    num_rows: int,
    max_len: int,
    num_sms: int,
) -> AttentionTile | None:
    """The tile for a step; None where the kernel is not there, does not take the tensors or is not the fastest.

    Args:
        qkv, rope, norms, kv_cache: as :func:`attend` takes them.
        max_len: maximum number of tokens of a row.
        num_sms: multiprocessors of the device.
    """
    form = AttentionForm(spec.head_dim, spec.num_heads // spec.num_kv_heads, norms is not None, qkv.dtype)
    block_size = kv_cache.shape[3]
    tables = (*rope, *(() if norms is None else (norms.query, norms.key)))
    if (
        qkv.dtype not in _TYPES
        or any(x.dtype is not qkv.dtype for x in (kv_cache, *tables))
        or rope[0].shape[-1] != form.head_dim
        or form.head_dim not in _HEAD_DIMS
        or form.group > _MAX_GROUP
        or block_size % _PIECE
        or block_size & (block_size - 1)
    ):
        return None
    tile = choose_tile(form, num_rows * spec.num_kv_heads, max_len, num_sms)
    return tile if tile is not None and library.has(SOURCE) else None


def attend(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    kv_cache: torch.Tensor,
    block_tables: torch.Tensor,
    slots: torch.Tensor,
    seq_lens: torch.Tensor,
    counts: torch.Tensor,
    out: torch.Tensor,
    *,
    num_rows: int,
    scale: float,
    tile: AttentionTile,
) -> None:
    """What ``decode_attention`` computes for rows of one token, which has the arguments' shapes.

    Args:
        tile: of :func:`choose`.
    """
    _, _, num_kv_heads, block_size, head_dim = kv_cache.shape
    assert qkv.data_ptr() % 16 == 0 and qkv.stride(0) % 8 == 0, "rows are loaded 16 bytes at a time"
    form = AttentionForm(head_dim, out.shape[1] // num_kv_heads, q_norm is not None, qkv.dtype)
    prepared = _prepare(form, tile, num_rows, num_kv_heads, qkv.device)
    with prepared.lock:
        operands = prepared.operands
        operands.qkv, operands.qkv_stride = qkv.data_ptr(), qkv.stride(0)
        operands.cos, operands.cos_stride = cos.data_ptr(), cos.stride(0)
        operands.sin, operands.sin_stride = sin.data_ptr(), sin.stride(0)
        operands.q_norm = None if q_norm is None else q_norm.data_ptr()
        operands.k_norm = None if k_norm is None else k_norm.data_ptr()
        operands.kv_cache = kv_cache.data_ptr()
        operands.part_stride, operands.block_stride, operands.head_stride = kv_cache.stride()[:3]
        operands.block_tables, operands.table_stride = block_tables.data_ptr(), block_tables.stride(0)
        operands.slots, operands.seq_lens = slots.data_ptr(), seq_lens.data_ptr()
        operands.counts = counts.data_ptr()
        operands.out, operands.out_stride = out.data_ptr(), out.stride(0)
        operands.log_block_size = block_size.bit_length() - 1
        operands.slot_words = slots.element_size() // 4
        operands.eps, operands.scale = eps, scale
        prepared.launch.run()
