// Scores of queries and keys that lie transposed: one register holds the same dimension of sixteen keys.
#pragma once

#include <type_traits>

#include "lanes.h"

namespace octavo {

template <class T>
struct Keys {
    // Where dimension d of a block's first key is, and how far apart two dimensions are, in elements.
    static constexpr bool kInPairs = std::is_same_v<T, BFloat16>;
    static int64_t place(int64_t d, int64_t key, int64_t block_size) {
        return kInPairs ? (d / 2 * block_size + key) * 2 + d % 2 : d * block_size + key;
    }
};

// Whether pairs of dimensions are multiplied as they are; queries are then kept in pairs, too.
#if defined(__AVX512BF16__)
template <class T>
constexpr bool kMultipliesPairs = Keys<T>::kInPairs;
#else
template <class T>
constexpr bool kMultipliesPairs = false;
#endif

// What values of a type are multiplied as where they are staged for it.
template <class T>
using Staged = std::conditional_t<kMultipliesPairs<T>, T, float>;

// Scores of kQueries queries and sixteen keys in each of kGroups places.
template <class T, int kQueries, int kGroups>
inline void score(const float* queries, int64_t query_stride, const T* const* keys, int64_t block_size,
                  int64_t head_dim, float scale, float* scores, int64_t score_stride) {
    Lanes sums[kQueries][kGroups];
    for (int q = 0; q < kQueries; ++q)
        for (int g = 0; g < kGroups; ++g) sums[q][g] = splat(0.f);
    if constexpr (kMultipliesPairs<T>) {
#if defined(__AVX512BF16__)
        for (int64_t d = 0; d < head_dim / 2; ++d) {
            Pairs key[kGroups];
            for (int g = 0; g < kGroups; ++g) key[g] = load_vector<Pairs>(keys[g] + d * block_size * 2);
            for (int q = 0; q < kQueries; ++q) {
                const auto pair = bit_cast<int32_t>(queries[q * query_stride + d]);
                for (int g = 0; g < kGroups; ++g) sums[q][g] = add_products(sums[q][g], key[g], pair);
            }
        }
#endif
    } else if constexpr (Keys<T>::kInPairs) {
        for (int64_t d = 0; d < head_dim / 2; ++d) {
            Lanes even[kGroups], odd[kGroups];
            for (int g = 0; g < kGroups; ++g) {
                OCTAVO_EACH_PART {
                    const Words pair = load_vector<Words>(keys[g] + (d * block_size + i * kWidth) * 2);
                    even[g].part[i] = bit_cast<Floats>(pair << 16);
                    odd[g].part[i] = bit_cast<Floats>(pair & 0xffff0000u);
                }
            }
            for (int q = 0; q < kQueries; ++q) {
                const Lanes first = splat(queries[q * query_stride + 2 * d]);
                const Lanes second = splat(queries[q * query_stride + 2 * d + 1]);
                for (int g = 0; g < kGroups; ++g) {
                    sums[q][g] = fma(even[g], first, sums[q][g]);
                    sums[q][g] = fma(odd[g], second, sums[q][g]);
                }
            }
        }
    } else {
        for (int64_t d = 0; d < head_dim; ++d) {
            Lanes key[kGroups];
            for (int g = 0; g < kGroups; ++g) key[g] = load(keys[g] + d * block_size);
            for (int q = 0; q < kQueries; ++q) {
                const Lanes value = splat(queries[q * query_stride + d]);
                for (int g = 0; g < kGroups; ++g) sums[q][g] = fma(key[g], value, sums[q][g]);
            }
        }
    }
    for (int q = 0; q < kQueries; ++q)
        for (int g = 0; g < kGroups; ++g) store(scores + q * score_stride + g * kLanes, sums[q][g] * splat(scale));
}

constexpr int kScoreQueries = kWidth == 16 ? 6 : 2, kScoreGroups = kWidth == 16 ? 4 : 2;

template <class T, int kQueries>
void score_all(const float* queries, int64_t stride, const T* const* keys, int64_t groups, int64_t block_size,
               int64_t head_dim, float scale, float* scores, int64_t score_stride) {
    int64_t g = 0;
    for (; g + kScoreGroups <= groups; g += kScoreGroups)
        score<T, kQueries, kScoreGroups>(queries, stride, keys + g, block_size, head_dim, scale, scores + g * kLanes,
                                         score_stride);
    for (; g < groups; ++g)
        score<T, kQueries, 1>(queries, stride, keys + g, block_size, head_dim, scale, scores + g * kLanes,
                              score_stride);
}

}  // namespace octavo
