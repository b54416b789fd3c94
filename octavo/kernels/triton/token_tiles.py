"""What GEMMs of a single row by float8 weights share: tiles that the tensor cores multiply by parts of values.

Each of the ``SLICES`` warps of a program sums its own slice: an expert, or every so manyth run of 128 inputs. A tile
is 16 rows of weights, whose slices are the rows of a block ``[SLICES x ROWS, WIDTH]`` in shared memory. Of values, a
block has the parts of each slice, ``[SLICES x PARTS, WIDTH]`` (:mod:`.value_parts`). The tensor cores multiply all
slices of weights by all slices of values, and those that belong together are kept: the others cost no time, since
weights come from memory at their own pace.
"""

import functools

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from octavo.kernels.triton.value_parts import PARTS, part_factor, split_value

WIDTH = gl.constexpr(128)
"""Inputs of a block."""
ROWS = gl.constexpr(16)
"""Weight rows of a tile; of a gate and its up projection, eight each."""
_CHAIN = gl.constexpr(2)
"""Blocks whose sums the tensor cores add up, with fewer bits than float32 has."""


def sliced_descriptor(weight: torch.Tensor, num_slices: int, num_halves: int) -> TensorDescriptor:
    """How TMA loads blocks of a tile, ``[num_slices, num_halves, ROWS / num_halves, WIDTH]``, of neighbouring inputs.

    Args:
        weight: ``[matrices, outputs, K]``, contiguous and aligned to 16 bytes; K a multiple of ``WIDTH``.
        num_slices: a power of two; slices of several blocks follow each other.
        num_halves: matrices of a tile, which follow each other: 2 for a gate and its up projection, else 1.
    """
    num_matrices, num_outputs, num_inputs = weight.shape
    width = WIDTH.value
    shape = [num_inputs // width, num_matrices, num_outputs, width]
    strides = [width, num_outputs * num_inputs, num_inputs, 1]
    return TensorDescriptor(
        weight, shape, strides, [num_slices, num_halves, ROWS.value // num_halves, width], _box_layout()
    )


@functools.cache
def _box_layout() -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout(WIDTH.value, 8, rank=4)


@triton.constexpr_function
def memory_layout():
    """Of blocks in shared memory."""
    return gl.NVMMASharedLayout(WIDTH.value, 8, rank=2)


@triton.constexpr_function
def sum_layout(slices):
    """Of sums ``[slices x ROWS, slices x PARTS]``."""
    return gl.NVMMADistributedLayout([3, 0], [slices, 1], [16, slices * PARTS.value, 32])


@triton.constexpr_function
def row_layout(slices):
    """Of a tile's rows in each slice, ``[slices x ROWS]``."""
    return gl.SliceLayout(1, sum_layout(slices))


@gluon.jit
def memory_blocks(dtype: gl.constexpr, COUNT: gl.constexpr, BLOCK_ROWS: gl.constexpr):
    """Shared memory of blocks ``[BLOCK_ROWS, WIDTH]``, a tuple.

    Each is an allocation of its own: between two writes to the same one, all warps wait for each other.
    """
    blocks = ()
    for _ in gl.static_range(COUNT):
        blocks = blocks + (gl.allocate_shared_memory(dtype, [BLOCK_ROWS, WIDTH], memory_layout()),)  # type: ignore[assignment]
    return blocks


@gluon.jit
def transfer_barriers(COUNT: gl.constexpr):
    """Barriers that transfers into shared memory complete, a tuple of :func:`memory_blocks`' kind."""
    barriers = ()
    for _ in gl.static_range(COUNT):
        barriers = barriers + (gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout()),)  # type: ignore[assignment]
    for place in gl.static_range(COUNT):
        mbarrier.init(barriers[place], count=1)
    return barriers


@gluon.jit
def multiply_blocks(weights, values, SLICES: gl.constexpr):
    """Sums over tuples of blocks, in :func:`sum_layout`; :func:`own_sums` keeps those that belong together."""
    BLOCKS: gl.constexpr = len(weights)
    none = gl.zeros([SLICES * ROWS, SLICES * PARTS], gl.float32, sum_layout(SLICES))
    chains = ()
    for start in gl.static_range(0, BLOCKS, _CHAIN):
        sums = none
        for block in gl.static_range(start, start + _CHAIN):
            if block < BLOCKS:
                own = values[block].permute((1, 0))
                sums = warpgroup_mma(weights[block], own, sums, use_acc=block > start, is_async=True)
        chains = chains + (sums,)  # type: ignore[assignment]
    total = none
    for index in gl.static_range(len(chains)):
        total += warpgroup_mma_wait(len(chains) - 1 - index, deps=[chains[index]])
    return total


@gluon.jit
def own_sums(total, SLICES: gl.constexpr):
    """Of sums of all slices by all slices, those of each with itself, ``[SLICES x ROWS]``."""
    row = gl.arange(0, SLICES * ROWS, row_layout(SLICES))[:, None]
    column = gl.arange(0, SLICES * PARTS, gl.SliceLayout(0, sum_layout(SLICES)))[None, :]
    # The row of parts that is not used may hold anything.
    is_own = (row // ROWS == column // PARTS) & (column % PARTS < PARTS - 1)
    return gl.sum(gl.where(is_own, total * part_factor(column), 0.0), 1)


@gluon.jit
def add_slices(sums, SLICES: gl.constexpr):
    """``[SLICES x ROWS]`` sums of slices to ``[ROWS]``."""
    return gl.sum(sums.reshape((SLICES, ROWS)), 0)


@gluon.jit
def block_columns(block: gl.constexpr, SLICES: gl.constexpr):
    """The inputs of a block, ``[SLICES, WIDTH]``."""
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [SLICES, 1], [1, 0])
    first = (block * SLICES + gl.arange(0, SLICES, gl.SliceLayout(1, layout)))[:, None] * WIDTH
    return first + gl.arange(0, WIDTH, gl.SliceLayout(0, layout))[None, :]


@gluon.jit
def store_block(values, slot):
    """Store the parts of values of :func:`block_columns`."""
    rows: gl.constexpr = values.shape[0] * PARTS
    first, second, third = split_value(values.to(gl.float32))
    joined = gl.join(gl.join(first, second), gl.join(third, third)).permute((0, 3, 2, 1))
    slot.store(joined.reshape((rows, WIDTH)))
