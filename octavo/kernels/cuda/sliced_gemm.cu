// GEMMs of many rows for Hopper: y = x Wᵀ of 16-bit values; y may be gated, act(y₁) · y₂ for the halves of W. Tiles are
// those of gemm.cu; here is what differs.
//
// Blocks keep no tile of x: they share all pairs of a tile of x and one of W. A slice, some tiles of x, meets all of W,
// tile by tile, before the next slice does, so that it stays in the L2 cache.
//
// Constants, beside GROUPS, ROWS, STAGES, HALF and ACTIVATION of gemm.cu:
//   SLICE  tiles of x in a slice

#define SHARE_W 1
#define PARTS 1
#define FLOAT8 0
#define NORMED 0
#define ADDED 0
#define ROUNDED 0

#include "gemm_layout.cuh"
#include "gemm_multiply.cuh"
#include "gemm_outputs.cuh"
#include "gemm_write.cuh"

// The pairs of a block, of which Place takes its number and the rows of one.
struct Pairs : Place {
    int num_x_rows, num_row_tiles;
    int pairs_of_slice;

    __device__ __forceinline__ Pairs(
        int num_steps, const Outputs& outputs, int num_tile_rows, int num_row_tiles, int num_weight_tiles)
        : Place(num_steps, outputs.num_rows, num_tile_rows, num_row_tiles, num_weight_tiles, outputs.num_outputs),
          num_x_rows(outputs.num_rows),
          num_row_tiles(num_row_tiles),
          pairs_of_slice(num_weight_tiles * SLICE) {
        first_tile = blockIdx.x;
        end_tile = num_weight_tiles * num_row_tiles;
        tile_step = gridDim.x;
    }

    // Goes to a pair, and returns its tile of W.
    __device__ __forceinline__ int enter(int pair) {
        const int in_slice = pair % pairs_of_slice, first_of_slice = pair / pairs_of_slice * SLICE;
        const int tiles_of_slice = min(SLICE, num_row_tiles - first_of_slice);
        take_rows(first_of_slice + in_slice % tiles_of_slice, num_x_rows);
        return in_slice / tiles_of_slice;
    }
};

// One thread keeps the ring full of tiles of both.
__device__ __forceinline__ void produce(u32 shared, const TensorMap* x_map, const TensorMap* weight_map, Pairs pairs) {
    wait_for_predecessor();
    launch_dependents();
    Slot slot;
    for (int pair = pairs.first_tile; pair < pairs.end_tile; pair += pairs.tile_step) {
        const int weight_row = pairs.first_block(pairs.enter(pair)) * BLOCK;
        for (int step = 0; step < pairs.last_step; step++) {
            const u32 full = shared + FULL_PLACE + slot.stage * 8, weights = shared + slot.stage * WEIGHT_BYTES;
            const int column = step * STEP_VALUES;
            barrier_wait(shared + EMPTY_PLACE + slot.stage * 8, slot.phase ^ 1);
            barrier_arrive_expect(full, WEIGHT_BYTES + pairs.num_rows * STEP_BYTES);
            GATED ? copy_box_4d(weights, weight_map, column, weight_row / 16, full)
                  : copy_box(weights, weight_map, column, weight_row, full);
            copy_box(shared + X_PLACE + slot.stage * X_BYTES, x_map, column, pairs.first_row, full, READ_AGAIN);
            slot.advance();
        }
    }
}

// A warpgroup: multiply and write pair after pair.
__device__ __forceinline__ void consume(u32 shared, Pairs pairs, const Outputs& outputs) {
    Consumer consumer(shared, pairs);
    wait_for_predecessor();
    Slot slot;
    for (int pair = pairs.first_tile; pair < pairs.end_tile; pair += pairs.tile_step) {
        const int weight_tile = pairs.enter(pair), block = pairs.first_block(weight_tile) + consumer.group;
        Writer writer(consumer, outputs, pairs, block < weight_tile * GROUPS ? pairs.num_blocks : block);
        float sums[SUMS];
        const int last_stage = multiply_tile(consumer, slot, pairs.last_step, sums);
        writer.write(shared + last_stage * WEIGHT_BYTES + consumer.group * BLOCK_BYTES, sums, 0);
        fence_async_proxy();
        consumer.sync_group();
        consumer.release(last_stage);
    }
}

// Grid: blocks that share the pairs equally, one of a multiprocessor.
extern "C" __global__ void __launch_bounds__(THREADS, 1) sliced_gemm(
    const __grid_constant__ TensorMap x_map,       // [M, K], boxes of num_tile_rows
    const __grid_constant__ TensorMap weight_map,  // [N, K], boxes of WEIGHTS; gated [N / 16, 2, 8, K]
    const Outputs outputs,
    int num_steps,         // of 128 bytes of K
    int num_tile_rows,     // of x in a tile, up to ROWS, of which all tiles have as many
    int num_row_tiles,     // of x
    int num_weight_tiles)  // of WEIGHTS rows
{
    extern __shared__ __align__(1024) u8 memory[];
    const u32 shared = shared_address(memory);
    const Pairs pairs(num_steps, outputs, num_tile_rows, num_row_tiles, num_weight_tiles);
    if (threadIdx.x == GROUPS * THREADS_OF_GROUP) {
        init_ring(shared);
        fence_barrier_init();
        prefetch_map(&weight_map);
        prefetch_map(&x_map);
    }
    __syncthreads();
    if (threadIdx.x >= GROUPS * THREADS_OF_GROUP) {
        release_producer_registers();
        if (threadIdx.x == GROUPS * THREADS_OF_GROUP) produce(shared, &x_map, &weight_map, pairs);
    } else {
        take_consumer_registers();
        consume(shared, pairs, outputs);
    }
}
