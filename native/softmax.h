// Softmax over keys that come in tiles, and the values' sum weighted by it: what all kinds of attention share.
//
// Keys are added one after another in the order of their positions, so a query's sums do not depend on which other
// queries are computed with it.
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "lanes.h"

namespace octavo {

constexpr int64_t kTileKeys = 64;  // scores that are computed at a time
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Softmax over some keys so far, of several queries.
struct SoftmaxState {
    float* most;    // [queries] the largest score
    float* total;   // [queries] the sum of e^(score - most)
    float* values;  // [queries][head_dim] the values' sum, weighted alike
};

inline int64_t state_size(int64_t queries, int64_t head_dim) { return queries * (head_dim + 2); }

inline SoftmaxState state_at(float* memory, int64_t queries) { return {memory, memory + queries, memory + 2 * queries}; }

inline void clear(SoftmaxState state, int64_t queries, int64_t head_dim) {
    std::fill_n(state.most, queries, kMinusInfinity);
    std::fill_n(state.total, queries, 0.f);
    std::fill_n(state.values, queries * head_dim, 0.f);
}

// One over the sum of e^(score - most), after a sink, a logit without a value, is added to it if there is one; 0 for a query
// that saw no key.
inline float inverse_total(SoftmaxState state, int64_t q, const float* sink) {
    if (state.total[q] == 0.f) return 0.f;
    if (sink == nullptr) return 1.f / state.total[q];
    const float most = std::max(state.most[q], *sink), own = exp_of(state.most[q] - most);
    return own / (state.total[q] * own + exp_of(*sink - most));
}

inline void scale_row(float* row, float factor, int64_t size) {
    if (factor == 1.f) return;
    for (int64_t i = 0; i < size; ++i) row[i] *= factor;
}

// Adds the softmax over later keys.
inline void merge(SoftmaxState into, SoftmaxState later, int64_t queries, int64_t head_dim) {
    for (int64_t q = 0; q < queries; ++q) {
        if (later.total[q] == 0.f) continue;  // saw no key
        const float most = std::max(into.most[q], later.most[q]);
        const float own = into.total[q] == 0.f ? 0.f : exp_of(into.most[q] - most);
        const float other = exp_of(later.most[q] - most);
        into.total[q] = into.total[q] * own + later.total[q] * other;
        float* values = into.values + q * head_dim;
        const float* added = later.values + q * head_dim;
        for (int64_t d = 0; d < head_dim; ++d) values[d] = values[d] * own + added[d] * other;
        into.most[q] = most;
    }
}

// Calls `work` with the number of queries at a time as a type, for all queries.
template <int kMost, class Work>
inline void in_groups(int64_t queries, const Work& work) {
    int64_t q = 0;
    for (; q + kMost <= queries; q += kMost) work(q, std::integral_constant<int, kMost>{});
    if constexpr (kMost > 3)
        for (; q + 3 <= queries; q += 3) work(q, std::integral_constant<int, 3>{});
    for (; q < queries; ++q) work(q, std::integral_constant<int, 1>{});
}

// Turns the scores of up to sixteen queries from `first` on, in rows of kTileKeys, into weights relative to the largest
// score so far: those of the tile's groups of sixteen keys from `first_group` on. Bit i of `seeing` tells whether the i-th of
// the queries sees any key of the tile; the weights of others are zeros.
inline void add_scores(float* scores, int64_t first_group, int64_t last_group, SoftmaxState state, int64_t first,
                       int64_t count, uint32_t seeing, int64_t head_dim) {
    Lanes each[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) {
        each[i] = splat(kMinusInfinity);
        if ((seeing >> i & 1) == 0) continue;
        const float* row = scores + (first + i) * kTileKeys;
        for (int64_t g = first_group; g < last_group; ++g) each[i] = max(each[i], load(row + g * kLanes));
    }
    const auto load_state = [&](const float* from) { return count == kLanes ? load(from) : load_some(from, count); };
    const Lanes earlier = load_state(state.most + first);
    float most[kLanes];
    store(most, max(earlier, reduce<Largest>(each)));
    for (int64_t i = 0; i < kLanes; ++i) {
        each[i] = splat(0.f);
        if (i >= count) continue;
        float* row = scores + (first + i) * kTileKeys;
        for (int64_t g = first_group; g < last_group; ++g) {
            Lanes weight = splat(0.f);
            if ((seeing >> i & 1) != 0) weight = exp(load(row + g * kLanes) - splat(most[i]));
            store(row + g * kLanes, weight);
            each[i] = each[i] + weight;
        }
    }
    float factors[kLanes], totals[kLanes];
    store(factors, exp(earlier - load(most)));
    for (int64_t i = 0; i < count; ++i)
        if (state.total[first + i] == 0.f) factors[i] = 0.f;
    store(totals, load_state(state.total + first) * load(factors));
    asm("" : "+m"(totals));  // products are rounded: adding must not become a fused operation
    store(totals, load(totals) + sums(each));
    for (int64_t i = 0; i < count; ++i) {
        if ((seeing >> i & 1) == 0) continue;
        const int64_t q = first + i;
        state.most[q] = most[i];
        state.total[q] = totals[i];
        scale_row(state.values + q * head_dim, factors[i], head_dim);
    }
}

// The same for all queries; `sees` tells of each whether it sees a key of the tile.
template <class Sees>
inline void add_scores(float* scores, int64_t queries, int64_t first_group, int64_t last_group, SoftmaxState state,
                       int64_t head_dim, const Sees& sees) {
    for (int64_t first = 0; first < queries; first += kLanes) {
        const int64_t count = std::min<int64_t>(kLanes, queries - first);
        uint32_t seeing = 0;
        for (int64_t i = 0; i < count; ++i) seeing |= (sees(first + i) ? 1u : 0u) << i;
        add_scores(scores, first_group, last_group, state, first, count, seeing, head_dim);
    }
}

constexpr int kWeighQueries = kWidth == 16 ? 6 : 2, kWeighLanes = kWidth == 16 ? 4 : 2;

// values[q] += weights[q] times the tile's values, for kLanesAtOnce times sixteen dimensions.
template <class T, int kQueries, int kLanesAtOnce>
inline void weigh(const float* weights, const T* const* values, int64_t first, int64_t last, float* sums,
                  int64_t sum_stride) {
    Lanes sum[kQueries][kLanesAtOnce];
    for (int q = 0; q < kQueries; ++q)
        for (int l = 0; l < kLanesAtOnce; ++l) sum[q][l] = load(sums + q * sum_stride + l * kLanes);
    for (int64_t key = first; key < last; ++key) {
        Lanes value[kLanesAtOnce];
        for (int l = 0; l < kLanesAtOnce; ++l) value[l] = load(values[key] + l * kLanes);
        for (int q = 0; q < kQueries; ++q) {
            const Lanes weight = splat(weights[q * kTileKeys + key]);
            for (int l = 0; l < kLanesAtOnce; ++l) sum[q][l] = fma(value[l], weight, sum[q][l]);
        }
    }
    for (int q = 0; q < kQueries; ++q)
        for (int l = 0; l < kLanesAtOnce; ++l) store(sums + q * sum_stride + l * kLanes, sum[q][l]);
}

#if defined(__AVX512BF16__)
// The same for pairs of keys: a query's pairs of weights are kTileKeys / 2 apart.
template <int kQueries, int kLanesAtOnce>
inline void weigh_pairs(const int32_t* weights, const BFloat16* const* values, int64_t first, int64_t last, float* sums,
                        int64_t sum_stride) {
    Lanes sum[kQueries][kLanesAtOnce];
    for (int q = 0; q < kQueries; ++q)
        for (int l = 0; l < kLanesAtOnce; ++l) sum[q][l] = load(sums + q * sum_stride + l * kLanes);
    for (int64_t pair = first / 2; pair < (last + 1) / 2; ++pair) {
        Pairs value[kLanesAtOnce];
        for (int l = 0; l < kLanesAtOnce; ++l)
            value[l] = load_pairs(values[2 * pair] + l * kLanes, values[2 * pair + 1] + l * kLanes);
        for (int q = 0; q < kQueries; ++q)
            for (int l = 0; l < kLanesAtOnce; ++l)
                sum[q][l] = add_products(sum[q][l], value[l], weights[q * (kTileKeys / 2) + pair]);
    }
    for (int q = 0; q < kQueries; ++q)
        for (int l = 0; l < kLanesAtOnce; ++l) store(sums + q * sum_stride + l * kLanes, sum[q][l]);
}

// Queries' weights, rounded, in pairs; 0 for keys before the first and from the last on.
template <int kQueries>
inline void pair_weights(const float* weights, int64_t first, int64_t last, int32_t* pairs) {
    for (int q = 0; q < kQueries; ++q) {
        for (int64_t start = first / kLanes * kLanes; start < last; start += kLanes) {
            const auto inside = (__mmask16)((0xffffu << std::max<int64_t>(first - start, 0)) &
                                            (0xffffu >> std::max<int64_t>(start + kLanes - last, 0)));
            const __m512 lanes = _mm512_maskz_loadu_ps(inside, weights + q * kTileKeys + start);
            store_vector(pairs + (q * kTileKeys + start) / 2, _mm512_cvtneps_pbh(lanes));
        }
    }
}
#endif

// The dimensions behind the last whole sixteen.
template <class T>
inline void weigh_rest(const float* weights, const T* const* values, int64_t first, int64_t last, float* sums, int64_t size) {
    for (int64_t key = first; key < last; ++key)
        for (int64_t d = 0; d < size; ++d) sums[d] = __builtin_fmaf(weights[key], to_float(values[key][d]), sums[d]);
}

template <class T, int kQueries>
inline void weigh_all(const float* weights, const T* const* values, int64_t first, int64_t last, float* sums,
                      int64_t head_dim) {
    constexpr int64_t kStep = kWeighLanes * kLanes;
    const T* part[kTileKeys];
    const auto weigh_lanes = [&](int64_t d, auto count) {
#if defined(__AVX512BF16__)
        if constexpr (std::is_same_v<T, BFloat16>) {
            static constexpr BFloat16 kZeros[kStep] = {};
            int32_t pairs[kQueries * kTileKeys / 2];
            pair_weights<kQueries>(weights, first, last, pairs);
            if (first % 2 != 0) part[first - 1] = kZeros;
            if (last % 2 != 0) part[last] = kZeros;
            weigh_pairs<kQueries, count.value>(pairs, part, first, last, sums + d, head_dim);
            return;
        }
#endif
        weigh<T, kQueries, count.value>(weights, part, first, last, sums + d, head_dim);
    };
    int64_t d = 0;
    for (; d < head_dim / kLanes * kLanes;) {
        for (int64_t key = first; key < last; ++key) part[key] = values[key] + d;
        if (d + kStep <= head_dim) {
            weigh_lanes(d, std::integral_constant<int, kWeighLanes>{});
            d += kStep;
        } else {
            weigh_lanes(d, std::integral_constant<int, 1>{});
            d += kLanes;
        }
    }
    if (d == head_dim) return;
    for (int64_t key = first; key < last; ++key) part[key] = values[key] + d;
    for (int q = 0; q < kQueries; ++q)
        weigh_rest(weights + q * kTileKeys, part, first, last, sums + q * head_dim + d, head_dim - d);
}

// sums[q] += weights[q] times the tile's values, for all queries.
template <class T>
inline void weigh_tile(const float* weights, const T* const* values, int64_t first, int64_t last, float* sums,
                       int64_t queries, int64_t head_dim) {
    in_groups<kWeighQueries>(queries, [&](int64_t q, auto count) {
        weigh_all<T, count.value>(weights + q * kTileKeys, values, first, last, sums + q * head_dim, head_dim);
    });
}

// A query's result: its values times a factor.
template <class T>
inline void write_values(T* row, const float* values, float factor, int64_t head_dim) {
    const Lanes inverse = splat(factor);
    int64_t d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) store(row + d, load(values + d) * inverse);
    if (d < head_dim) store_some(row + d, load_some(values + d, head_dim - d) * inverse, head_dim - d);
}

}  // namespace octavo
