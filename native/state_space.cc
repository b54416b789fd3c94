#include "state_space.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gemm.h"

namespace octavo {
namespace {

// One row's tokens, and where it finds and keeps its states.
template <class T>
struct RowStates {
    const StateRows& rows;
    const StatePages& states;
    const int32_t* table;
    int64_t start, length;            // its tokens in the step
    int64_t first_position, seq_len;  // the position of the first one, and one past that of the last

    RowStates(const StateRows& rows, const StatePages& states, int64_t row)
        : rows(rows),
          states(states),
          table(rows.block_tables + (int64_t)rows.slots[row] * rows.table_stride),
          start(rows.query_starts[row]),
          length(rows.query_starts[row + 1] - start),
          first_position(rows.seq_lens[row] - length),
          seq_len(rows.seq_lens[row]) {}

    // The state that the row starts from; null where it is zero.
    const T* initial() const { return first_position == 0 ? nullptr : at(first_position - 1); }

    // Where the state after a token goes; null if it is not kept.
    T* kept(int64_t token) const {
        const int64_t position = first_position + token;
        // A step that runs ahead may reach past the longest sequence; its results are never read.
        if (position >= end()) return nullptr;
        const bool is_last = position >= seq_len - rows.num_places;
        return is_last || (position + 1) % rows.page_size == 0 ? at(position) : nullptr;
    }

    // One past the last position that block tables have.
    int64_t end() const { return (int64_t)rows.num_columns * rows.page_size; }

