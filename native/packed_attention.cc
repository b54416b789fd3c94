#include "packed_attention.h"

#include <algorithm>
#include <vector>

#include "scores.h"
#include "softmax.h"

namespace octavo {
namespace {

template <class S>
constexpr bool kInPairs = std::is_same_v<S, BFloat16>;

// Where dimension d of a value is among those of sixteen tokens: in pairs of tokens for bfloat16.
template <class S>
inline int64_t value_place(int64_t d, int64_t token, int64_t padded_dim) {
    return kInPairs<S> ? (token / 2 * padded_dim + d) * 2 + token % 2 : token * padded_dim + d;
}

template <class S, class T>
inline S staged(T value) {
    if constexpr (std::is_same_v<S, T>)
        return value;
    else
        return to_float(value);
}

// Keys and values of up to sixteen tokens of a head; zeros stand for those past the sequence.
template <class T>
void stage_group(const PackedLayer& layer, const T* keys, int64_t count, Staged<T>* key_to, Staged<T>* value_to) {
    using S = Staged<T>;
    const int64_t stride = (int64_t)(layer.num_heads + 2 * layer.num_kv_heads) * layer.head_dim;
    const int64_t padded = layer.padded_dim();
    const T* values = keys + (int64_t)layer.num_kv_heads * layer.head_dim;
    if (count < kLanes || padded != layer.head_dim) {
        std::fill_n(key_to, kLanes * padded, S{});
        std::fill_n(value_to, kLanes * padded, S{});
    }
    for (int64_t d = 0; d < layer.head_dim; ++d)
        for (int64_t i = 0; i < count; ++i) key_to[Keys<S>::place(d, i, kLanes)] = staged<S>(keys[i * stride + d]);
    for (int64_t i = 0; i < count; ++i)
        for (int64_t d = 0; d < layer.head_dim; ++d)
            value_to[value_place<S>(d, i, padded)] = staged<S>(values[i * stride + d]);
}

template <class T>
void stage_tile(const PackedLayer& layer, const PackedTile& tile, int64_t kv_head) {
    using S = Staged<T>;
    const int64_t width = layer.num_heads + 2 * layer.num_kv_heads, padded = layer.padded_dim();
    S* keys = reinterpret_cast<S*>(scratch()) + kv_head * layer.head_size();
    S* values = keys + layer.head_size() / 2;
    const int64_t last = std::min<int64_t>(tile.first + kPackedTile, tile.length);
    for (int64_t token = tile.first; token < last; token += kLanes) {
        const T* from = static_cast<const T*>(layer.qkv) +
                        ((tile.start + token) * width + layer.num_heads + kv_head) * layer.head_dim;
        const int64_t place = (tile.place + token) * padded;
        stage_group(layer, from, std::min<int64_t>(kLanes, last - token), keys + place, values + place);
    }
}

// sums[q] = weights[q] times the values of sixteen tokens in each of kGroups groups, for kParallel times sixteen dimensions.
template <class S, int kQueries, int kParallel>
inline void weigh_groups(const float* weights, int64_t stride, const S* values, int64_t num_groups, int64_t padded_dim,
                         float* to) {
    Lanes sums[kQueries][kParallel];
    clear(sums);
    if constexpr (kInPairs<S>) {
#if defined(__AVX512BF16__)
        const int64_t num_pairs = num_groups * kLanes / 2;
        for (int64_t pair = 0; pair < num_pairs; ++pair, values += 2 * padded_dim) {
            Pairs value[kParallel];
            OCTAVO_UNROLL for (int l = 0; l < kParallel; ++l) value[l] = load_vector<Pairs>(values + l * 2 * kLanes);
            OCTAVO_UNROLL for (int q = 0; q < kQueries; ++q) {
                const auto weight = bit_cast<int32_t>(weights[q * stride + pair]);
                OCTAVO_UNROLL for (int l = 0; l < kParallel; ++l)
                    sums[q][l] = add_products(sums[q][l], value[l], weight);
            }
        }
#endif
    } else {
        for (int64_t token = 0; token < num_groups * kLanes; ++token, values += padded_dim) {
            Lanes value[kParallel];
            OCTAVO_UNROLL for (int l = 0; l < kParallel; ++l) value[l] = load(values + l * kLanes);
            OCTAVO_UNROLL for (int q = 0; q < kQueries; ++q) {
                const Lanes weight = splat(weights[q * stride + token]);
                OCTAVO_UNROLL for (int l = 0; l < kParallel; ++l) sums[q][l] = fma(value[l], weight, sums[q][l]);
            }
        }
    }
    for (int q = 0; q < kQueries; ++q)
        for (int l = 0; l < kParallel; ++l) store(to + q * padded_dim + l * kLanes, sums[q][l]);
}

template <class S, int kQueries, int kParallel>
inline int64_t weigh_some(const float* weights, int64_t stride, const S* values, int64_t num_groups, int64_t padded_dim,
                          int64_t d, float* to) {
    for (; d + kParallel * kLanes <= padded_dim; d += kParallel * kLanes)
        weigh_groups<S, kQueries, kParallel>(weights, stride, values + d * (kInPairs<S> ? 2 : 1), num_groups, padded_dim,
                                             to + d);
    return d;
}

// Some queries of a head.
template <class S>
struct Queries {
    const PackedLayer& layer;
    const PackedTile& tile;
    const S *keys, *values;  // of the sequence
    int64_t first;           // in the sequence
    float *own, *scores, *sums;
    float inverse[kScoreQueries];

