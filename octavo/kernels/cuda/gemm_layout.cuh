// A GEMM's sizes, and which tiles a thread block has; see gemm.cu. The rings of values lie as gemm_rings.cuh has it,
// those of codes (CODES) as grouped_rings.cuh.

#pragma once

#include "hopper.cuh"

// Rows of an instruction: the assembler bounds its registers by those at the launch, and with four warpgroups, a thread
// has 128.
#if GROUPS == 3 && ROWS == 256
#define MMA_ROWS 128
#else
#define MMA_ROWS ROWS
#endif

constexpr int CLUSTER = SHARE_W * PARTS;
constexpr bool GATED = ACTIVATION != 0;
constexpr bool SCALES_ROWS = FLOAT8 || NORMED;
constexpr int BLOCK = 64;        // rows of W in a warpgroup; with a gate, every other eight are the gate's
constexpr int STEP_BYTES = 128;  // of K
constexpr int STEP_VALUES = FLOAT8 ? 128 : 64;
constexpr int THREADS_OF_GROUP = 128;
constexpr int THREADS = (GROUPS + 1) * THREADS_OF_GROUP;  // the last warpgroup produces
constexpr int WEIGHTS = GROUPS * BLOCK;
constexpr int BLOCK_OUTPUTS = GATED ? BLOCK / 2 : BLOCK;
constexpr int X_BYTES = ROWS * STEP_BYTES;
constexpr int SUMS = ROWS / 2;  // of a thread
constexpr int OWN_ROWS = ROWS / PARTS, OWN_SUMS = SUMS / PARTS;  // of which a thread writes the results

static_assert(STAGES >= 4, "two chains of two steps are under way");
static_assert(OWN_ROWS % 32 == 0 || (!GATED && OWN_ROWS <= 16), "rows are written 32 at a time, or all at once");
static_assert(!ROUNDED || (FLOAT8 && GATED), "another float8 GEMM follows");
static_assert(!ROUNDED || OWN_ROWS <= 64 * STAGES, "a warpgroup keeps its outputs in its part of the ring");
static_assert(!(ADDED && (GATED || HALF)) && !(NORMED && (FLOAT8 || HALF)), "the residual stream is bfloat16");
static_assert(GROUPS * (PARTS - 1) * OWN_SUMS * THREADS_OF_GROUP * 4 <= STAGES * X_BYTES, "others' sums fit");

// Named barriers: the row scales are there; a warpgroup's own; that of all warpgroups that round.
constexpr int SCALES_BARRIER = 1, GROUP_BARRIER = 2, ROUNDING_BARRIER = GROUP_BARRIER + GROUPS;
constexpr int SCALING_WARPS = 2, SCALING_THREADS = GROUPS * THREADS_OF_GROUP + SCALING_WARPS * 32;

#if CODES
#include "grouped_rings.cuh"
#else
#include "gemm_rings.cuh"
#endif

// A warpgroup that multiplies.
struct Warpgroup {
    u32 shared;
    int group;
    int thread;  // in the warpgroup

    __device__ __forceinline__ explicit Warpgroup(u32 shared)
        : shared(shared), group(threadIdx.x / THREADS_OF_GROUP), thread(threadIdx.x % THREADS_OF_GROUP) {}

    __device__ __forceinline__ void sync_group() const { named_barrier(GROUP_BARRIER + group, THREADS_OF_GROUP); }
};

// Which tiles a block has, and who shares them.
struct Place {
    int part, row_rank;  // in the cluster
    int first_step, last_step;
    int first_row, num_rows;  // of the tile of x
    int first_own_row;        // in the tile: those before are another tile's, too
    int first_tile, tile_step, end_tile;  // of W
    int num_blocks;  // of 64 rows of W

    __device__ __forceinline__ Place(
        int num_steps, int num_x_rows, int num_tile_rows, int num_row_groups, int num_weight_tiles, int num_outputs)
        : num_rows(num_tile_rows),
          end_tile(num_weight_tiles),
          num_blocks((num_outputs + BLOCK_OUTPUTS - 1) / BLOCK_OUTPUTS) {
        const int rank = CLUSTER == 1 ? 0 : cluster_rank();
        const int cluster = blockIdx.x / CLUSTER, num_clusters = gridDim.x / CLUSTER;
        row_rank = rank % SHARE_W;
        part = rank / SHARE_W;
        first_step = part * num_steps / PARTS;
        last_step = (part + 1) * num_steps / PARTS;
        take_rows(cluster % num_row_groups * SHARE_W + row_rank, num_x_rows);
        first_tile = cluster / num_row_groups;
        tile_step = num_clusters / num_row_groups;
    }

    // The last tiles begin early enough to be whole, for TMA takes long to fill missing rows with zeros.
    __device__ __forceinline__ void take_rows(int row_tile, int num_x_rows) {
        first_row = min(row_tile * num_rows, num_x_rows - num_rows);
        first_own_row = row_tile * num_rows - first_row;
    }

    __device__ __forceinline__ int num_tiles() const { return (end_tile - first_tile + tile_step - 1) / tile_step; }

    // The first block of W of a tile; those before `tile * GROUPS` are another tile's, too.
    __device__ __forceinline__ int first_block(int tile) const {
        return max(min(tile * GROUPS, num_blocks - GROUPS), 0);
    }

    // Of a thread block of the cluster.
    __device__ __forceinline__ static int rank(int part, int row_rank) { return part * SHARE_W + row_rank; }
};

// A position in a ring.
template <int COUNT>
struct SlotOf {
    int stage = 0;
    u32 phase = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == COUNT) {
            stage = 0;
            phase ^= 1;
        }
    }
};

using Slot = SlotOf<STAGES>;

// A warpgroup that loads leaves registers to those that multiply. A block of two warpgroups has enough.
__device__ __forceinline__ void release_producer_registers() {
    if constexpr (GROUPS > 1) release_registers<GROUPS == 2 ? 40 : 32>();
}

__device__ __forceinline__ void take_consumer_registers() {
    if constexpr (GROUPS > 1) take_registers<GROUPS == 2 ? 232 : 160>();
}

// Tells the block's other threads, and other blocks, that its barriers are initialised; see join_cluster().
__device__ __forceinline__ void announce_barriers() {
    if (CLUSTER == 1) {
        __syncthreads();
    } else {
        __syncwarp();
        cluster_arrive();
    }
}

// Waits until all blocks of the cluster have initialised their barriers.
__device__ __forceinline__ void join_cluster() {
    if (CLUSTER > 1) cluster_wait();
}

// Waits until no other block can write to this one's memory. Both kinds of warps call this on their own: where their
// code joins, the assembler would bound registers by those at the launch.
__device__ __forceinline__ void leave_cluster() {
    if (CLUSTER == 1) return;
    cluster_arrive();
    cluster_wait();
}