    T* at(int64_t position) const {
        const int64_t block = table[std::min(position, end() - 1) / rows.page_size];
        return static_cast<T*>(states.memory) + block * states.block_stride +
               position % rows.num_places * states.place_stride;
    }
};

// Sets the results of padding tokens to zero.
template <class T>
void clear_padding(const StateRows& rows, int64_t num_tokens, int64_t size, void* to) {
    const int64_t first = rows.counts[2];
    if (first < num_tokens) std::memset(static_cast<T*>(to) + first * size, 0, (num_tokens - first) * size * sizeof(T));
}

template <class T>
Lanes load_part(const T* from, int64_t count) {
    return count == kLanes ? load(from) : load_some(from, count);
}

template <class T>
void store_part(T* to, const Lanes& x, int64_t count) {
    count == kLanes ? store(to, x) : store_some(to, x, count);
}

// Column `column` of sixteen rows of `width` values.
template <class T>
Lanes load_column(const T* rows, int64_t width, int64_t column, int64_t count) {
    float values[kLanes] = {};
    for (int64_t i = 0; i < count; ++i) values[i] = to_float(rows[i * width + column]);
    return load(values);
}

template <class T>
void store_column(T* rows, int64_t width, int64_t column, int64_t count, const Lanes& x) {
    T values[kLanes];
    store(values, x);
    for (int64_t i = 0; i < count; ++i) rows[i * width + column] = values[i];
}

// Up to sixteen channels of a row.
template <class T>
void convolve(const CausalConv& conv, const RowStates<T>& row, int64_t channel, int64_t count) {
    const int64_t width = conv.width, num_before = width - 1;
    const T* x = static_cast<const T*>(conv.x) + row.start * conv.x_stride + channel;
    T* to = static_cast<T*>(conv.to) + row.start * conv.channels + channel;
    const T* weight = static_cast<const T*>(conv.weight) + channel * width;
    Lanes weights[kMaxConvWidth], before[kMaxConvWidth];
    for (int64_t k = 0; k < width; ++k) weights[k] = load_column(weight, width, k, count);
    const T* initial = row.initial();
    for (int64_t k = 0; k < num_before; ++k)
        before[k] = initial == nullptr ? splat(0.f) : load_column(initial + channel * num_before, num_before, k, count);
    const Lanes bias =
        conv.bias == nullptr ? splat(0.f) : load_part(static_cast<const T*>(conv.bias) + channel, count);
    const auto input = [&](int64_t token) {
        return token < 0 ? before[num_before + token] : load_part(x + token * conv.x_stride, count);
    };
    for (int64_t token = 0; token < row.length; ++token) {
        Lanes sum = bias;
        for (int64_t k = 0; k < width; ++k) sum = fma(input(token - num_before + k), weights[k], sum);
        store_part(to + token * conv.channels, apply_gate(kSilu, sum), count);
        T* kept = row.kept(token);
        if (kept == nullptr) continue;
        for (int64_t k = 0; k < num_before; ++k)
            store_column(kept + channel * num_before, num_before, k, count, input(token - num_before + k + 1));
    }
}

// Rows of a head's state that are computed at a time.
constexpr int kStateRows = 4;

// kRows rows of a head's state: h = decay * h + inner * b; products become h * c, still in sixteen parts.
template <int kRows>
inline void advance(const float* from, int64_t from_stride, float* to, const float* b, const float* c, float decay,
                    const float* inner, int64_t size, Lanes* products) {
    const Lanes factor = splat(decay);
    Lanes added[kRows], totals[kRows];
    OCTAVO_UNROLL for (int r = 0; r < kRows; ++r) added[r] = splat(inner[r]), totals[r] = splat(0.f);
    int64_t n = 0;
    for (; n + kLanes <= size; n += kLanes) {
        const Lanes in = load(b + n), out = load(c + n);
        OCTAVO_UNROLL for (int r = 0; r < kRows; ++r) {
            const Lanes h = fma(in, added[r], load(from + r * from_stride + n) * factor);
            store(to + r * size + n, h);
            totals[r] = fma(h, out, totals[r]);
        }
    }
    if (const int64_t left = size - n; left > 0) {
        OCTAVO_UNROLL for (int r = 0; r < kRows; ++r) {
            const Lanes h = fma(load(b + n), added[r], load_some(from + r * from_stride + n, left) * factor);
            store_some(to + r * size + n, h, left);
            totals[r] = fma(h, load(c + n), totals[r]);
        }
    }
    OCTAVO_UNROLL for (int r = 0; r < kRows; ++r) products[r] = totals[r];
}

// Values as float32, followed by zeros up to a multiple of sixteen.
template <class T>
void widen_row(const T* from, float* to, int64_t size) {
    for (int64_t i = 0; i < size; i += kLanes) store(to + i, load_part(from + i, std::min<int64_t>(kLanes, size - i)));
}

float softplus(float x) { return x > 20.f ? x : std::log1p(std::exp(x)); }

int64_t round_up(int64_t size) { return (size + kLanes - 1) / kLanes * kLanes; }

// Memory of the calling thread's own, at the start of a cache line; what it holds is arbitrary.
float* working_memory(int64_t size) {
    constexpr uintptr_t kLine = 64;
    thread_local std::vector<float> memory;
    if (const size_t needed = size + kLine / sizeof(float); memory.size() < needed) memory.resize(needed);
    return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(memory.data()) + kLine - 1) / kLine * kLine);
}

template <class T>
void scan_head(const StateSpaceScan& scan, int64_t row_index, int64_t head) {
    const RowStates<float> row(scan.rows, scan.states, row_index);
    const int64_t head_dim = scan.head_dim, size = scan.state_size, head_size = head_dim * size;
    const int64_t group = head / (scan.num_heads / scan.num_groups), wide_dim = round_up(head_dim);
    float* passing = working_memory(head_size + 3 * round_up(size) + 2 * wide_dim);  // a state that is not kept
    float *zeros = passing + head_size, *b = zeros + round_up(size), *c = b + round_up(size), *x = c + round_up(size);
    float* inner = x + wide_dim;
    Lanes products[kLanes] = {};
    const float rate = -std::exp(scan.a_log[head]), bias = scan.dt_bias[head], skip = scan.d[head];
    const float* from = row.initial();
    int64_t from_stride = size;
    if (from == nullptr) {
        std::fill_n(zeros, size, 0.f);
        from = zeros;
        from_stride = 0;
    } else {
        from += head * head_size;
    }
    for (int64_t token = row.start; token < row.start + row.length; ++token) {
        widen_row(static_cast<const T*>(scan.b) + (int64_t)token * scan.b_stride + group * size, b, size);
        widen_row(static_cast<const T*>(scan.c) + (int64_t)token * scan.c_stride + group * size, c, size);
        widen_row(static_cast<const T*>(scan.x) + (int64_t)token * scan.x_stride + head * head_dim, x, head_dim);
        const float dt = to_float(static_cast<const T*>(scan.dt)[(int64_t)token * scan.dt_stride + head]);
        const float step = std::min(std::max(softplus(dt + bias), scan.least_step), scan.most_step);
        const float decay = std::exp(step * rate);
        float* to = row.kept(token - row.start);
        to = to == nullptr ? passing : to + head * head_size;
        for (int64_t p = 0; p < wide_dim; p += kLanes) store(inner + p, load(x + p) * splat(step));
        T* result = static_cast<T*>(scan.to) + (token * scan.num_heads + head) * head_dim;
        for (int64_t first = 0; first < head_dim; first += kLanes) {
            const int64_t last = std::min(first + kLanes, head_dim);
            int64_t p = first;
            for (; p + kStateRows <= last; p += kStateRows)
                advance<kStateRows>(from + p * from_stride, from_stride, to + p * size, b, c, decay, inner + p, size,
                                    products + p - first);
            for (; p < last; ++p)
                advance<1>(from + p * from_stride, from_stride, to + p * size, b, c, decay, inner + p, size,
                           products + p - first);
            store_part(result + first, fma(load(x + first), splat(skip), sums(products)), last - first);
        }
        from = to;
        from_stride = size;
    }
}

