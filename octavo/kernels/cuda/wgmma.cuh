// wgmma: the four warps of a warpgroup multiply 64 rows of A by MMA_ROWS rows of B, 32 bytes of each at a time, both
// read from shared memory, and add to sums in their registers. The instruction is asynchronous and names each register,
// so that its text depends on MMA_ROWS, a macro: 32, 64, 128, 192 or 256.
//
// A thread's sums: d[4 j + 2 h + b] belongs to row 16 w + l / 4 + 8 h of A and row 8 j + 2 (l % 4) + b of B, for warp w
// and lane l.

#pragma once

#include "hopper.cuh"

#define SUM_8(d, i)                                                                                                    \
    "+f"((d)[i]), "+f"((d)[i + 1]), "+f"((d)[i + 2]), "+f"((d)[i + 3]), "+f"((d)[i + 4]), "+f"((d)[i + 5]),            \
        "+f"((d)[i + 6]), "+f"((d)[i + 7])
#define NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define NAMES_16 NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_24 NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NAMES_32 NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_40 NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define NAMES_48 NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_56 NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define NAMES_64 NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_72 NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define NAMES_80 NAMES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_88 NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define NAMES_96 NAMES_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_104 NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define NAMES_112 NAMES_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define NAMES_120 NAMES_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define NAMES_128 NAMES_120 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_8(d) SUM_8(d, 0)
#define SUMS_16(d) SUMS_8(d), SUM_8(d, 8)
#define SUMS_24(d) SUMS_16(d), SUM_8(d, 16)
#define SUMS_32(d) SUMS_24(d), SUM_8(d, 24)
#define SUMS_40(d) SUMS_32(d), SUM_8(d, 32)
#define SUMS_48(d) SUMS_40(d), SUM_8(d, 40)
#define SUMS_56(d) SUMS_48(d), SUM_8(d, 48)
#define SUMS_64(d) SUMS_56(d), SUM_8(d, 56)
#define SUMS_72(d) SUMS_64(d), SUM_8(d, 64)
#define SUMS_80(d) SUMS_72(d), SUM_8(d, 72)
#define SUMS_88(d) SUMS_80(d), SUM_8(d, 80)
#define SUMS_96(d) SUMS_88(d), SUM_8(d, 88)
#define SUMS_104(d) SUMS_96(d), SUM_8(d, 96)
#define SUMS_112(d) SUMS_104(d), SUM_8(d, 104)
#define SUMS_120(d) SUMS_112(d), SUM_8(d, 112)
#define SUMS_128(d) SUMS_120(d), SUM_8(d, 120)

// The sums' registers, and the names of the three operands after them.
#if MMA_ROWS == 32
#define NAMES NAMES_16
#define SUM_OPERANDS SUMS_16
#define OTHERS "%16", "%17", "%18"
#elif MMA_ROWS == 64
#define NAMES NAMES_32
#define SUM_OPERANDS SUMS_32
#define OTHERS "%32", "%33", "%34"
#elif MMA_ROWS == 128
#define NAMES NAMES_64
#define SUM_OPERANDS SUMS_64
#define OTHERS "%64", "%65", "%66"
#elif MMA_ROWS == 192
#define NAMES NAMES_96
#define SUM_OPERANDS SUMS_96
#define OTHERS "%96", "%97", "%98"
#elif MMA_ROWS == 256
#define NAMES NAMES_128
#define SUM_OPERANDS SUMS_128
#define OTHERS "%128", "%129", "%130"
#endif

#define TEXT_(value) #value
#define TEXT(value) TEXT_(value)

#if FLOAT8
#define SHAPE_AND_TYPES "m64n" TEXT(MMA_ROWS) "k32.f32.e4m3.e4m3"
#define LAYOUTS ""
#elif HALF
#define SHAPE_AND_TYPES "m64n" TEXT(MMA_ROWS) "k16.f32.f16.f16"
#define LAYOUTS ", 0, 0"
#else
#define SHAPE_AND_TYPES "m64n" TEXT(MMA_ROWS) "k16.f32.bf16.bf16"
#define LAYOUTS ", 0, 0"
#endif

#define WGMMA(a, b, accumulates)                                                                                       \
    "{\n"                                                                                                              \
    ".reg .pred p;\n"                                                                                                  \
    "setp.ne.b32 p, " accumulates ", 0;\n"                                                                             \
    "wgmma.mma_async.sync.aligned." SHAPE_AND_TYPES " {" NAMES "}, " a ", " b ", p, 1, 1" LAYOUTS ";\n"                \
    "}\n"
#define WGMMA_OF(others) WGMMA(others)

// Begins sums = A Bᵀ, or sums += A Bᵀ, of 32 bytes of K.
__device__ __forceinline__ void multiply(float (&sums)[MMA_ROWS / 2], u64 a, u64 b, int accumulates) {
    asm volatile(WGMMA_OF(OTHERS) : SUM_OPERANDS(sums) : "l"(a), "l"(b), "r"(accumulates));
}

// Describes a tile for wgmma: rows of 128 bytes, whose pieces of 16 bytes are swizzled as TMA does it within 1,024
// bytes, to which the tile is aligned. To begin 32 bytes further along K, add 2.
__device__ __forceinline__ u64 describe_tile(u32 address) {
    const u64 swizzle_128 = u64(1) << 62, eight_rows = u64(1024 >> 4) << 32, unused = u64(1) << 16;
    return swizzle_128 | eight_rows | unused | ((address & 0x3FFFF) >> 4);
}

// Registers that instructions before have written may be read by those that follow.
__device__ __forceinline__ void multiply_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most so many committed groups are under way.
template <int COUNT>
__device__ __forceinline__ void multiply_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(COUNT) : "memory");
}
