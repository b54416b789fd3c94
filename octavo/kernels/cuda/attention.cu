// Decode attention of few rows for Hopper: norms and rotation of a row's new token, its store in the cache, attention.
//
// A cluster of thread blocks has one row and key/value head. Pieces of 16 tokens go round its warps. Before the kernel
// that computes the queries is done, each warp copies as many of its pieces into a ring of its own as fit there; no warp
// waits for another's. A block prepares the queries in shared memory, then each warp keeps a softmax of its own over its
// pieces. At the end it sends its sums to the blocks of the cluster, each of which merges some dimensions of all warps.
//
// Both matmuls have 8 columns for the queries: scores are K Qᵀ, outputs Vᵀ Pᵀ. So a token's keys, and a dimension's
// values, are the rows of 16 that the tensor cores take.
//
// Where to read on: attention_layout.cuh has the sizes, attention_token.cuh what becomes of the new token,
// attention_pieces.cuh copies and softmax, attention_merge.cuh the end; hopper.cuh and mma.cuh have the instructions.
//
// Constants, given as macros:
//   HEAD_DIM    64 or 128
//   GROUP       query heads of a key/value head, up to 8
//   WARPS       of a block
//   CLUSTER     blocks
//   STAGES      pieces in a warp's ring
//   AT_ONCE     pieces whose scores a warp has at a time, at most STAGES
//   NORMED      whether queries and keys have norms
//   HALF        whether values are float16, else bfloat16
//   MIN_BLOCKS  that a multiprocessor's registers are enough for

#include "attention_layout.cuh"
#include "attention_merge.cuh"
#include "attention_pieces.cuh"
#include "attention_token.cuh"

// Grid: (clusters of the key/value heads, rows).
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) attend(const __grid_constant__ Operands operands) {
    extern __shared__ __align__(1024) u8 memory[];
    const u32 shared = shared_address(memory);
    const int row = blockIdx.y, head = blockIdx.x / CLUSTER, rank = blockIdx.x % CLUSTER;
    const int warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0), lane = threadIdx.x % 32;
    const int num_rows = load_word(operands.counts + 1), length = load_word(operands.seq_lens + row);
    const int slot = load_word(operands.slots + row * operands.slot_words);
    if (row >= num_rows) {
        // A launch in which no block waits could end before its predecessor.
        wait_for_predecessor();
        return;
    }
    const Context context(length);
    const int own = warp * CLUSTER + rank;  // this warp among the cluster's
    u16* cache = operands.kv_cache + head * operands.head_stride;
    Pieces pieces(operands, context, cache, slot, shared + warp * RING_BYTES, own);
#pragma unroll 1
    for (int i = 0; i < STAGES; i++) pieces.request(i);
    if (threadIdx.x == 0) {
        barrier_init(shared + ARRIVED_PLACE, 1);
        barrier_arrive_expect(shared + ARRIVED_PLACE, context.num_warps * (PARTIAL_BYTES + SUM_BYTES));
        fence_barrier_init();
    }
    __syncwarp();
    cluster_arrive();

    const Factors factors(operands, row);
    // The block that has the last piece stores the new token.
    u16* place = nullptr;
    if (context.last_warp() % CLUSTER == rank) place = cache + pieces.offset(context.end);
    cluster_wait();
    wait_for_predecessor();
    launch_dependents();
    prepare_token(shared, operands, factors, row, head, place);
    __syncthreads();

    if (pieces.count > 0) {
        u32 queries[WORDS];
        load_queries(queries, shared, lane);
        Softmax softmax;
        const float scale = operands.scale * LOG2E;
#pragma unroll 1
        for (int i = 0; i < pieces.count; i += AT_ONCE) {
            await_copy_groups<STAGES - AT_ONCE>();
            __syncwarp();
            if (i + AT_ONCE >= pieces.count && context.last_warp() == own)
                insert_token(shared, pieces.stage(pieces.count - 1), context.end % PIECE, lane);
            softmax.add(pieces, i, queries, scale);
            __syncwarp();
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) pieces.request(i + j + STAGES);
        }
        softmax.finish();
        send(softmax, shared, own, lane);
    }
    if (rank < MERGERS) {
        barrier_wait_cluster(shared + ARRIVED_PLACE, 0);
        merge(shared, rank, context.num_warps, operands.out + row * operands.out_stride + head * GROUP * HEAD_DIM);
    }
}
