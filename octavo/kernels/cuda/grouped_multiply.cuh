// The warpgroups that unpack weights and multiply them; see grouped_gemm.cu.

#pragma once

#include "grouped_unpack.cuh"
#include "wgmma_registers.cuh"

constexpr int CHUNKS = SLICES / CHUNK;  // of a unit
static_assert(CHUNKS % 2 == 0 && STEP_SLICES % CHUNK == 0, "chunks take turns at two sets of registers");

// Rings as a warpgroup sees them.
struct Consumer : Warpgroup {
    u32 codes_empty;            // this thread's barrier to arrive at, of stage 0; 0 if it has none
    int num_refills;            // stages of codes to be loaded again: blocks may be gone when others are released
    Slot rows;                  // of x, to be multiplied
    SlotOf<CODE_STAGES> codes;  // to be unpacked

    __device__ __forceinline__ Consumer(u32 shared, const Place& place)
        : Warpgroup(shared),
          codes_empty(0),
          num_refills(place.num_tiles() * (place.last_step - place.first_step) - CODE_STAGES) {
        // Lanes of each warp arrive at one block each of those that share W with it.
        const int lane = thread % 32;
        if (lane < SHARE_W) {
            const u32 own = shared + CODES_EMPTY_PLACE;
            codes_empty = CLUSTER == 1 ? own : cluster_address(own, Place::rank(place.part, lane));
        }
    }

    __device__ __forceinline__ void load(Weights& weights) const {
        barrier_wait(shared + CODES_FULL_PLACE + codes.stage * 8, codes.phase);
        const int block = codes.stage * GROUPS + group;
        weights.load(shared + CODES_PLACE + block * BLOCK_CODE_BYTES, shared + TERMS_PLACE + block * BLOCK_TERM_BYTES,
                     thread);
    }

    __device__ __forceinline__ void wait_for_rows() const {
        barrier_wait(shared + X_FULL_PLACE + rows.stage * 8, rows.phase);
    }

    // Once a warp's values of a unit are unpacked.
    __device__ __forceinline__ void release_codes() {
        if (CLUSTER == 1) {
            if (thread % 32 == 0) barrier_arrive(shared + CODES_EMPTY_PLACE + codes.stage * 8);
        } else if (num_refills-- > 0 && codes_empty != 0) {
            barrier_arrive_cluster(codes_empty + codes.stage * 8);
        }
        codes.advance();
    }

    // Once a stage of x is multiplied.
    __device__ __forceinline__ void release_rows(int stage) const {
        if (thread == 0) barrier_arrive(shared + X_EMPTY_PLACE + stage * 8);
    }

    // Begins to multiply a chunk of values by those of x from a slice of its stage on.
    __device__ __forceinline__ void issue(
        const u32 (&values)[CHUNK][4], int first_slice, float (&sums)[SUMS], bool accumulates) const {
        const u64 b = describe_tile(shared + X_PLACE + rows.stage * X_BYTES);
        multiply_fence();
#pragma unroll
        for (int i = 0; i < CHUNK; i++) {
#pragma unroll
            for (int row = 0; row < ROWS; row += MMA_ROWS) {
                auto& part = reinterpret_cast<float(&)[MMA_ROWS / 2]>(sums[row / 2]);
                multiply(part, values[i], b + row * STEP_BYTES / 16 + 2 * (first_slice + i), i > 0 || accumulates);
            }
        }
        multiply_commit();
    }
};

// With as many rows as an instruction has, there are registers for two chunks.
#if MMA_ROWS == ROWS

// A warpgroup's sums of a tile. While the tensor cores multiply a chunk, it unpacks the next one into other registers.
__device__ __forceinline__ void multiply_tile(Consumer& consumer, int num_units, float (&sums)[SUMS]) {
    Weights weights;
    u32 values[2][CHUNK][4];
    const auto unpack = [&](int chunk) {
        u32 next[CHUNK][4];
        weights.subtract(chunk * CHUNK, next);
        weights.scale(next, values[chunk % 2]);
    };
    consumer.load(weights);
    unpack(0);
    int last_stage = 0;
    for (int unit = 0;; unit++) {
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const int slice = chunk * CHUNK % STEP_SLICES;
            const bool is_first = unit == 0 && chunk == 0;
            if (slice == 0) consumer.wait_for_rows();
            consumer.issue(values[chunk % 2], slice, sums, !is_first);
            // The chunk before is multiplied: its registers are free, and so may be its stage.
            multiply_wait<1>();
            if (slice == 0 && !is_first) consumer.release_rows(last_stage);
            if (slice + CHUNK == STEP_SLICES) {
                last_stage = consumer.rows.stage;
                consumer.rows.advance();
            }
            if (chunk + 1 < CHUNKS) unpack(chunk + 1);
        }
        consumer.release_codes();
        if (unit + 1 == num_units) break;
        consumer.load(weights);
        unpack(0);
    }
    multiply_wait<0>();
    consumer.release_rows(last_stage);
}

#else

// The same where there are registers for one chunk only: it unpacks the next one but for the last step, and the tensor
// cores multiply for other warpgroups meanwhile.
__device__ __forceinline__ void multiply_tile(Consumer& consumer, int num_units, float (&sums)[SUMS]) {
    Weights weights;
    u32 values[CHUNK][4], next[CHUNK][4];
    consumer.load(weights);
    weights.subtract(0, next);
    for (int unit = 0; unit < num_units; unit++) {
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const int slice = chunk * CHUNK % STEP_SLICES;
            if (slice == 0) consumer.wait_for_rows();
            weights.scale(next, values);
            consumer.issue(values, slice, sums, unit > 0 || chunk > 0);
            if (chunk + 1 < CHUNKS) {
                weights.subtract((chunk + 1) * CHUNK, next);
            } else {
                consumer.release_codes();
                if (unit + 1 < num_units) {
                    consumer.load(weights);
                    weights.subtract(0, next);
                }
            }
            multiply_wait<0>();
            if (slice + CHUNK == STEP_SLICES) {
                consumer.release_rows(consumer.rows.stage);
                consumer.rows.advance();
            }
        }
    }
}

#endif
