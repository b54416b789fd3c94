// Matrix instructions of a single warp, and how it exchanges 16-bit values; HALF says which type they have.
// A fragment is a matrix's part in the registers of each lane, as the PTX ISA manual draws it.

#pragma once

#include "halves.cuh"

__device__ __forceinline__ float exp2_of(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// sums += A B: A has 16 rows and 16 columns, B 16 rows and 8 columns.
__device__ __forceinline__ void multiply_add(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if HALF
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A matrix of 8 x 8 values, transposed: lane l has two neighbours of row l / 4.
__device__ __forceinline__ u32 transpose(u32 pair) {
    u32 result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
    return result;
}

// Four transposed matrices of 8 x 8 values: lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_transposed(u32 address, u32 (&matrices)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void store_shared_words(u32 address, const Words& value) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.words[0]), "r"(value.words[1]),
                 "r"(value.words[2]), "r"(value.words[3])
                 : "memory");
}

__device__ __forceinline__ void store_shared_word(u32 address, u32 value) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// ---- Copies of 16 bytes that a thread waits for later (cp.async), in groups.

// With no bytes to read, zeros.
__device__ __forceinline__ void copy_async(u32 to, const void* from, u32 num_bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(num_bytes) : "memory");
}

__device__ __forceinline__ void end_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most so many of the thread's last groups are under way.
template <int COUNT>
__device__ __forceinline__ void await_copy_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory");
}
