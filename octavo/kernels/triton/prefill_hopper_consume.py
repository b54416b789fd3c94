"""The consumer warpgroups of :mod:`prefill_hopper`: matmuls, softmax, and the store of the result."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.kernels.triton.gluon_names import reinterpret
from octavo.kernels.triton.prefill_hopper_tiles import key_range, read_tile


@gluon.jit
def _exp2(x):
    """``exp2`` as one instruction. Triton's is a branch on a property of the compilation that LLVM removes late."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _softmax(
    scores,
    row_max,
    row_sum,
    scale,
    softcap,
    window,
    positions,
    keys,
    is_edge,
    CAP: gl.constexpr,
    WINDOW: gl.constexpr,
    MASKED: gl.constexpr,
):
    """Online softmax: exponentials of a block of scores, the new maximum and sum, and the decay of earlier results.

    With ``MASKED``, a block that is an edge has keys that some queries do not see. The branch keeps one copy of the
    loop over blocks, which takes a third off the time to compile.
    """
    if CAP:
        scores = (1.0 - 2.0 / (_exp2(scores * (scale * 2.0 * 1.4426950408889634)) + 1.0)) * softcap
        scale = 1.0
    if MASKED:  # noqa: SIM102 - one is decided when the kernel is compiled, the other when it runs
        if is_edge:
            visible = keys[None, :] <= positions[:, None]
            if WINDOW:
                visible = visible & (keys[None, :] > positions[:, None] - window)
            scores = gl.where(visible, scores, float("-inf"))
    new_max = gl.maximum(row_max, gl.max(scores, axis=1) * scale)
    shift = gl.where(new_max == float("-inf"), 0.0, new_max) if MASKED else new_max
    p = _exp2(scores * scale - shift[:, None])
    decay = _exp2(row_max - shift)
    return p, new_max, row_sum * decay + gl.sum(p, axis=1), decay


