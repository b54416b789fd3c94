// Codes of 4 bits to the values that tensor cores multiply, in registers; see octavo/kernels/grouped.py for the order.

#pragma once

#include "gemm_layout.cuh"

// Two 16-bit values at a time.
#if HALF
#define PAIR_TYPE "f16x2"
#else
#define PAIR_TYPE "bf16x2"
#endif

__device__ __forceinline__ u32 multiply_pairs(u32 a, u32 b) {
    u32 result;
    asm("mul.rn." PAIR_TYPE " %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

__device__ __forceinline__ u32 multiply_add_pairs(u32 a, u32 b, u32 c) {
    u32 result;
    asm("fma.rn." PAIR_TYPE " %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}

__device__ __forceinline__ u32 pair_of(float value) {
    u32 result;
    asm("cvt.rn." PAIR_TYPE ".f32 %0, %1, %1;" : "=r"(result) : "f"(value));
    return result;
}

constexpr int SLICES = UNIT / 16, STEP_SLICES = STEP_VALUES / 16;  // what an instruction multiplies: 16 values of K

// A code in the low bits of 16 is a subnormal float. Times these it is the code / 512: in the lowest bits, or four
// bits higher; and a zero in eighths of a code is -zero / 512.
constexpr u32 LOW_STEP = HALF ? 0x78007800 : 0x7D807D80, HIGH_STEP = HALF ? 0x68006800 : 0x7B807B80;
constexpr u32 ZERO_STEP = HALF ? 0xEC00EC00 : 0xFC00FC00;

// The weights of a thread in a unit: of rows r = 16 w + l / 4 and r + 8 of a block, for warp w and lane l.
struct Weights {
    u32 words[2][4];
    u32 zeros[2], factors[2];  // each twice

    // Rows of codes are 64 bytes, whose pieces of 16 bytes TMA swizzles within 512 bytes.
    __device__ __forceinline__ void load(u32 codes, u32 terms, int thread) {
        const int row = thread / 32 * 16 + thread % 32 / 4, piece = (thread % 4) ^ (row / 2 % 4);
        const u32 place = codes + row * CODE_BYTES + piece * 16;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const Words found = load_shared<Words>(place + i * 8 * CODE_BYTES);
#pragma unroll
            for (int j = 0; j < 4; j++) words[i][j] = found.words[j];
            const u32 term = load_shared_word(terms + (row + i * 8) * TERM_BYTES);
            zeros[i] = multiply_pairs((term & 0xFF) * 0x10001, ZERO_STEP);
            factors[i] = pair_of(__uint_as_float(term & ~0xFFu));
        }
    }

    // The codes of a chunk of slices less their zeros, over 512.
    __device__ __forceinline__ void subtract(int first_slice, u32 (&values)[CHUNK][4]) const {
#pragma unroll
        for (int i = 0; i < CHUNK * 4; i++) {
            const int slice = first_slice + i / 4, row = i % 2;
            const u32 word = words[row][slice % 4], codes = i % 4 < 2 ? word : word >> 8;
            const u32 mask = slice < 4 ? 0x000F000F : 0x00F000F0, step = slice < 4 ? LOW_STEP : HIGH_STEP;
            values[i / 4][i % 4] = multiply_add_pairs(codes & mask, step, zeros[row]);
        }
    }

    // Those times their scales, as wgmma takes them. That is not moved before a wait for the tensor cores.
    __device__ __forceinline__ void scale(const u32 (&from)[CHUNK][4], u32 (&values)[CHUNK][4]) const {
#pragma unroll
        for (int i = 0; i < CHUNK * 4; i++)
            asm volatile("mul.rn." PAIR_TYPE " %0, %1, %2;"
                         : "=r"(values[i / 4][i % 4])
                         : "r"(from[i / 4][i % 4]), "r"(factors[i % 2]));
    }
};
