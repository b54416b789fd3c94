// out[tile, block of the cluster] = tile of x · factor: one block of each cluster loads the tile for all of them.
//
// ROWS, COLUMNS: a tile of float32 values; CLUSTER: blocks that share it. Grid (tiles · CLUSTER).
#include "share_tile.cuh"

extern "C" __global__ void share_tile(const __grid_constant__ TensorMap x, float* out, float factor, int num_columns) {
  extern __shared__ __align__(1024) float tile[];
  __shared__ alignas(8) uint64 full;
  uint32 barrier = shared_address(&full);
  uint32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(ROWS * COLUMNS * 4));
  }
  // Every block's barrier is there before any data arrives.
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;");
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
  int index = blockIdx.x / CLUSTER, tiles_across = num_columns / COLUMNS;
  if (rank == 0 && threadIdx.x == 0) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(tile)),
        "l"(&x), "r"(index % tiles_across * COLUMNS), "r"(index / tiles_across * ROWS), "r"(barrier),
        "h"(static_cast<unsigned short>((1 << CLUSTER) - 1))
        : "memory");
  }
  asm volatile(
      "{\n.reg .pred done;\nretry:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n@!done bra retry;\n}" ::"r"(barrier)
      : "memory");
  for (int i = threadIdx.x; i < ROWS * COLUMNS; i += blockDim.x) {
    out[(index * CLUSTER + rank) * ROWS * COLUMNS + i] = tile[i] * factor;
  }
}
