// The warps that load what a GEMM with packed weights multiplies; see grouped_gemm.cu.

#pragma once

#include "gemm_layout.cuh"

// One thread keeps a ring full of codes and terms, of which it loads its share for all blocks that have them.
__device__ __forceinline__ void produce_codes(
    u32 shared, const TensorMap* code_map, const TensorMap* term_map, int group_units, const Place& place) {
    constexpr int SHARE = WEIGHTS / SHARE_W;
    constexpr int NUM_BYTES = GROUPS * (BLOCK_CODE_BYTES + BLOCK_TERM_BYTES);
    const u16 mask = ((1 << SHARE_W) - 1) << Place::rank(place.part, 0);
    SlotOf<CODE_STAGES> slot;
    for (int tile = place.first_tile; tile < place.end_tile; tile += place.tile_step) {
        const int row = place.first_block(tile) * BLOCK + place.row_rank * SHARE;
        for (int unit = place.first_step; unit < place.last_step; unit++) {
            const u32 full = shared + CODES_FULL_PLACE + slot.stage * 8;
            const int first = slot.stage * WEIGHTS + place.row_rank * SHARE;
            const u32 codes = shared + CODES_PLACE + first * CODE_BYTES;
            const u32 terms = shared + TERMS_PLACE + first * TERM_BYTES;
            const int code_column = unit * CODE_BYTES, term_column = unit / group_units * (8 * TERM_BYTES);
            barrier_wait(shared + CODES_EMPTY_PLACE + slot.stage * 8, slot.phase ^ 1);
            barrier_arrive_expect(full, NUM_BYTES);
            // With a gate, boxes take turns at eight rows of each half. Terms of eight rows follow each other.
            if (SHARE_W == 1 && GATED) {
                copy_box_4d(codes, code_map, code_column, row / 16, full);
                copy_box_4d(terms, term_map, term_column, row / 16, full);
            } else if (SHARE_W == 1) {
                copy_box(codes, code_map, code_column, row, full);
                copy_box(terms, term_map, term_column, row / 8, full);
            } else if (GATED) {
                multicast_box_4d(codes, code_map, code_column, row / 16, full, mask);
                multicast_box_4d(terms, term_map, term_column, row / 16, full, mask);
            } else {
                multicast_box(codes, code_map, code_column, row, full, mask);
                multicast_box(terms, term_map, term_column, row / 8, full, mask);
            }
            slot.advance();
        }
    }
}

// One thread keeps the other ring full of tiles of x; see produce_x of gemm_produce.cuh.
__device__ __forceinline__ void produce_rows(u32 shared, const TensorMap* map, const Place& place) {
    Slot slot;
    for (int tile = place.first_tile; tile < place.end_tile; tile += place.tile_step) {
        for (int step = place.first_step * UNIT_STEPS; step < place.last_step * UNIT_STEPS; step++) {
            const u32 full = shared + X_FULL_PLACE + slot.stage * 8;
            barrier_wait(shared + X_EMPTY_PLACE + slot.stage * 8, slot.phase ^ 1);
            barrier_arrive_expect(full, place.num_rows * STEP_BYTES);
            copy_box(shared + X_PLACE + slot.stage * X_BYTES, map, step * STEP_VALUES, place.first_row, full);
            slot.advance();
        }
    }
}
