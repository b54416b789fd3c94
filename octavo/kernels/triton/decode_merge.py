"""Device functions of decode attention for what chunks leave behind: where outputs lie, and the merge of the chunks."""

import triton
import triton.language as tl

from octavo.kernels.triton.decode_token import LOG2E

LOWEST = tl.constexpr(-1e30)
"""The initial maximum: below all scores, but finite, so that its difference to itself is 0 and not NaN."""

MERGED_AT_ONCE = tl.constexpr(8)
"""Chunks that a merge loads at a time, unless their values would not fit into registers."""

COPIES = tl.constexpr(4)
"""Number of copies of a chunk's log-sum: as many values as a thread loads at once."""


@triton.jit
def output_places(
    rows: tl.tensor, out_stride: tl.tensor, HEAD_DIM: tl.constexpr, GROUP: tl.constexpr, LENGTH: tl.constexpr
):
    """Offsets of queries in a row's output."""
    return rows * HEAD_DIM if LENGTH == 1 else rows // GROUP * out_stride + rows % GROUP * HEAD_DIM


@triton.jit
def merge_chunks(
    num_chunks: tl.tensor,
    logsums: tl.tensor,
    partials: tl.tensor,
    out: tl.tensor,
    out_stride: tl.tensor,
    sinks: tl.tensor,
    num_new: tl.tensor,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LENGTH: tl.constexpr,
):
    """Merge the partial results of all chunks, in order, and write the output; loads ``BLOCK_C`` chunks at a time."""
    HEADS: tl.constexpr = triton.next_power_of_2(GROUP * LENGTH)
    rows, dims = tl.arange(0, HEADS)[:, None], tl.arange(0, BLOCK_D)[None, :]
    # Each thread loads the log-sums for its own values, so that no data is exchanged between threads.
    shared = rows * COPIES + dims % COPIES
    is_value = (rows < GROUP * num_new) & (dims < HEAD_DIM)
    peak = tl.full((HEADS, BLOCK_D), LOWEST, tl.float32)
    total = tl.zeros((HEADS, BLOCK_D), tl.float32)
    acc = tl.zeros((HEADS, BLOCK_D), tl.float32)
    for start in range(0, num_chunks, BLOCK_C):
        chunk_sums = ()
        chunk_values = ()
        last_peak = peak
        for i in tl.static_range(BLOCK_C):
            place = (start + i) * (NUM_HEADS * LENGTH)
            mask = is_value & (start + i < num_chunks)
            # Bypass L1, which may hold stale lines of an earlier launch.
            logsum = tl.load(logsums + place * COPIES + shared, mask, other=LOWEST, cache_modifier=".cg")
            values = tl.load(partials + (place + rows) * HEAD_DIM + dims, mask, other=0.0, cache_modifier=".cg")
            chunk_sums = chunk_sums + (logsum,)  # type: ignore[assignment]
            chunk_values = chunk_values + (values,)  # type: ignore[assignment]
            peak = tl.maximum(peak, logsum)
        # One rescaling for all of them, so that only sums depend on one another.
        decay = tl.exp2(last_peak - peak)
        total *= decay
        acc *= decay
        for i in tl.static_range(BLOCK_C):
            weight = tl.exp2(chunk_sums[i] - peak)
            total += weight
            acc += chunk_values[i] * weight
    if sinks is not None:
        logits = tl.load(sinks + rows % GROUP + dims * 0, is_value, other=0.0).to(tl.float32)
        total += tl.exp2(logits * LOG2E - peak)
    tl.store(
        out + output_places(rows, out_stride, HEAD_DIM, GROUP, LENGTH) + dims,
        (acc / total).to(out.dtype.element_ty),
        is_value,
    )