    int64_t first_key(int64_t position) const {
        return layer.window == 0 ? 0 : std::max<int64_t>(0, position - layer.window + 1);
    }
    int64_t last_key(int64_t position) const {
        return layer.window == 0 ? tile.length : std::min<int64_t>(tile.length, position + layer.window);
    }

    template <int kQueries>
    void attend() {
        const int64_t padded = layer.padded_dim();
        const int64_t first_group = first_key(first) / kLanes;
        const int64_t num_groups = (last_key(first + kQueries - 1) + kLanes - 1) / kLanes - first_group;
        const int64_t width = num_groups * kLanes;
        const S* from = keys + first_group * kLanes * padded;
        for (int64_t g = 0; g < num_groups; g += kScoreGroups) {
            const S* groups[kScoreGroups];
            for (int i = 0; i < kScoreGroups; ++i) groups[i] = from + (g + i) * kLanes * padded;
            score_all<S, kQueries>(own, padded, groups, std::min<int64_t>(kScoreGroups, num_groups - g), kLanes, padded,
                                   layer.scale, scores + g * kLanes, width);
        }
        for (int q = 0; q < kQueries; ++q) inverse[q] = weights_of(scores + q * width, first + q, first_group, num_groups);
        int64_t d = 0;
        const S* weighed = values + first_group * kLanes * padded;
        d = weigh_some<S, kQueries, kWeighLanes>(scores, width, weighed, num_groups, padded, d, sums);
        if constexpr (kWeighLanes > 2) d = weigh_some<S, kQueries, 2>(scores, width, weighed, num_groups, padded, d, sums);
        weigh_some<S, kQueries, 1>(scores, width, weighed, num_groups, padded, d, sums);
    }

    // Turns a query's scores into weights in their place, in pairs for bfloat16; returns one over their sum.
    float weights_of(float* row, int64_t position, int64_t first_group, int64_t num_groups) const {
        const int64_t origin = first_group * kLanes, end = num_groups * kLanes;
        if (layer.softcap != 0.f) {
            const Lanes cap = splat(layer.softcap), by_cap = splat(1.f / layer.softcap);
            for (int64_t i = 0; i < end; i += kLanes) store(row + i, cap * tanh(load(row + i) * by_cap));
        }
        std::fill(row, row + (first_key(position) - origin), kMinusInfinity);
        std::fill(row + (last_key(position) - origin), row + end, kMinusInfinity);
        Lanes most_lanes = splat(kMinusInfinity), total = splat(0.f);
        for (int64_t i = 0; i < end; i += kLanes) most_lanes = max(most_lanes, load(row + i));
        const Lanes most = splat(largest(most_lanes));
        for (int64_t i = 0; i < end; i += kLanes) {
            const Lanes weight = exp(load(row + i) - most);
            store(kInPairs<S> ? reinterpret_cast<S*>(row) + i : reinterpret_cast<S*>(row + i), weight);
            total = total + weight;
        }
        return 1.f / sum(total);
    }
};

template <class T>
void attend_tile(const PackedLayer& layer, const PackedTile& tile, int64_t head) {
    using S = Staged<T>;
    const int64_t padded = layer.padded_dim(), head_dim = layer.head_dim;
    const int64_t kv_head = head / (layer.num_heads / layer.num_kv_heads);
    const int64_t width = (tile.length + kLanes - 1) / kLanes * kLanes;
    thread_local std::vector<float> memory;
    memory.resize(kScoreQueries * (width + 2 * padded));
    const S* keys = reinterpret_cast<const S*>(scratch()) + kv_head * layer.head_size() + tile.place * padded;
    Queries<S> queries{layer,        tile, keys, keys + layer.head_size() / 2, tile.first, memory.data(), {}, {}, {}};
    queries.sums = queries.own + kScoreQueries * padded;
    queries.scores = queries.sums + kScoreQueries * padded;
    const int64_t stride = (int64_t)(layer.num_heads + 2 * layer.num_kv_heads) * head_dim;
    in_groups<kScoreQueries>(std::min<int64_t>(kPackedTile, tile.length - tile.first), [&](int64_t q, auto count) {
        queries.first = tile.first + q;
        const int64_t token = tile.start + queries.first;
        const T* from = static_cast<const T*>(layer.qkv) + token * stride + head * head_dim;
        std::fill_n(queries.own, count.value * padded, 0.f);
        for (int64_t i = 0; i < count.value; ++i) {
            S* own = reinterpret_cast<S*>(queries.own + i * padded);
            for (int64_t d = 0; d < head_dim; ++d) own[d] = staged<S>(from[i * stride + d]);
        }
        queries.template attend<count.value>();
        for (int64_t i = 0; i < count.value; ++i)
            write_values(static_cast<T*>(layer.to) + ((token + i) * layer.num_heads + head) * head_dim,
                         queries.sums + i * padded, queries.inverse[i], head_dim);
    });
}

}  // namespace

int64_t StagePacked::count_chunks() const {
    reserve_scratch(layer.num_kv_heads * layer.head_size() * sizeof(float));
    return (int64_t)layer.num_tiles * layer.num_kv_heads;
}

void StagePacked::run(int64_t chunk) const {
    const PackedTile& tile = layer.tiles[chunk / layer.num_kv_heads];
    by_type(layer.type, [&](auto value) { stage_tile<decltype(value)>(layer, tile, chunk % layer.num_kv_heads); });
}

// Chunks that follow one another share their keys and values as long as their sequence is the same.
void AttendPacked::run(int64_t chunk) const {
    const PackedTile& tile = layer.tiles[chunk % layer.num_tiles];
    by_type(layer.type, [&](auto value) { attend_tile<decltype(value)>(layer, tile, chunk / layer.num_tiles); });
}

}  // namespace octavo
