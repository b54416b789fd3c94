// How a warpgroup turns its sums into rows of outputs; see gemm.cu.

#pragma once

#include "gemm_layout.cuh"
#include "gemm_outputs.cuh"

// A warpgroup writes a tile 64 rows of x at a time, of which threads that are neighbours write neighbouring outputs.
struct Writer {
    static constexpr int AT_ONCE = OWN_ROWS % 64 == 0 ? 64 : OWN_ROWS % 32 == 0 ? 32 : OWN_ROWS;
    static constexpr int PIECES = BLOCK_OUTPUTS / 8;  // of a row, which as many neighbouring lanes write
    static constexpr int STRIDE = THREADS_OF_GROUP / PIECES;
    static constexpr int COUNT = (AT_ONCE + STRIDE - 1) / STRIDE;  // of a thread

    const Warpgroup& consumer;
    const Outputs& outputs;
    const Place& place;
    int block;       // of W; beyond it if there is nothing to write
    int piece, row;  // the first that this thread writes
    ChannelPair scale, shift;
    Piece norm_weight;
    Piece residual[COUNT];  // of the chunk that is next

    // Loads what is there before the sums are.
    __device__ __forceinline__ Writer(
        const Warpgroup& consumer, const Outputs& outputs, const Place& place, int block)
        : consumer(consumer),
          outputs(outputs),
          place(place),
          block(block),
          piece(consumer.thread % PIECES),
          row(consumer.thread / PIECES) {
        const int lane_output = consumer.thread / 32 * (BLOCK_OUTPUTS / 4) + consumer.thread % 32 / 4;
        scale = outputs.scales(block * BLOCK_OUTPUTS + lane_output);
        shift = outputs.shifts(block * BLOCK_OUTPUTS + lane_output);
        if (ADDED && output() < outputs.num_outputs)
            norm_weight = *reinterpret_cast<const Piece*>(outputs.norm_weight + output());
        load_residual(residual, place.part * OWN_ROWS);
    }

    // Pieces of rows are swizzled, so that those of eight rows lie in different banks.
    __device__ __forceinline__ static u32 staged(u32 staging, int row, int piece) {
        return staging + row * 128 + ((piece ^ (row % 8)) * 16);
    }

    __device__ __forceinline__ int output() const { return block * BLOCK_OUTPUTS + piece * 8; }

    // The row of x of this thread's piece number `i` of a chunk; -1 if it is none.
    __device__ __forceinline__ int find(int chunk, int i) const {
        const int in_chunk = i * STRIDE + row, in_tile = chunk + in_chunk;
        const bool is_row = in_chunk < AT_ONCE && in_tile >= place.first_own_row && in_tile < place.num_rows;
        return is_row && output() < outputs.num_outputs ? place.first_row + in_tile : -1;
    }

    // Where a row's piece lies in the outputs.
    __device__ __forceinline__ u64 offset(int row) const { return u64(row) * outputs.num_outputs + output(); }

    __device__ __forceinline__ void load_residual(Piece (&to)[COUNT], int chunk) const {
#pragma unroll
        for (int i = 0; ADDED && i < COUNT; i++) {
            const int m = find(chunk, i);
            if (m >= 0) to[i] = *reinterpret_cast<const Piece*>(outputs.out + offset(m));
        }
    }

    // Scales, gates and rounds the sums of a chunk, and transposes them.
    __device__ __forceinline__ void stage(u32 staging, const float (&sums)[SUMS], int chunk) const {
        constexpr int BLOCKS = GATED ? 4 : AT_ONCE < 16 ? 1 : 2;  // of eight rows, in a store
        const int lane = consumer.thread % 32, warp = consumer.thread / 32, matrix = lane / 8;
        const int to_row = (GATED ? matrix : matrix / 2) * 8 + lane % 8;
        const u32 to = staged(staging, to_row, GATED ? warp : 2 * warp + matrix % 2);
        const u32 scales = consumer.shared + ROW_SCALE_PLACE + (lane % 4 * 2) * 4;
#pragma unroll
        for (int rows = 0; rows < AT_ONCE; rows += 8 * BLOCKS) {
            u32 packed[4];
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) {
                const int row = chunk + rows + i * 8;
                const float2 row_scale = SCALES_ROWS ? load_shared_pair(scales + row * 4) : make_float2(1, 1);
                const float* own = &sums[row / 2];
                const float a = own[0] * (row_scale.x * scale.first) + shift.first;
                const float b = own[1] * (row_scale.y * scale.first) + shift.first;
                const float c = own[2] * (row_scale.x * scale.second) + shift.second;
                const float d = own[3] * (row_scale.y * scale.second) + shift.second;
                if (GATED) {
                    packed[i] = pack_pair(apply_gate(a, c), apply_gate(b, d));
                } else {
                    packed[2 * i % 4] = pack_pair(a, b);
                    packed[2 * i % 4 + 1] = pack_pair(c, d);
                }
            }
            if constexpr (AT_ONCE < 16) {
                store_transposed(to, packed[0], packed[1]);
            } else {
                store_transposed(to + rows * 128, packed[0], packed[1], packed[2], packed[3]);
            }
        }
    }

    // Writes the results of OWN_ROWS rows from the tile's `first_row` on, by way of the tile of W that this warpgroup
    // alone has read last.
    __device__ __forceinline__ void write(u32 staging, const float (&sums)[SUMS], int first_row) {
#pragma unroll
        for (int chunk = first_row; chunk < first_row + OWN_ROWS; chunk += AT_ONCE) {
            const bool is_last = chunk + AT_ONCE == first_row + OWN_ROWS;
            if (chunk > first_row) consumer.sync_group();
            stage(staging, sums, chunk);
            consumer.sync_group();
            Piece next[COUNT];
            if (!is_last) load_residual(next, chunk + AT_ONCE);
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                const int m = find(chunk, i);
                Piece result;
                if (m >= 0) result = load_shared<Piece>(staged(staging, i * STRIDE + row, piece));
                if (ADDED) {
                    float square = m >= 0 ? add_piece(outputs, offset(m), result, residual[i], norm_weight) : 0;
#pragma unroll
                    for (int lanes = 1; lanes < PIECES; lanes *= 2) square += __shfl_xor_sync(~0u, square, lanes);
                    if (m >= 0 && piece == 0) outputs.squares[m * (outputs.num_outputs / BLOCK) + block] = square;
                } else if (m >= 0) {
                    *reinterpret_cast<Piece*>(outputs.out + offset(m)) = result;
                }
            }
#pragma unroll
            for (int i = 0; ADDED && !is_last && i < COUNT; i++) residual[i] = next[i];
        }
    }
};
