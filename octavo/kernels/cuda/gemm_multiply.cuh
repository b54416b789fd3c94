// The warpgroups that multiply 8-bit and 16-bit values; see gemm.cu.

#pragma once

#include "gemm_layout.cuh"
#include "wgmma.cuh"

// The tensor cores add float8 products with fewer bits than float32 has. So the sum of every 256 features is added to a
// float32 sum, if a warpgroup has registers for both.
#define EXACT (FLOAT8 && ROWS <= 128)

// A stage as a warpgroup sees it.
struct Consumer : Warpgroup {
    u32 empty_barrier;  // this thread's to arrive at, of stage 0; 0 if it has none
    int num_refills;    // stages that will be loaded again: blocks may be gone when others are released

    __device__ __forceinline__ Consumer(u32 shared, const Place& place)
        : Warpgroup(shared),
          empty_barrier(0),
          num_refills(place.num_tiles() * (place.last_step - place.first_step) - STAGES) {
        // Threads of a warpgroup arrive at one block each of those that share W with it.
        if (thread < SHARE_W) {
            const u32 own = shared + EMPTY_PLACE;
            empty_barrier = CLUSTER == 1 ? own : cluster_address(own, Place::rank(place.part, thread));
        }
    }

    __device__ __forceinline__ void issue(const Slot& slot, float (&sums)[SUMS], int accumulates) const {
        barrier_wait(shared + FULL_PLACE + slot.stage * 8, slot.phase);
        const u64 a = describe_tile(shared + slot.stage * WEIGHT_BYTES + group * BLOCK_BYTES);
        const u64 b = describe_tile(shared + X_PLACE + slot.stage * X_BYTES);
        multiply_fence();
#pragma unroll
        for (int i = 0; i < STEP_BYTES / 32; i++) {
#pragma unroll
            for (int row = 0; row < ROWS; row += MMA_ROWS) {
                auto& part = reinterpret_cast<float(&)[MMA_ROWS / 2]>(sums[row / 2]);
                multiply(part, a + 2 * i, b + row * STEP_BYTES / 16 + 2 * i, i > 0 || accumulates);
            }
        }
        multiply_commit();
    }

    __device__ __forceinline__ void release(int stage) {
        if (num_refills-- <= 0 || empty_barrier == 0) return;
        if (CLUSTER == 1) {
            barrier_arrive(empty_barrier + stage * 8);
        } else {
            barrier_arrive_cluster(empty_barrier + stage * 8);
        }
    }
};

// A warpgroup's way through the steps of a tile: it begins to multiply stages and, once that is done, releases them.
// Which MMAs are done follows from how many steps have been begun since.
struct Steps {
    Consumer& consumer;
    Slot& next;   // to be multiplied
    Slot oldest;  // not released
    int num_left;

    __device__ __forceinline__ Steps(Consumer& consumer, Slot& slot, int num_steps)
        : consumer(consumer), next(slot), oldest(slot), num_left(num_steps) {}

    __device__ __forceinline__ void begin(float (&sums)[SUMS], bool accumulates) {
        consumer.issue(next, sums, accumulates);
        next.advance();
    }

    // Releases a stage, but for the tile's last.
    __device__ __forceinline__ void release() {
        if (--num_left == 0) return;
        consumer.release(oldest.stage);
        oldest.advance();
    }
};

#if !EXACT

// A warpgroup's sums of a tile; the last stage, which is returned, is not released.
__device__ __forceinline__ int multiply_tile(Consumer& consumer, Slot& slot, int num_steps, float (&sums)[SUMS]) {
    Steps steps(consumer, slot, num_steps);
    for (int i = 0; i < num_steps; i++) {
        steps.begin(sums, i > 0);
        multiply_wait<1>();
        if (i > 0) steps.release();
    }
    multiply_wait<0>();
    return steps.oldest.stage;
}

#else

// Begins two steps, which have sums of their own.
__device__ __forceinline__ void begin_chain(Steps& steps, float (&chain)[SUMS], int count = 2) {
    steps.begin(chain, false);
    if (count == 2) steps.begin(chain, true);
}

// Adds a chain's sums to a tile's, when at most so many later steps are under way.
template <int NUM_LATER>
__device__ __forceinline__ void add_chain(
    Steps& steps, const float (&chain)[SUMS], float (&sums)[SUMS], int count = 2) {
    multiply_wait<NUM_LATER>();
    steps.release();
    if (count == 2) steps.release();
#pragma unroll
    for (int i = 0; i < SUMS; i++) sums[i] += chain[i];
}

// The same, by chains of two steps, of which the first may have one. With three warpgroups there are registers for one
// chain, and the tensor cores multiply for other warpgroups while it is added; else for the next chain.
__device__ __forceinline__ int multiply_tile(Consumer& consumer, Slot& slot, int num_steps, float (&sums)[SUMS]) {
    Steps steps(consumer, slot, num_steps);
#pragma unroll
    for (int i = 0; i < SUMS; i++) sums[i] = 0;
    const int first_count = 2 - num_steps % 2, num_chains = (num_steps + 1) / 2;
    float even[SUMS];
    begin_chain(steps, even, first_count);
    if constexpr (GROUPS == 3) {
        add_chain<0>(steps, even, sums, first_count);
        for (int i = 1; i < num_chains; i++) {
            begin_chain(steps, even);
            add_chain<0>(steps, even, sums);
        }
    } else {
        float odd[SUMS];
        int count = first_count;
        int i = 1;
        for (; i + 1 < num_chains; i += 2) {
            begin_chain(steps, odd);
            add_chain<2>(steps, even, sums, count);
            count = 2;
            begin_chain(steps, even);
            add_chain<2>(steps, odd, sums);
        }
        if (i < num_chains) {
            begin_chain(steps, odd);
            add_chain<2>(steps, even, sums, count);
            add_chain<0>(steps, odd, sums);
        } else {
            add_chain<0>(steps, even, sums, count);
        }
    }
    return steps.oldest.stage;
}

#endif