@gluon.jit
def _keep_rows(block, num_own, BLOCK_N: gl.constexpr, D: gl.constexpr):
    """Zero the values of keys past the row's end: a probability of zero times garbage may be NaN.

    Both consumers do this and write the same values, 16 rows of a swizzled column at a time: it is rare, and short
    code compiles sooner.
    """
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    part: gl.constexpr = gl.NVMMASharedLayout.get_default_for([16, 64], block.dtype)
    parts = reinterpret(block, block.dtype, [BLOCK_N * D // 1024, 16, 64], part)
    local_rows = gl.arange(0, 16, layout=gl.SliceLayout(1, layout))
    for i in range(BLOCK_N * D // 1024):
        rows = i % (BLOCK_N // 16) * 16 + local_rows
        parts.index(i).store(gl.where((rows < num_own)[:, None], parts.index(i).load(layout), 0.0))
    fence_async_shared()


@gluon.jit
def _advance(
    W: gl.constexpr,
    first_block,
    last_block,
    inner_block,
    outer_block,
    state,
    q,
    k_ring,
    v_ring,
    turns,
    scale,
    softcap,
    window,
    positions,
    zeros,
    STAGES: gl.constexpr,
    CAP: gl.constexpr,
    WINDOW: gl.constexpr,
    MASKED: gl.constexpr,
    TAKE_TURNS: gl.constexpr,
):
    """Process blocks of keys in descending order: the scores of each block, and P·V of the previous one.

    With ``MASKED``, blocks from ``inner_block`` on are on the causal diagonal, those before ``outer_block`` on the edge
    of the window.
    """
    k_smem, k_full, k_empty = k_ring
    v_smem, v_full, v_empty = v_ring
    acc, p, row_max, row_sum, step, num_turns = state
    block_n: gl.constexpr = k_smem.shape[1]
    local_keys = gl.arange(0, block_n, layout=gl.SliceLayout(0, zeros.type.layout))
    for n in range(last_block - first_block + 1):
        last_stage = step % STAGES
        step += 1
        stage = step % STAGES
        phase = step // STAGES & 1
        mbarrier.wait(k_full.index(stage), phase)
        if TAKE_TURNS:
            mbarrier.wait(turns.index(W), num_turns & 1)
            num_turns += 1
        k = k_smem.index(stage).permute((1, 0))
        scores_next = warpgroup_mma(q, k, zeros, use_acc=False, is_async=True)
        acc_next = warpgroup_mma(p, v_smem.index(last_stage), acc, is_async=True)
        if TAKE_TURNS:
            mbarrier.arrive(turns.index(1 - W), count=1)
        scores = warpgroup_mma_wait(1, deps=[scores_next])
        mbarrier.arrive(k_empty.index(stage), count=1)
        block = last_block - n
        keys = block * block_n + local_keys
        is_edge = block >= inner_block
        if WINDOW:
            is_edge = is_edge | (block < outer_block)
        wide_p, row_max, row_sum, decay = _softmax(
            scores, row_max, row_sum, scale, softcap, window, positions, keys, is_edge, CAP, WINDOW, MASKED
        )
        p = gl.convert_layout(wide_p.to(p.dtype), p.type.layout)
        # Wait here rather than at the use: it keeps the assembler from moving the next wait before the softmax.
        mbarrier.wait(v_full.index(stage), phase)
        acc = warpgroup_mma_wait(0, deps=[acc_next])
        mbarrier.arrive(v_empty.index(last_stage), count=1)
        acc = acc * gl.convert_layout(decay, gl.SliceLayout(1, acc.type.layout))[:, None]
    return acc, p, row_max, row_sum, step, num_turns


@gluon.jit
def consume(
    W: gl.constexpr,
    rings,
    board,
    turns,
    out_ptr,
    out_stride,
    sinks_ptr,
    scale,
    softcap,
    window,
    BLOCK_N: gl.constexpr,
    D: gl.constexpr,
    STAGES: gl.constexpr,
    HAS_CONTEXT: gl.constexpr,
    CAP: gl.constexpr,
    WINDOW: gl.constexpr,
    SINKS: gl.constexpr,
    TAKE_TURNS: gl.constexpr,
    PDL: gl.constexpr,
):
    q_ring, k_ring, v_ring = rings
    q_smem, q_full, q_empty = q_ring
    k_smem, k_full, k_empty = k_ring
    v_smem, v_full, v_empty = v_ring
    num_slots: gl.constexpr = q_smem.shape[0]
    half: gl.constexpr = q_smem.shape[1]
    dtype: gl.constexpr = q_smem.dtype
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    row_layout: gl.constexpr = gl.SliceLayout(1, s_layout)
    out_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    zeros = gl.zeros([half, BLOCK_N], gl.float32, s_layout)
    if PDL:
        gdc_wait()
    if TAKE_TURNS and W == 1:
        mbarrier.arrive(turns.index(0), count=1)
    num_turns = 0
    num_done = 0
    step = 0
    start, length, seq_len, first_query, head = read_tile(board, 0)
    while length > 0:
        first_position = seq_len - length + first_query
        positions = first_position + W * half + gl.arange(0, half, layout=row_layout)
        _first_key, end_key, first_block, last_block = key_range(
            first_position, seq_len, window, WINDOW, 2 * half, BLOCK_N
        )
        if SINKS:
            sink = gl.load(sinks_ptr + head).to(gl.float32) * 1.4426950408889634
            row_max = gl.full([half], 0.0, gl.float32, row_layout) + sink
            row_sum = gl.where(row_max == float("-inf"), 0.0, 1.0)
        else:
            row_max = gl.full([half], float("-inf"), gl.float32, row_layout)
            row_sum = gl.zeros([half], gl.float32, row_layout)
        acc = gl.zeros([half, D], gl.float32, o_layout)
        slot = (2 * num_done + W) % num_slots
        q = q_smem.index(slot)

        # Peel the last block, which contains the row's end and so needs masking.
        stage = step % STAGES
        phase = step // STAGES & 1
        mbarrier.wait(q_full.index(slot), 2 * num_done // num_slots & 1)
        mbarrier.wait(k_full.index(stage), phase)
        scores = warpgroup_mma(q, k_smem.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=[scores])
        mbarrier.arrive(k_empty.index(stage), count=1)
        keys = last_block * BLOCK_N + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, s_layout))
        wide_p, row_max, row_sum, _decay = _softmax(
            scores, row_max, row_sum, scale, softcap, window, positions, keys, True, CAP, WINDOW, True
        )
        p = gl.convert_layout(wide_p.to(dtype), p_layout)
        mbarrier.wait(v_full.index(stage), phase)
        num_own = seq_len - last_block * BLOCK_N
        if num_own < BLOCK_N:
            _keep_rows(v_smem.index(stage), num_own, BLOCK_N, D)

        state = (acc, p, row_max, row_sum, step, num_turns)
        inner_block = (first_position + 1) // BLOCK_N
        outer_block = gl.cdiv(gl.maximum(end_key - window, 0), BLOCK_N) if WINDOW else first_block
        state = _advance(
            W, first_block, last_block - 1, inner_block, outer_block, state, q, k_ring, v_ring, turns, scale, softcap,
            window, positions, zeros, STAGES, CAP, WINDOW, HAS_CONTEXT or WINDOW or 2 * half > BLOCK_N, TAKE_TURNS,
        )  # fmt: skip
        acc, p, row_max, row_sum, step, num_turns = state

        stage = step % STAGES
        mbarrier.arrive(q_empty.index(slot), count=1)
        acc_next = warpgroup_mma(p, v_smem.index(stage), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc_next])
        mbarrier.arrive(v_empty.index(stage), count=1)
        step += 1
        num_done += 1

        acc = acc / gl.convert_layout(row_sum, gl.SliceLayout(1, o_layout))[:, None]
        values = gl.convert_layout(acc.to(dtype), out_layout)
        queries = first_query + W * half + gl.arange(0, half, layout=gl.SliceLayout(1, out_layout))
        columns = head * D + gl.arange(0, D, layout=gl.SliceLayout(0, out_layout))
        at = (start + queries).to(gl.int64) * out_stride
        gl.store(out_ptr + at[:, None] + columns[None, :], values, mask=(queries < length)[:, None])
        start, length, seq_len, first_query, head = read_tile(board, num_done)
    if PDL:
        gdc_launch_dependents()
