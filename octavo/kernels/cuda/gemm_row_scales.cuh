// The warps that compute what rows of sums are multiplied by; see gemm.cu.

#pragma once

#include "gemm_outputs.cuh"

// SCALING_WARPS warps leave the factors of the tile's rows in shared memory, while others multiply.
__device__ __forceinline__ void produce_row_scales(u32 shared, const Outputs& outputs, const Place& place, int thread) {
    for (int i = thread; i < place.num_rows; i += SCALING_WARPS * 32)
        store_shared(shared + ROW_SCALE_PLACE + i * 4, outputs.row_scale(place.first_row + i));
    named_barrier_arrive(SCALES_BARRIER, SCALING_THREADS);
}
