// GEMMs with packed weights for Hopper: y = x Wᵀ for W of 4-bit codes, of which groups of a multiple of 128 inputs
// share a scale and a zero; y may be gated, act(y₁) · y₂ for the halves of W. Blocks, clusters and outputs are those of
// gemm.cu; here is what differs.
//
// W is multiplied from registers: a warpgroup reads codes from shared memory, makes them 16-bit values, and unpacks the
// next ones while the tensor cores multiply. So there are two rings: one of tiles of x, 64 values of K a stage, and one
// of codes, 128 values a stage, with a word for each row of W, its scale and zero.
//
// Where to read on: grouped_rings.cuh has the sizes, grouped_produce.cuh the warps that load, grouped_unpack.cuh what
// becomes of codes, grouped_multiply.cuh the warps that multiply.
//
// Constants, beside those of gemm.cu:
//   CODES                bits of a code: 4
//   STAGES, CODE_STAGES  of the two rings
//   CHUNK                slices of 16 values of K that are unpacked at a time: 1, 2 or 4

#define FLOAT8 0
#define ROUNDED 0

#include "gemm_layout.cuh"
#include "gemm_outputs.cuh"
#include "gemm_parts.cuh"
#include "gemm_row_scales.cuh"
#include "gemm_write.cuh"
#include "grouped_multiply.cuh"
#include "grouped_produce.cuh"

// A warpgroup: multiply and write tile after tile.
__device__ __forceinline__ void consume(u32 shared, const Place& place, const Outputs& outputs) {
    Consumer consumer(shared, place);
    wait_for_predecessor();
    const u32 staging = shared + STAGING_PLACE + consumer.group * STAGING_BYTES;
    for (int tile = place.first_tile; tile < place.end_tile; tile += place.tile_step) {
        const int block = place.first_block(tile) + consumer.group;
        Writer writer(consumer, outputs, place, block < tile * GROUPS ? place.num_blocks : block);
        float sums[SUMS];
        multiply_tile(consumer, place.last_step - place.first_step, sums);
        if (SCALES_ROWS && tile == place.first_tile) named_barrier(SCALES_BARRIER, SCALING_THREADS);
        if (PARTS > 1) send_sums(consumer, place, sums);
        // The part is one of few, so that all sums have registers, which have no addresses.
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            if (PARTS > 1 && part != place.part) continue;
            if (PARTS > 1) add_received(consumer, sums, part * OWN_SUMS);
            writer.write(staging, sums, part * OWN_ROWS);
        }
        consumer.sync_group();
    }
}

__device__ __forceinline__ void init_barriers(u32 shared) {
    for (int i = 0; i < STAGES; i++) {
        barrier_init(shared + X_FULL_PLACE + i * 8, 1);
        barrier_init(shared + X_EMPTY_PLACE + i * 8, GROUPS);
    }
    for (int i = 0; i < CODE_STAGES; i++) {
        barrier_init(shared + CODES_FULL_PLACE + i * 8, 1);
        barrier_init(shared + CODES_EMPTY_PLACE + i * 8, GROUPS * 4 * SHARE_W);
    }
    init_part_barriers(shared);
    fence_barrier_init();
}

// Grid: clusters that share the tiles of W equally, for each group of SHARE_W tiles of x; with PARTS > 1, each cluster
// has one tile. Clusters of the same tiles of W follow each other.
extern "C" __global__ void __launch_bounds__(THREADS, 1) grouped_gemm(
    const __grid_constant__ TensorMap x_map,     // [M, K], boxes of num_tile_rows
    const __grid_constant__ TensorMap code_map,  // [N, bytes], boxes of WEIGHTS / SHARE_W; gated [N / 16, 2, 8, bytes]
    const __grid_constant__ TensorMap term_map,  // [N / 8, bytes], of all groups; gated [N / 16, 2, 1, bytes]
    const Outputs outputs,
    int num_units,         // of 128 values of K
    int group_units,       // that share a scale
    int num_tile_rows,     // of x in a tile, up to ROWS, of which all tiles have as many
    int num_row_groups,    // of SHARE_W tiles of x
    int num_weight_tiles)  // of WEIGHTS rows
{
    extern __shared__ __align__(1024) u8 memory[];
    const u32 shared = shared_address(memory);
    const Place place(
        num_units, outputs.num_rows, num_tile_rows, num_row_groups, num_weight_tiles, outputs.num_outputs);
    const bool is_producer = threadIdx.x >= GROUPS * THREADS_OF_GROUP;
    const int producer_thread = threadIdx.x - GROUPS * THREADS_OF_GROUP;
    if (producer_thread == 0) {
        init_barriers(shared);
        prefetch_map(&code_map);
        prefetch_map(&term_map);
        prefetch_map(&x_map);
    }
    announce_barriers();
    if (is_producer) {
        release_producer_registers();
        // The thread that has initialised the barriers may use its own block's at once.
        if (SHARE_W > 1) join_cluster();
        if (producer_thread == 0) produce_codes(shared, &code_map, &term_map, group_units, place);
        __syncwarp();
        if (SHARE_W == 1) join_cluster();
        if (producer_thread == 32) {
            wait_for_predecessor();
            launch_dependents();
            produce_rows(shared, &x_map, place);
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
