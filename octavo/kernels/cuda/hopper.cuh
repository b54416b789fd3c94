// What Hopper's kernels are made of, one PTX instruction each: barriers in shared memory (mbarrier), copies of tiles
// (TMA), thread-block clusters, programmatic dependent launch. Addresses of shared memory are 32-bit numbers.
// The PTX ISA manual describes all of them, in the chapter that each section names.

#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// A CUtensorMap, which cuTensorMapEncodeTiled fills on the host; a kernel takes it as `const __grid_constant__`.
struct alignas(64) TensorMap {
    u64 words[16];
};

__device__ __forceinline__ u32 shared_address(const void* pointer) { return u32(__cvta_generic_to_shared(pointer)); }

// ---- mbarrier: a phase is complete when all arrivals and all announced bytes have come; then the next one begins.

__device__ __forceinline__ void barrier_init(u32 barrier, u32 num_arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(num_arrivals) : "memory");
}

// Makes initialised barriers visible to the cluster and to TMA.
__device__ __forceinline__ void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at a barrier of any thread block of the cluster, after what this thread has read. Others need not see what it
// has written: `.release.cluster` would be a fence of the whole device (MEMBAR.ALL.GPU), which takes a microsecond.
__device__ __forceinline__ void barrier_arrive_cluster(u32 cluster_barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_barrier) : "memory");
}

// Arrives, and announces bytes that copies will bring.
__device__ __forceinline__ void barrier_arrive_expect(u32 barrier, u32 num_bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(num_bytes) : "memory");
}

// Waits until the phase of this parity (0, 1, 0, ...) is complete. Of a new barrier, parity 1 is.
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "retry:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra retry;\n"
        "}\n" ::"r"(barrier), "r"(parity) : "memory");
}

// The same for what other thread blocks of the cluster have stored here.
__device__ __forceinline__ void barrier_wait_cluster(u32 barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "retry:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra retry;\n"
        "}\n" ::"r"(barrier), "r"(parity) : "memory");
}

// ---- bar: a barrier of some of a thread block's threads, by number (0 is __syncthreads).

__device__ __forceinline__ void named_barrier(u32 number, u32 num_threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(num_threads) : "memory");
}

// Arrives at one, and goes on.
__device__ __forceinline__ void named_barrier_arrive(u32 number, u32 num_threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(num_threads) : "memory");
}

// ---- Thread-block clusters

__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// The address, for the whole cluster, of what lies at `address` in the thread block of this rank.
__device__ __forceinline__ u32 cluster_address(u32 address, u32 rank) {
    u32 result;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(rank));
    return result;
}

// A barrier of all the cluster's threads, which orders no writes but those of fences before.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Stores 16 bytes in a thread block of the cluster, and counts them at a barrier there.
__device__ __forceinline__ void store_cluster(u32 cluster_address, const float* values, u32 cluster_barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                     cluster_address),
                 "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3]), "r"(cluster_barrier)
                 : "memory");
}

// ---- TMA: one thread copies a box of a tensor; missing rows and columns become zeros. Coordinates are elements.

// How long the L2 cache keeps what is read, as `createpolicy` encodes it for all of a tensor: READ_ONCE leaves first,
// READ_AGAIN last.
constexpr u64 READ_ONCE = 0x12F0000000000000, READ_AGAIN = 0x14F0000000000000;

__device__ __forceinline__ void prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void copy_box(
    u32 to, const TensorMap* map, int column, int row, u32 barrier, u64 policy = READ_ONCE) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
        : "memory");
}

// Copies to the same place in each thread block of the mask, and counts the bytes at the same barrier there.
__device__ __forceinline__ void multicast_box(
    u32 to, const TensorMap* map, int column, int row, u32 barrier, u16 mask, u64 policy = READ_ONCE) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
        " [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(mask), "l"(policy)
        : "memory");
}

// Of a tensor of four dimensions, of which the two in the middle are whole in each box.
__device__ __forceinline__ void copy_box_4d(
    u32 to, const TensorMap* map, int column, int block, u32 barrier, u64 policy = READ_ONCE) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%2, 0, 0, %3}], [%4], %5;" ::"r"(to),
        "l"(map), "r"(column), "r"(block), "r"(barrier), "l"(policy)
        : "memory");
}

__device__ __forceinline__ void multicast_box_4d(
    u32 to, const TensorMap* map, int column, int block, u32 barrier, u16 mask, u64 policy = READ_ONCE) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
        " [%0], [%1, {%2, 0, 0, %3}], [%4], %5, %6;" ::"r"(to),
        "l"(map), "r"(column), "r"(block), "r"(barrier), "h"(mask), "l"(policy)
        : "memory");
}

// What threads have written to shared memory comes before what TMA and tensor cores do there from now on.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- Shared memory

// 16 bytes.
struct alignas(16) Words {
    u32 words[4];
};

// Any type of 16 bytes, made of four words.
template <typename T>
__device__ __forceinline__ T load_shared(u32 address) {
    T values;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(values.words[0]), "=r"(values.words[1]), "=r"(values.words[2]), "=r"(values.words[3])
                 : "r"(address)
                 : "memory");
    return values;
}

__device__ __forceinline__ float4 load_shared_floats(u32 address) {
    float4 values;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(values.x), "=f"(values.y), "=f"(values.z), "=f"(values.w)
                 : "r"(address)
                 : "memory");
    return values;
}

__device__ __forceinline__ float2 load_shared_pair(u32 address) {
    float2 values;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(values.x), "=f"(values.y) : "r"(address) : "memory");
    return values;
}

__device__ __forceinline__ u32 load_shared_word(u32 address) {
    u32 value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

__device__ __forceinline__ void store_shared(u32 address, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

__device__ __forceinline__ float load_shared_float(u32 address) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
}

// Four transposed matrices of 8 x 8 16-bit values: lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_transposed(u32 address, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a),
                 "r"(b), "r"(c), "r"(d)
                 : "memory");
}

// Two of them; the addresses of the first 16 lanes count.
__device__ __forceinline__ void store_transposed(u32 address, u32 a, u32 b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b)
                 : "memory");
}

// ---- Programmatic dependent launch

// Waits until the kernel before is complete and its writes are visible.
__device__ __forceinline__ void wait_for_predecessor() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// ---- A barrier of all blocks of a grid, which must run at once, and numbers that they raise before. The counter's
// highest bit turns when the last block arrives, and the others are zero then: the next grid may have any size.

constexpr u32 GRID_PHASE = 1u << 31;

__device__ __forceinline__ u32 load_relaxed(const u32* address) {
    u32 value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

// To be read before this block arrives.
__device__ __forceinline__ u32 grid_phase(const u32* counter) { return load_relaxed(counter) & GRID_PHASE; }

// One thread of each block arrives, behind what threads have written that it has met.
__device__ __forceinline__ void grid_arrive(u32* counter) {
    const u32 step = blockIdx.x == 0 ? GRID_PHASE - (gridDim.x - 1) : 1;
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(step) : "memory");
}

__device__ __forceinline__ void grid_wait(const u32* counter, u32 phase) {
    u32 value;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    } while ((value & GRID_PHASE) == phase);
}

// Raises a number to at least `value`.
__device__ __forceinline__ void raise(u32* address, u32 value) {
    asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void raise_shared(u32 address, u32 value) {
    asm volatile("red.relaxed.cta.shared::cta.max.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// ---- Registers: a warpgroup gives some back or takes more.

template <int COUNT>
__device__ __forceinline__ void release_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
