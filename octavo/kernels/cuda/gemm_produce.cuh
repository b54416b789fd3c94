// The warps that load what a GEMM multiplies; see gemm.cu.

#pragma once

#include "gemm_layout.cuh"

// One thread keeps the ring full of tiles of W, of which it loads its share for all blocks that have them.
__device__ __forceinline__ void produce_weights(u32 shared, const TensorMap* map, const Place& place) {
    constexpr int SHARE = WEIGHTS / SHARE_W;
    const u16 mask = ((1 << SHARE_W) - 1) << Place::rank(place.part, 0);
    Slot slot;
    for (int tile = place.first_tile; tile < place.end_tile; tile += place.tile_step) {
        const int row = place.first_block(tile) * BLOCK + place.row_rank * SHARE;
        for (int step = place.first_step; step < place.last_step; step++) {
            const u32 full = shared + FULL_PLACE + slot.stage * 8;
            const u32 to = shared + slot.stage * WEIGHT_BYTES + place.row_rank * SHARE * STEP_BYTES;
            const int column = step * STEP_VALUES;
            barrier_wait(shared + EMPTY_PLACE + slot.stage * 8, slot.phase ^ 1);
            barrier_arrive_expect(full, WEIGHT_BYTES + place.num_rows * STEP_BYTES);
            if (SHARE_W == 1) {
                GATED ? copy_box_4d(to, map, column, row / 16, full) : copy_box(to, map, column, row, full);
            } else {
                GATED ? multicast_box_4d(to, map, column, row / 16, full, mask)
                      : multicast_box(to, map, column, row, full, mask);
            }
            slot.advance();
        }
    }
}

// One thread keeps the ring full of tiles of x, which other blocks read, too, while W only passes through the L2 cache.
// If they have fewer than ROWS rows, what is multiplied beyond is anything, and its sums are not written.
__device__ __forceinline__ void produce_x(u32 shared, const TensorMap* map, const Place& place) {
    Slot slot;
    for (int tile = place.first_tile; tile < place.end_tile; tile += place.tile_step) {
        for (int step = place.first_step; step < place.last_step; step++) {
            const u32 to = shared + X_PLACE + slot.stage * X_BYTES, full = shared + FULL_PLACE + slot.stage * 8;
            barrier_wait(shared + EMPTY_PLACE + slot.stage * 8, slot.phase ^ 1);
            copy_box(to, map, step * STEP_VALUES, place.first_row, full, READ_AGAIN);
            slot.advance();
        }
    }
}
