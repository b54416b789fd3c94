// Value-by-value operations on up to four dimensions, with the bits of PyTorch's.
#pragma once

#include "lanes.h"
#include "team.h"
#include "weights.h"

namespace octavo {

enum Combination : int32_t {
    kAdd,
    kMultiply,
    kClamp,
    kCopy,
    kSoftCap,
    kSubtract,
    kDivide,
    kSquareRoot,
    kLogistic,  // the sigmoid
    kSoftplus,
};

// The last dimension is the inner one; a stride of 0 repeats values.
struct Combine {
    const void* x;
    const void* y;  // null: number; only sums, differences, products and quotients have one
    void* to;
    float number, upper;  // a bound's lower and upper one
    int64_t sizes[4], x_strides[4], y_strides[4], to_strides[4];
    Combination kind;
    Type type, to_type;  // they differ for copies only
    static constexpr int64_t kChunk = 1 << 14;  // values
    int64_t num_rows() const { return sizes[0] * sizes[1] * sizes[2]; }
    int64_t pieces() const { return (sizes[3] + kChunk - 1) / kChunk; }
    int64_t rows_per_chunk() const { return sizes[3] < kChunk ? kChunk / (sizes[3] < 1 ? 1 : sizes[3]) : 1; }
    int64_t count_chunks() const { return (num_rows() + rows_per_chunk() - 1) / rows_per_chunk() * pieces(); }
    void run(int64_t chunk) const;
};

// xIELU (arXiv:2411.13010): x (beta + above x) for positive x, beta x + below (e^min(x, eps) - 1 - x) for others.
struct Xielu {
    const void* x;
    void* to;             // may be x
    const float* slopes;  // above, below, beta, eps
    int64_t size;
    Type type;
    static constexpr int64_t kChunk = 1 << 12;  // values
    int64_t count_chunks() const { return (size + kChunk - 1) / kChunk; }
    void run(int64_t chunk) const;
};

}  // namespace octavo
