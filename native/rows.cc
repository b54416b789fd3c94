#include "rows.h"

#include <algorithm>

#include "gemm.h"

namespace octavo {
namespace {

template <class T>
void add_row(const T* x, const T* y, T* to, int64_t size) {
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store(to + i, load(x + i) + load(y + i));
    if (i < size) store_some(to + i, load_some(x + i, size - i) + load_some(y + i, size - i), size - i);
}

template <class T, class W>
void norm_rows(const RmsNorm& norm, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
        const T* x = static_cast<const T*>(norm.x) + row * norm.size;
        if (norm.residual != nullptr) {
            T* residual = static_cast<T*>(norm.residual) + row * norm.size;
            add_row(residual, x, residual, norm.size);
            x = residual;
        }
        rms_norm_row(x, static_cast<T*>(norm.to) + row * norm.size, static_cast<const W*>(norm.weight), norm.size,
                     norm.eps);
    }
}

// Calls `work` for all of a row, sixteen values at a time: with the place, and the number of values there.
template <class Work>
inline void in_lanes(int64_t size, const Work& work) {
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) work(i, std::integral_constant<int64_t, kLanes>{});
    if (i < size) work(i, size - i);
}

template <class T, class Count>
inline Lanes load_at(const T* from, Count count) {
    if constexpr (std::is_same_v<Count, int64_t>)
        return load_some(from, count);
    else
        return load(from);
}

template <class T, class Count>
inline void store_at(T* to, const Lanes& x, Count count) {
    if constexpr (std::is_same_v<Count, int64_t>)
        store_some(to, x, count);
    else
        store(to, x);
}

template <class T>
void layer_norm_rows(const LayerNorm& norm, int64_t first, int64_t last) {
    const T *weight = static_cast<const T*>(norm.weight), *bias = static_cast<const T*>(norm.bias);
    for (int64_t row = first; row < last; ++row) {
        const T* x = static_cast<const T*>(norm.x) + row * norm.size;
        T* to = static_cast<T*>(norm.to) + row * norm.size;
        if (norm.residual != nullptr) {
            T* residual = static_cast<T*>(norm.residual) + row * norm.size;
            add_row(residual, x, residual, norm.size);
            x = residual;
        }
        Lanes total = splat(0.f), squares = splat(0.f);
        in_lanes(norm.size, [&](int64_t i, auto count) { total = total + load_at(x + i, count); });
        const Lanes mean = splat(sum(total) / (float)norm.size);
        in_lanes(norm.size, [&](int64_t i, auto count) {
            Lanes off = load_at(x + i, count) - mean;
            if constexpr (std::is_same_v<decltype(count), int64_t>) {
                float inside[kLanes] = {};
                store_some(inside, off, count);
                off = load(inside);
            }
            squares = fma(off, off, squares);
        });
        const Lanes scale = norm_scale(squares, norm.size, norm.eps);
        in_lanes(norm.size, [&](int64_t i, auto count) {
            Lanes v = (load_at(x + i, count) - mean) * scale;
            if (weight != nullptr) v = v * load_at(weight + i, count);
            if (bias != nullptr) v = v + load_at(bias + i, count);
            store_at(to + i, v, count);
        });
    }
}

// x times the normal distribution's share below it; the error function by formula 7.1.26 of Abramowitz and Stegun, within
// 1.5e-7.
inline Lanes gelu(const Lanes& x) {
    const Lanes one = splat(1.f), zero = splat(0.f), scaled = x * splat(0.70710678118654752f);
    const Lanes size = max(scaled, zero - scaled);
    const Lanes t = one / fma(splat(0.3275911f), size, one);
    Lanes tail = fma(splat(1.061405429f), t, splat(-1.453152027f));
    tail = fma(tail, t, splat(1.421413741f));
    tail = fma(tail, t, splat(-0.284496736f));
    tail = fma(tail, t, splat(0.254829592f)) * t * exp(zero - size * size);  // one minus the error function of the size
    return fma(size * splat(0.70710678118654752f), one - tail, x * splat(0.5f));
}

template <int32_t kActivation>
inline Lanes activated(const Lanes& x) {
    if constexpr (kActivation == kGelu) return gelu(x);
    const Lanes above = max(splat(0.f), x);
    if constexpr (kActivation == kRelu) return above;
    if constexpr (kActivation == kReluSquared) return above * above;
    return apply_gate(static_cast<Activation>(kActivation), x);
}

template <class T, int32_t kActivation>
void activate_rows(const Activate& arguments, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
        const T* x = static_cast<const T*>(arguments.x) + row * arguments.x_stride;
        T* to = static_cast<T*>(arguments.to) + row * arguments.to_stride;
        const T* times = static_cast<const T*>(arguments.times);
        if (times != nullptr) times += row * arguments.times_stride;
        in_lanes(arguments.size, [&](int64_t i, auto count) {
            Lanes v = activated<kActivation>(load_at(x + i, count));
            if (times != nullptr) v = v * load_at(times + i, count);
            store_at(to + i, v, count);
        });
    }
}

template <class T>
void activate_rows_as(const Activate& arguments, int64_t first, int64_t last) {
    switch (arguments.activation) {
        case kSilu: return activate_rows<T, kSilu>(arguments, first, last);
        case kGeluTanh: return activate_rows<T, kGeluTanh>(arguments, first, last);
        case kGelu: return activate_rows<T, kGelu>(arguments, first, last);
        case kRelu: return activate_rows<T, kRelu>(arguments, first, last);
        default: return activate_rows<T, kReluSquared>(arguments, first, last);
    }
}

}  // namespace

void RmsNorm::run(int64_t chunk) const {
    const int64_t first = chunk * kRowsPerChunk, last = std::min(first + kRowsPerChunk, num_rows);
    by_type(type, [&](auto x_value) {
        by_type(weight_type, [&](auto weight_value) {
            norm_rows<decltype(x_value), decltype(weight_value)>(*this, first, last);
        });
    });
}

void LayerNorm::run(int64_t chunk) const {
    const int64_t first = chunk * kRowsPerChunk, last = std::min(first + kRowsPerChunk, num_rows);
    by_type(type, [&](auto value) { layer_norm_rows<decltype(value)>(*this, first, last); });
}

void Activate::run(int64_t chunk) const {
    const int64_t first = chunk * kRowsPerChunk, last = std::min(first + kRowsPerChunk, num_rows);
    by_type(type, [&](auto value) { activate_rows_as<decltype(value)>(*this, first, last); });
}

void Gather::run(int64_t chunk) const {
    for (int64_t row = chunk * 64; row < std::min(chunk * 64 + 64, num_rows); ++row)
        std::memcpy(to + row * row_bytes, table + index[row] * row_bytes, row_bytes);
}

void SplitIdentities::run(int64_t chunk) const {
    for (int64_t row = chunk * 64; row < std::min(chunk * 64 + 64, num_rows); ++row) {
        const int64_t at = row * num_chosen;
        int64_t highest = 0;
        for (int64_t i = at; i < at + num_chosen; ++i)
            if (chosen[i] < first) highest = std::max(highest, chosen[i]);
        float sum = 0.f;
        for (int64_t i = at; i < at + num_chosen; ++i) {
            const bool is_real = chosen[i] < first;
            real[i] = is_real ? chosen[i] : highest;
            real_shares[i] = is_real ? shares[i] : 0.f;
            sum += is_real ? 0.f : shares[i];
        }
        kept[row] = sum;
    }
}

}  // namespace octavo
