// 16-bit values and the floats that they stand for; HALF says whether they are float16, else bfloat16.

#pragma once

#include "hopper.cuh"

// Two floats rounded to two values in a word, the first in its lower half.
__device__ __forceinline__ u32 pack_pair(float low, float high) {
    u32 pair;
#if HALF
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#endif
    return pair;
}

__device__ __forceinline__ float2 unpack_pair(u32 pair) {
#if HALF
    float2 values;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}\n"
        : "=f"(values.x), "=f"(values.y)
        : "r"(pair));
    return values;
#else
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000));
#endif
}

__device__ __forceinline__ float widen(u16 value) {
    float result;
#if HALF
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value));
#else
    result = __uint_as_float(u32(value) << 16);
#endif
    return result;
}
