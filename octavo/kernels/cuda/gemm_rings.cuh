// What lies where in shared memory: the ring of 8-bit and 16-bit values; see gemm_layout.cuh.

#pragma once

constexpr int BLOCK_BYTES = BLOCK * STEP_BYTES, WEIGHT_BYTES = WEIGHTS * STEP_BYTES;

// Shared memory: the ring, then scales of x's rows and the barriers.
constexpr int X_PLACE = STAGES * WEIGHT_BYTES;
constexpr int ROW_SCALE_PLACE = X_PLACE + STAGES * X_BYTES;
constexpr int FULL_PLACE = ROW_SCALE_PLACE + ROWS * 4;  // a stage has been loaded
constexpr int EMPTY_PLACE = FULL_PLACE + STAGES * 8;    // a stage has been multiplied, here and in blocks that share it
constexpr int DONE_PLACE = EMPTY_PLACE + STAGES * 8;    // all parts have been summed
constexpr int MERGED_PLACE = DONE_PLACE + 8;            // a warpgroup has the sums of the other parts
// Of each row its largest output, then what its outputs are multiplied by.
constexpr int LARGEST_PLACE = MERGED_PLACE + GROUPS * 8;

// The barriers of the ring; for one thread.
__device__ __forceinline__ void init_ring(u32 shared) {
    for (int i = 0; i < STAGES; i++) {
        barrier_init(shared + FULL_PLACE + i * 8, 1);
        barrier_init(shared + EMPTY_PLACE + i * 8, GROUPS * SHARE_W);
    }
}
