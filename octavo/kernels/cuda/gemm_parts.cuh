// How warpgroups of a cluster add up their sums of parts of K; see gemm.cu.

#pragma once

#include "gemm_layout.cuh"

// Where a warpgroup finds the sums of other parts: each thread those with the same place in other blocks.
struct Pieces {
    static constexpr int BYTES = OWN_SUMS * THREADS_OF_GROUP * 4;
    u32 first;    // this thread's
    u32 barrier;  // all have come

    __device__ __forceinline__ explicit Pieces(const Warpgroup& consumer)
        : first(consumer.shared + X_PLACE + consumer.group * (PARTS - 1) * BYTES + consumer.thread * 16),
          barrier(consumer.shared + MERGED_PLACE + consumer.group * 8) {}
};

// The barriers of sums; for one thread.
__device__ __forceinline__ void init_part_barriers(u32 shared) {
    barrier_init(shared + DONE_PLACE, GROUPS * PARTS);
    for (int group = 0; group < GROUPS; group++) {
        const u32 merged = shared + MERGED_PLACE + group * 8;
        barrier_init(merged, 1);
        barrier_arrive_expect(merged, (PARTS - 1) * Pieces::BYTES);
    }
}

// Sends each block that has another part of the same tile the sums of those rows that it writes.
__device__ __forceinline__ void send_sums(const Warpgroup& consumer, const Place& place, const float (&sums)[SUMS]) {
    const Pieces pieces(consumer);
    // A ring takes in others' sums once no warpgroup needs it any more.
    if (consumer.thread < PARTS) {
        const int rank = Place::rank(consumer.thread, place.row_rank);
        barrier_arrive_cluster(cluster_address(consumer.shared + DONE_PLACE, rank));
    }
    barrier_wait(consumer.shared + DONE_PLACE, 0);
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        if (part == place.part) continue;
        const int rank = Place::rank(part, place.row_rank);
        const int piece = (place.part - part + PARTS) % PARTS - 1;
        const u32 to = cluster_address(pieces.first + piece * Pieces::BYTES, rank);
        const u32 barrier = cluster_address(pieces.barrier, rank);
#pragma unroll
        for (int i = 0; i < OWN_SUMS; i += 4)
            store_cluster(to + i * THREADS_OF_GROUP * 4, &sums[part * OWN_SUMS + i], barrier);
    }
}

// Adds what the other parts have sent to the block's own sums, which begin at `first`.
__device__ __forceinline__ void add_received(const Warpgroup& consumer, float (&sums)[SUMS], int first) {
    const Pieces pieces(consumer);
    barrier_wait_cluster(pieces.barrier, 0);
#pragma unroll
    for (int piece = 0; piece < PARTS - 1; piece++) {
#pragma unroll
        for (int i = 0; i < OWN_SUMS; i += 4) {
            const float4 values = load_shared_floats(pieces.first + piece * Pieces::BYTES + i * THREADS_OF_GROUP * 4);
            float* own = &sums[first + i];
            own[0] += values.x, own[1] += values.y, own[2] += values.z, own[3] += values.w;
        }
    }
}
