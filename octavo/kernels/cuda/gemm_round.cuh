// How a gated GEMM rounds its outputs to e4m3 for the next one, with a scale per row; see gemm.cu.
//
// The scale needs the largest magnitude of a whole row, of which a block has a few channels. So blocks keep their
// outputs in shared memory, raise the rows' maxima in memory, meet, and write what they have kept.
//
// They may wait for each other because all run at once. Each has one tile, and there are no more than multiprocessors.
// The kernel before may still have some of these, but its blocks have all begun, and wait for none of this one's. The
// kernel behind starts when all blocks of this one have begun. Other streams and processes run no such kernels beside.

#pragma once

#include "gemm_write.cuh"

constexpr float LARGEST_E4M3 = 448, SMALLEST_SCALE = 1e-12f;
constexpr int WRITING_THREADS = GROUPS * THREADS_OF_GROUP;

// Clears what is needed later; the phase of the meeting.
__device__ __forceinline__ u32 begin_rounding(u32 shared, const Outputs& outputs) {
    Meeting& meeting = *outputs.meeting;
    const u32 phase = grid_phase(meeting.counter);
    for (int i = threadIdx.x; i < OWN_ROWS; i += WRITING_THREADS) store_shared(shared + LARGEST_PLACE + i * 4, 0.0f);
    if (blockIdx.x == 0)
        for (int i = threadIdx.x; i < Meeting::MAX_ROWS; i += WRITING_THREADS) meeting.largest[phase == 0][i] = 0;
    return phase;
}

// The scale of a row whose largest magnitude has these bits; NaN of a row with an infinity or a NaN.
__device__ __forceinline__ float scale_of(u32 largest) {
    if (largest >= 0x7F800000) return __uint_as_float(0x7FFFFFFF);
    return fmaxf(__fdiv_rn(__uint_as_float(largest), LARGEST_E4M3), SMALLEST_SCALE);
}

__device__ __forceinline__ u32 round_pair(float2 values, float factor) {
    u16 result;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(result) : "f"(values.y * factor), "f"(values.x * factor));
    return result;
}

// What a warpgroup does with the outputs that it has staged.
struct Rounder {
    static constexpr int CHUNKS = OWN_ROWS / Writer::AT_ONCE, COUNT = Writer::COUNT, PIECES = Writer::PIECES;

    const Writer& writer;
    const Outputs& outputs;
    int first_row;  // in the tile
    u32 cells;      // of the rows, in shared memory
    u32* largest;   // of all rows

    __device__ __forceinline__ Rounder(const Writer& writer, u32 phase)
        : writer(writer),
          outputs(writer.outputs),
          first_row(writer.place.part * OWN_ROWS),
          cells(writer.consumer.shared + LARGEST_PLACE),
          largest(outputs.meeting->largest[phase != 0]) {}

    // Where a chunk of AT_ONCE rows is kept beside all others: in tiles of W that this warpgroup alone has read.
    __device__ __forceinline__ static u32 staging_of(const Writer& writer, int chunk) {
        return writer.consumer.shared + chunk * WEIGHT_BYTES + writer.consumer.group * BLOCK_BYTES;
    }

    // Keeps all the OWN_ROWS rows from the tile's `first_row` on.
    __device__ __forceinline__ static void keep(const Writer& writer, const float (&sums)[SUMS], int first_row) {
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++)
            writer.stage(staging_of(writer, chunk), sums, first_row + chunk * Writer::AT_ONCE);
    }

    __device__ __forceinline__ static void sync() { named_barrier(ROUNDING_BARRIER, WRITING_THREADS); }

    // Visits this thread's pieces of rows: with the row of x, where the piece is staged, and the row's cell.
    template <typename Visit>
    __device__ __forceinline__ void visit_pieces(Visit visit) const {
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++)
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                const int in_chunk = i * Writer::STRIDE + writer.row;
                const int m = writer.find(first_row + chunk * Writer::AT_ONCE, i);
                const u32 staged = Writer::staged(staging_of(writer, chunk), in_chunk, writer.piece);
                visit(m, staged, cells + (chunk * Writer::AT_ONCE + in_chunk) * 4);
            }
    }

    // Visits rows of the tile, of which this thread has some.
    template <typename Visit>
    __device__ __forceinline__ void visit_rows(Visit visit) const {
        const Place& place = writer.place;
        for (int i = threadIdx.x; i < OWN_ROWS; i += WRITING_THREADS) {
            const int row = first_row + i;
            if (row >= place.first_own_row && row < place.num_rows) visit(place.first_row + row, cells + i * 4);
        }
    }

    // Raises the cells of rows to the largest magnitudes of their pieces.
    __device__ __forceinline__ void raise_cells() const {
        visit_pieces([&](int m, u32 staged, u32 cell) {
            u32 both = 0;  // the largest of the lower halves of words, and of the upper ones
            if (m >= 0) {
                const Piece piece = load_shared<Piece>(staged);
#pragma unroll
                for (int i = 0; i < 4; i++) both = __vmaxu2(both, piece.words[i] & 0x7FFF7FFF);
            }
#pragma unroll
            for (int lanes = 1; lanes < PIECES; lanes *= 2) both = __vmaxu2(both, __shfl_xor_sync(~0u, both, lanes));
            const u16 value = max(both & 0xFFFF, both >> 16);
            if (m >= 0 && writer.piece == 0) raise_shared(cell, __float_as_uint(widen(value)));
        });
    }

    // Multiplies pieces by what their rows' cells have, and writes them.
    __device__ __forceinline__ void write_pieces() const {
        visit_pieces([&](int m, u32 staged, u32 cell) {
            if (m < 0) return;
            const Piece piece = load_shared<Piece>(staged);
            const float factor = load_shared_float(cell);
            u32 pairs[4];
#pragma unroll
            for (int i = 0; i < 4; i++) pairs[i] = round_pair(piece.pair(i), factor);
            outputs.rounded[writer.offset(m) / 8] = make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
        });
    }

    __device__ __forceinline__ void round(u32 phase) const {
        writer.consumer.sync_group();
        raise_cells();
        sync();
        visit_rows([&](int m, u32 cell) { raise(largest + m, __float_as_uint(load_shared_float(cell))); });
        sync();
        if (threadIdx.x == 0) {
            grid_arrive(outputs.meeting->counter);
            grid_wait(outputs.meeting->counter, phase);
        }
        sync();
        visit_rows([&](int m, u32 cell) {
            const float scale = scale_of(load_relaxed(largest + m));
            store_shared(cell, __fdiv_rn(1, scale));
            if (writer.place.first_tile == 0) outputs.rounded_scales[m] = scale;
        });
        sync();
        write_pieces();
    }
};