template <class T, class W>
void gated_norm(const T* x, const T* gate, const W* weight, T* to, int64_t size, float eps) {
    float* gated = working_memory(round_up(size));
    Lanes squares = splat(0.f);
    for (int64_t i = 0; i < size; i += kLanes) {
        const int64_t count = std::min<int64_t>(kLanes, size - i);
        const Lanes value = load_part(x + i, count) * apply_gate(kSilu, load_part(gate + i, count));
        store(gated + i, value);
        squares = fma(value, value, squares);
    }
    const Lanes scale = norm_scale(squares, size, eps);
    for (int64_t i = 0; i < size; i += kLanes) {
        const int64_t count = std::min<int64_t>(kLanes, size - i);
        store_part(to + i, weigh_normed<T, W>(load(gated + i) * scale, load_part(weight + i, count)), count);
    }
}

template <class T, class W>
void gated_norm_row(const GatedNorm& norm, int64_t row) {
    for (int64_t i = 0; i < norm.size; i += norm.group_size)
        gated_norm(static_cast<const T*>(norm.x) + row * norm.x_stride + i,
                   static_cast<const T*>(norm.gate) + row * norm.gate_stride + i,
                   static_cast<const W*>(norm.weight) + i, static_cast<T*>(norm.to) + row * norm.size + i,
                   norm.group_size, norm.eps);
}

}  // namespace

void CausalConv::run(int64_t chunk) const {
    by_type(type, [&](auto value) {
        using T = decltype(value);
        const int64_t row = chunk / chunks_of_row(), first = chunk % chunks_of_row() * kConvChannels;
        if (row == rows.counts[0]) return clear_padding<T>(rows, num_tokens, channels, to);
        const RowStates<T> states_of_row(rows, states, row);
        const int64_t last = std::min<int64_t>(first + kConvChannels, channels);
        for (int64_t channel = first; channel < last; channel += kLanes)
            convolve(*this, states_of_row, channel, std::min<int64_t>(kLanes, last - channel));
    });
}

void StateSpaceScan::run(int64_t chunk) const {
    by_type(type, [&](auto value) {
        using T = decltype(value);
        const int64_t row = chunk / num_heads;
        if (row == rows.counts[0]) return clear_padding<T>(rows, num_tokens, (int64_t)num_heads * head_dim, to);
        scan_head<T>(*this, row, chunk % num_heads);
    });
}

void GatedNorm::run(int64_t chunk) const {
    const int64_t first = chunk * kRowsPerChunk, last = std::min(first + kRowsPerChunk, num_rows);
    by_type(type, [&](auto x_value) {
        by_type(weight_type, [&](auto weight_value) {
            for (int64_t row = first; row < last; ++row)
                gated_norm_row<decltype(x_value), decltype(weight_value)>(*this, row);
        });
    });
}

}  // namespace octavo
