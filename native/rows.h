// Operations on the rows of a step: norms, gates, gathers.
#pragma once

#include "lanes.h"
#include "team.h"
#include "weights.h"

namespace octavo {

constexpr int64_t kRowsPerChunk = 8;

inline int64_t chunks_of(int64_t rows) { return (rows + kRowsPerChunk - 1) / kRowsPerChunk; }

// Root-mean-square norm of each row, of x or of x + residual; the sum then takes the residual's place.
struct RmsNorm {
    const void* x;
    void* residual;  // null: norm x
    void* to;
    const void* weight;
    int64_t num_rows, size;
    float eps;
    Type type, weight_type;
    int64_t count_chunks() const { return chunks_of(num_rows); }
    void run(int64_t chunk) const;
};

// Layer norm of each row, of x or of x + residual; the sum then takes the residual's place.
struct LayerNorm {
    const void* x;
    void* residual;            // null: norm x
    void* to;
    const void *weight, *bias;  // of x's type; null: none
    int64_t num_rows, size;
    float eps;
    Type type;
    int64_t count_chunks() const { return chunks_of(num_rows); }
    void run(int64_t chunk) const;
};

// Activations beside those of GEMMs' gates.
enum RowActivation : int32_t { kGelu = 3, kRelu = 4, kReluSquared = 5 };

// act(x) or act(x) * times, into the same memory as x or other.
struct Activate {
    const void *x, *times;  // times null: none
    void* to;
    int64_t num_rows, size;
    int64_t x_stride, times_stride, to_stride;  // elements from a row to the next
    int32_t activation;
    Type type;
    int64_t count_chunks() const { return chunks_of(num_rows); }
    void run(int64_t chunk) const;
};

// Rows of a table.
struct Gather {
    const unsigned char* table;
    const int64_t* index;
    unsigned char* to;
    int64_t num_rows, row_bytes;
    int64_t count_chunks() const { return (num_rows + 63) / 64; }
    void run(int64_t chunk) const;
};

// Experts from number `first` on return what they get: their shares are added up, and the highest of a token's other
// experts stands in their place with a share of 0.
struct SplitIdentities {
    const int64_t* chosen;  // [rows, num_chosen], as all but `kept`
    const float* shares;
    int64_t* real;
    float* real_shares;
    float* kept;  // [rows]
    int64_t num_rows, num_chosen, first;
    int64_t count_chunks() const { return (num_rows + 63) / 64; }
    void run(int64_t chunk) const;
};

// What values are multiplied by, given the sums of their squares.
inline Lanes norm_scale(const Lanes& squares, int64_t size, float eps) {
    return splat(1.f / std::sqrt(sum(squares) / (float)size + eps));
}

// Values of mean square one times the norm's weight; a weight of x's type multiplies the rounded value.
template <class T, class W>
inline Lanes weigh_normed(const Lanes& normed, const Lanes& weight) {
    if constexpr (std::is_same_v<T, W> && sizeof(T) == 2) {
        T rounded[kLanes];
        store(rounded, normed);
        return load(rounded) * weight;
    } else {
        return normed * weight;
    }
}

// The norm of `size` values, as the whole model's rows and the heads of queries and keys use it.
template <class T, class W>
inline void rms_norm_row(const T* x, T* to, const W* weight, int64_t size, float eps) {
    Lanes squares = splat(0.f);
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
        const Lanes v = load(x + i);
        squares = fma(v, v, squares);
    }
    if (i < size) {
        const Lanes v = load_some(x + i, size - i);
        squares = fma(v, v, squares);
    }
    const Lanes scale = norm_scale(squares, size, eps);
    const auto normed = [&](const Lanes& v, const Lanes& w) { return weigh_normed<T, W>(v * scale, w); };
    for (i = 0; i + kLanes <= size; i += kLanes) store(to + i, normed(load(x + i), load(weight + i)));
    if (i < size) store_some(to + i, normed(load_some(x + i, size - i), load_some(weight + i, size - i)), size - i);
}

}  // namespace octavo
