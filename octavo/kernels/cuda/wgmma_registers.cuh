// wgmma whose A lies in registers: a thread of the warpgroup has, of 16 values of K, those of rows r = 16 w + l / 4 and
// r + 8 in columns 2 (l % 4) + b and 2 (l % 4) + 8 + b, for warp w, lane l and b = 0, 1. Else as wgmma.cuh has it.

#pragma once

#include "wgmma.cuh"

#if MMA_ROWS == 32
#define REGISTER_OTHERS "{%16, %17, %18, %19}", "%20", "%21"
#elif MMA_ROWS == 64
#define REGISTER_OTHERS "{%32, %33, %34, %35}", "%36", "%37"
#elif MMA_ROWS == 128
#define REGISTER_OTHERS "{%64, %65, %66, %67}", "%68", "%69"
#elif MMA_ROWS == 192
#define REGISTER_OTHERS "{%96, %97, %98, %99}", "%100", "%101"
#elif MMA_ROWS == 256
#define REGISTER_OTHERS "{%128, %129, %130, %131}", "%132", "%133"
#endif

// A's layout is that of its registers.
#undef LAYOUTS
#define LAYOUTS ", 0"

// Begins sums = A Bᵀ, or sums += A Bᵀ, of 16 values of K; A is not changed until that is done.
// Values are pairs: row r, row r + 8, and both of them eight columns further.
__device__ __forceinline__ void multiply(float (&sums)[MMA_ROWS / 2], const u32 (&a)[4], u64 b, int accumulates) {
    asm volatile(WGMMA_OF(REGISTER_OTHERS)
                 : SUM_OPERANDS(sums)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulates));
}
