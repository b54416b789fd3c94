// What a GEMM's sums are multiplied by and added to, and the residual stream; see gemm.cu.

#pragma once

#include "gemm_layout.cuh"
#include "halves.cuh"

// act(gate) · up: both activations are the gate times a sigmoid.
__device__ __forceinline__ float apply_gate(float gate, float up) {
    const float z = ACTIVATION == 1 ? gate : 1.5957691216057308f * gate * (1.0f + 0.044715f * gate * gate);
    return __fdividef(gate, 1.0f + __expf(-z)) * up;
}

// What a thread's sums are multiplied by and added to, for its two rows of W.
struct ChannelPair {
    float first, second;
};

// Where the blocks of a grid meet to find the largest magnitudes of whole rows. A launch uses one half and clears the
// other, which the launch before has used.
struct Meeting {
    static constexpr int MAX_ROWS = 512;
    u32 counter[32];
    u32 largest[2][MAX_ROWS];  // bits of float32
};

struct Outputs {
    const float* row_scales;     // [M], or sums of squares [M, num_squares], a multiple of 4
    const float* weight_scales;  // [N]
    const u16* bias;             // [N], or null
    u16* out;                    // [M, num_outputs], the residual stream if ADDED; null if ROUNDED
    const u16* norm_weight;      // [num_outputs]
    u16* weighted;               // [M, num_outputs]
    float* squares;              // [M, num_outputs / BLOCK]
    uint2* rounded;              // [M, num_outputs / 8], eight e4m3 values each
    float* rounded_scales;       // [M]
    Meeting* meeting;
    int num_rows, num_outputs, num_squares, num_features;
    float eps;

    // The factor of a row's sums: its scale, or the inverse root mean square of its inputs.
    __device__ __forceinline__ float row_scale(int row) const {
        if (FLOAT8) return row_scales[row];
        const float4* squares_of_row = reinterpret_cast<const float4*>(row_scales + row * num_squares);
        float sum = 0;
#pragma unroll 4
        for (int i = 0; i < num_squares / 4; i++) {
            const float4 squares = squares_of_row[i];
            sum += (squares.x + squares.y) + (squares.z + squares.w);
        }
        return rsqrtf(sum / num_features + eps);
    }

    // A vector's values for the thread whose first row of W gives this output; the other is the up projection's, or
    // eight outputs further.
    template <typename Load>
    __device__ __forceinline__ ChannelPair pair(int output, Load load) const {
        const int other = GATED ? num_outputs + output : output + 8;
        const bool has_other = GATED ? output < num_outputs : other < num_outputs;
        return {output < num_outputs ? load(output) : 0, has_other ? load(other) : 0};
    }

    __device__ __forceinline__ ChannelPair scales(int output) const {
        if (!FLOAT8) return {1, 1};
        return pair(output, [&](int i) { return weight_scales[i]; });
    }

    __device__ __forceinline__ ChannelPair shifts(int output) const {
        if (bias == nullptr) return {0, 0};
        return pair(output, [&](int i) { return widen(bias[i]); });
    }
};

// Eight outputs of a row, 16 bits each.
struct alignas(16) Piece {
    u32 words[4];

    __device__ __forceinline__ float2 pair(int i) const {
        return make_float2(widen(u16(words[i])), widen(u16(words[i] >> 16)));
    }
};

// Adds eight outputs, which are rounded, to the residual stream, and leaves what the norm behind needs. Returns the sum
// of squares.
__device__ __forceinline__ float add_piece(
    const Outputs& outputs, u64 place, const Piece& piece, const Piece& residual, const Piece& norm_weight) {
    Piece sums, weighted;
    float square = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 result = piece.pair(i), stream = residual.pair(i), factor = norm_weight.pair(i);
        sums.words[i] = pack_pair(result.x + stream.x, result.y + stream.y);
        const float2 sum = sums.pair(i);
        weighted.words[i] = pack_pair(sum.x * factor.x, sum.y * factor.y);
        square += sum.x * sum.x + sum.y * sum.y;
    }
    *reinterpret_cast<Piece*>(outputs.out + place) = sums;
    *reinterpret_cast<Piece*>(outputs.weighted + place) = weighted;
    return square;
}
