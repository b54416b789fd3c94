// GEMMs of few rows for Hopper: y = (x Wᵀ) · row scales · channel scales of float8 (e4m3) values, or y = x Wᵀ of 16-bit
// ones; y may be gated, act(y₁) · y₂ for the halves of W.
//
// A thread block multiplies 64 rows of W per warpgroup by ROWS rows of x. A producer warp keeps a ring in shared memory
// full of tiles of W, another of tiles of x, 128 bytes of K a step; the first does not wait for the kernel before. The
// other warpgroups multiply what lies in the ring: W is wgmma's A, x its B.
//
// Two blocks of a cluster that have neighbouring tiles of x share W (SHARE_W): each loads half of its tile, and TMA
// writes it to both (multicast), so that memory and L2 cache deliver it once. And blocks can divide K (PARTS): they
// exchange their sums through the cluster's shared memory, and write the results of some rows each.
//
// Norms of bfloat16 rows need no launch between two GEMMs. The one adds its outputs to the residual stream, and leaves
// the sums times the norm's weight and their sums of squares (ADDED); the other multiplies those weighted rows, and its
// own sums by the rows' inverse root mean squares (NORMED).
//
// Gated outputs can be rounded for a float8 GEMM behind, with a scale per row, if all blocks of the grid run at once,
// for they wait for each other (ROUNDED).
//
// Where to read on: gemm_layout.cuh has the sizes, gemm_produce.cuh the warps that load, gemm_multiply.cuh those that
// multiply, gemm_parts.cuh how parts are added, gemm_write.cuh and gemm_round.cuh what becomes of the sums; hopper.cuh
// and wgmma.cuh have the instructions.
//
// Constants, given as macros:
//   GROUPS      warpgroups that multiply, 1 to 3
//   ROWS        rows of x in a tile: 32, 64, 128, 192 or 256
//   STAGES      of the ring, at least 4
//   SHARE_W, PARTS: their product is the size of the cluster
//   FLOAT8      whether values are e4m3, with scales
//   HALF        whether outputs, bias and 16-bit values are float16, else bfloat16
//   ACTIVATION  0: none, 1: silu, 2: gelu_tanh
//   NORMED, ADDED, ROUNDED: see above

#include "gemm_layout.cuh"
#include "gemm_multiply.cuh"
#include "gemm_outputs.cuh"
#include "gemm_parts.cuh"
#include "gemm_produce.cuh"
#include "gemm_round.cuh"
#include "gemm_row_scales.cuh"
#include "gemm_write.cuh"

// A warpgroup: multiply and write tile after tile.
__device__ __forceinline__ void consume(u32 shared, const Place& place, const Outputs& outputs) {
    Consumer consumer(shared, place);
    wait_for_predecessor();
    u32 phase = 0;
    if constexpr (ROUNDED) phase = begin_rounding(shared, outputs);
    Slot slot;
    for (int tile = place.first_tile; tile < place.end_tile; tile += place.tile_step) {
        const int block = place.first_block(tile) + consumer.group;
        Writer writer(consumer, outputs, place, block < tile * GROUPS ? place.num_blocks : block);
        float sums[SUMS];
        const int last_stage = multiply_tile(consumer, slot, place.last_step - place.first_step, sums);
        const u32 staging = shared + last_stage * WEIGHT_BYTES + consumer.group * BLOCK_BYTES;
        if (SCALES_ROWS && tile == place.first_tile) named_barrier(SCALES_BARRIER, SCALING_THREADS);
        if (PARTS > 1) send_sums(consumer, place, sums);
        // The part is one of few, so that all sums have registers, which have no addresses.
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            if (PARTS > 1 && part != place.part) continue;
            if (PARTS > 1) add_received(consumer, sums, part * OWN_SUMS);
            if constexpr (ROUNDED) {
                Rounder::keep(writer, sums, part * OWN_ROWS);
            } else {
                writer.write(staging, sums, part * OWN_ROWS);
            }
        }
        if constexpr (ROUNDED) {
            Rounder(writer, phase).round(phase);
            return;  // a block has one tile
        }
        fence_async_proxy();
        consumer.sync_group();
        consumer.release(last_stage);
    }
}

__device__ __forceinline__ void init_barriers(u32 shared) {
    init_ring(shared);
    init_part_barriers(shared);
    fence_barrier_init();
}

// Grid: clusters that share the tiles of W equally, for each group of SHARE_W tiles of x; with PARTS > 1, each cluster
// has one tile. Clusters of the same tiles of W follow each other.
extern "C" __global__ void __launch_bounds__(THREADS, 1) gemm(
    const __grid_constant__ TensorMap x_map,       // [M, K], boxes of num_tile_rows
    const __grid_constant__ TensorMap weight_map,  // [N, K], boxes of WEIGHTS / SHARE_W; gated [N / 16, 2, 8, K]
    const Outputs outputs,
    int num_steps,         // of 128 bytes of K
    int num_tile_rows,     // of x in a tile, up to ROWS, of which all tiles have as many
    int num_row_groups,    // of SHARE_W tiles of x
    int num_weight_tiles)  // of WEIGHTS rows
{
    extern __shared__ __align__(1024) u8 memory[];
    const u32 shared = shared_address(memory);
    const Place place(
        num_steps, outputs.num_rows, num_tile_rows, num_row_groups, num_weight_tiles, outputs.num_outputs);
    const bool is_producer = threadIdx.x >= GROUPS * THREADS_OF_GROUP;
    const int producer_thread = threadIdx.x - GROUPS * THREADS_OF_GROUP;
    if (producer_thread == 0) {
        init_barriers(shared);
        prefetch_map(&weight_map);
        prefetch_map(&x_map);
    }
    announce_barriers();
    if (is_producer) {
        release_producer_registers();
        // The thread that has initialised the barriers may use its own block's at once.
        if (SHARE_W > 1) join_cluster();
        if (producer_thread == 0) produce_weights(shared, &weight_map, place);
        __syncwarp();
        if (SHARE_W == 1) join_cluster();
        if (producer_thread == 32) {
            wait_for_predecessor();
            launch_dependents();
            produce_x(shared, &x_map, place);
        } else if (SCALES_ROWS && producer_thread >= THREADS_OF_GROUP - SCALING_WARPS * 32) {
            wait_for_predecessor();
            produce_row_scales(shared, outputs, place, producer_thread % (SCALING_WARPS * 32));
        }
        __syncwarp();
        leave_cluster();
    } else {
        take_consumer_registers();
        join_cluster();
        consume(shared, place, outputs);
        leave_cluster();
    }
}
