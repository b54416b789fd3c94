// The merge of decode attention: warps send each block of the cluster its part of the outputs; see attention.cu.

#pragma once

#include "attention_pieces.cuh"

__device__ __forceinline__ void send(const Softmax& softmax, u32 shared, int own, int lane) {
    const int pair = lane % 4;
    if (pair >= PAIRS) return;
#pragma unroll
    for (int merger = 0; merger < MERGERS; merger++) {
        const u32 there = cluster_address(shared, merger), arrived = there + ARRIVED_PLACE;
        const u32 to = there + PARTIAL_PLACE + own * PARTIAL_BYTES + (lane / 4 * PAIRS + pair) * 16;
#pragma unroll
        for (int tile = 0; tile < OWN_TILES; tile++)
            store_cluster(to + tile * 8 * PAIRS * 16, softmax.sums[merger * OWN_TILES + tile], arrived);
        if (lane / 4 == merger) {
            const float sums[4] = {softmax.peaks[0], softmax.peaks[1], softmax.totals[0], softmax.totals[1]};
            store_cluster(there + SUM_PLACE + own * SUM_BYTES + pair * 16, sums, arrived);
        }
    }
}

// Merges the partial sums of so many warps, in their order, and writes this block's outputs of two queries a thread.
__device__ __forceinline__ void merge(u32 shared, int rank, int num_warps, u16* out) {
    constexpr int DIMS = OWN_TILES * 16;
    for (int i = threadIdx.x; i < DIMS * PAIRS; i += THREADS) {
        const int pair = i / DIMS, dim = i % DIMS, row = dim % 8;
        const u32 sums = shared + SUM_PLACE + pair * 16;
        const u32 partials =
            shared + PARTIAL_PLACE + ((dim / 16 * 8 + row) * PAIRS + pair) * 16 + dim / 8 % 2 * 8;
        float2 peak = make_float2(LOWEST, LOWEST);
#pragma unroll 4
        for (int warp = 0; warp < num_warps; warp++) {
            const float2 own = load_shared_pair(sums + warp * SUM_BYTES);
            peak.x = fmaxf(peak.x, own.x);
            peak.y = fmaxf(peak.y, own.y);
        }
        float2 total = make_float2(0, 0), value = make_float2(0, 0);
#pragma unroll 4
        for (int warp = 0; warp < num_warps; warp++) {
            const float4 own = load_shared_floats(sums + warp * SUM_BYTES);
            const float2 partial = load_shared_pair(partials + warp * PARTIAL_BYTES);
            const float x = exp2_of(own.x - peak.x), y = exp2_of(own.y - peak.y);
            total.x += own.z * x;
            total.y += own.w * y;
            value.x += partial.x * x;
            value.y += partial.y * y;
        }
        const u32 values = pack_pair(__fdividef(value.x, total.x), __fdividef(value.y, total.y));
        u16* to = out + pair * 2 * HEAD_DIM + rank * DIMS + dim;
        to[0] = u16(values);
        if (pair * 2 + 1 < GROUP) to[HEAD_DIM] = u16(values >> 16);
    }
}
