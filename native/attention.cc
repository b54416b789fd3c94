#include "attention.h"

#include <algorithm>

#include "rows.h"
#include "scores.h"
#include "softmax.h"

namespace octavo {
namespace {

// Size of the state of a unit of a split row; a single token may have more queries than kMaxQueries.
inline int64_t part_size(const AttentionLayer& layer) {
    return state_size(std::max<int64_t>(kMaxQueries, layer.num_heads / layer.num_kv_heads), layer.head_dim);
}

// A tile of keys and values of 8 bits, as exact values that the computation multiplies, and the factors of them.
template <class S, class C>
struct StagedTile {
    S *keys, *values;  // [head_dim][kTileKeys], in pairs for bfloat16; [kTileKeys][head_dim]
    float *key_factors, *value_factors;  // [kTileKeys]

    static int64_t num_floats(int64_t head_dim) { return kIsQuantized<C> ? 2 * kTileKeys * (head_dim + 1) : 0; }

    StagedTile(float* memory, int64_t head_dim)
        : keys(reinterpret_cast<S*>(memory + 2 * kTileKeys)),
          values(keys + kTileKeys * head_dim),
          key_factors(memory),
          value_factors(memory + kTileKeys) {}

    // Sixteen keys of a block, `block_size` apart for each dimension.
    void stage_keys(int64_t group, const C* from, int64_t block_size, int64_t head_dim) const {
        if constexpr (kMultipliesPairs<S>) {
#if defined(__AVX512BF16__)
            for (int64_t d = 0; d < head_dim; d += 2) {
                const Lanes even = load(from + d * block_size), odd = load(from + (d + 1) * block_size);
                const Words pairs = bit_cast<Words>(even.part[0]) >> 16 | (bit_cast<Words>(odd.part[0]) & 0xffff0000u);
                store_vector(keys + (d / 2 * kTileKeys + group * kLanes) * 2, pairs);
            }
#endif
        } else {
            for (int64_t d = 0; d < head_dim; ++d)
                store(keys + d * kTileKeys + group * kLanes, load(from + d * block_size));
        }
    }

    void stage_value(int64_t key, const C* from, int64_t head_dim) const {
        S* to = values + key * head_dim;
        int64_t d = 0;
        for (; d + kLanes <= head_dim; d += kLanes) store(to + d, load(from + d));
        if (d < head_dim) {
            C rest[kLanes] = {};
            std::memcpy(rest, from + d, head_dim - d);
            store_some(to + d, load(rest), head_dim - d);
        }
    }

    // The factors of a key and its value.
    void stage_factors(int64_t key, const float* from, int64_t half) const {
        key_factors[key] = from[0];
        value_factors[key] = from[half];
    }
};

// Where a unit's keys and values of a key head are in a cache of C.
template <class C>
struct UnitCache {
    const AttentionLayer& layer;
    const AttentionRows& rows;
    const AttentionUnit& unit;
    int64_t kv_head;

    // The first and one past the last key that any query of the unit sees here.
    int64_t first_key() const {
        return std::max(rows.first_key(unit.first_position), unit.first_partition * kPartitionKeys);
    }
    int64_t last_key() const {
        return std::min<int64_t>(unit.first_position + unit.num_tokens, unit.last_partition * kPartitionKeys);
    }
    int64_t block_of(int64_t key) const {
        return rows.block_tables[(int64_t)rows.slots[unit.row] * rows.table_stride + key / rows.block_size];
    }
    // The keys of a block.
    const C* run_of(int64_t block) const {
        return reinterpret_cast<const C*>(layer.cache) + block * layer.block_stride +
               kv_head * rows.block_size * layer.head_dim;
    }
    const C* value_at(const C* run, int64_t key) const {
        return run + layer.value_offset + key % rows.block_size * layer.head_dim;
    }

    // Fetches the keys or the values of a tile into the second-level cache. Functions that only fetch are dropped unless they
    // are inlined early.
    [[gnu::always_inline]] void fetch(int64_t start, bool is_keys) const {
        const int64_t last = std::min(start + kTileKeys, last_key());
        constexpr int64_t kTogether = Keys<C>::kInPairs ? 2 : 1, kLine = 64 / (int64_t)sizeof(C);
        const int64_t step = std::max(kTogether, kLine / rows.block_size);  // dimensions that share a cache line
        for (int64_t key = std::max(start, first_key()) / kLanes * kLanes; key < last; key += kLanes) {
            const C* run = run_of(block_of(key));
            if (is_keys) {
                const C* keys = run + key % rows.block_size * kTogether;
                for (int64_t d = 0; d < layer.head_dim; d += step) __builtin_prefetch(keys + d * rows.block_size, 0, 2);
            } else {
                const C* values = value_at(run, key);
                for (int64_t i = 0; i < kLanes * layer.head_dim; i += kLine) __builtin_prefetch(values + i, 0, 2);
            }
        }
    }
};

// A unit's keys, and the queries' view of them. T is the type of the computation, C that of the cache.
template <class T, class C>
struct Walk {
    using S = std::conditional_t<kIsQuantized<C>, Staged<T>, T>;

    const Attend& attend;
    const AttentionUnit& unit;
    int64_t kv_head;
    int64_t group_size, queries;
    const float* own;     // [queries][head_dim] values, or in the first half of each row pairs of values
    float* scores;        // [queries][kTileKeys]
    StagedTile<S, C> staged;
    UnitCache<C> cache, next;  // next: of the unit that comes next, probably

    // The first and one past the last key that a query sees.
    int64_t first_key(int64_t query) const { return attend.rows.first_key(position(query)); }
    int64_t last_key(int64_t query) const { return position(query) + 1; }
    int64_t position(int64_t query) const { return unit.first_position + query / group_size; }

    void tile(int64_t start, int64_t stop, SoftmaxState state) const {
        const AttentionLayer& layer = attend.layer;
        const int64_t size = attend.rows.block_size, head_dim = layer.head_dim;
        const int64_t lowest = std::max(start, first_key(0)), highest = std::min(stop, last_key(queries - 1));
        if (lowest >= highest) return;
        const bool is_last = start + kTileKeys >= cache.last_key();
        const UnitCache<C>& ahead = is_last ? next : cache;
        const int64_t fetched = is_last ? next.first_key() / kTileKeys * kTileKeys : start + kTileKeys;
        ahead.fetch(fetched, true);
        const int64_t first_group = (lowest - start) / kLanes, last_group = (highest - start + kLanes - 1) / kLanes;
        const S* keys[kTileKeys / kLanes];
        const S* values[kTileKeys];
        for (int64_t g = first_group; g < last_group; ++g) {
            const int64_t key = start + g * kLanes, block = cache.block_of(key);
            const C *run = cache.run_of(block), *group_values = cache.value_at(run, key);
            if constexpr (kIsQuantized<C>) {
                const CacheFactors& factors = layer.factors;
                const float* own_factors =
                    factors.first + block * factors.block + kv_head * factors.head + key % size * factors.token;
                staged.stage_keys(g, run + key % size, size, head_dim);
                keys[g] = staged.keys + g * kLanes * (Keys<S>::kInPairs ? 2 : 1);
                for (int64_t i = 0; i < kLanes; ++i) {
                    const int64_t place = g * kLanes + i;
                    staged.stage_factors(place, own_factors + i * factors.token, factors.half);
                    if (start + place >= lowest && start + place < highest)
                        staged.stage_value(place, group_values + i * head_dim, head_dim);
                    values[place] = staged.values + place * head_dim;
                }
            } else {
                keys[g] = run + key % size * (Keys<S>::kInPairs ? 2 : 1);
                for (int64_t i = 0; i < kLanes; ++i) values[g * kLanes + i] = group_values + i * head_dim;
            }
        }
        const int64_t key_stride = kIsQuantized<C> ? kTileKeys : size;
        in_groups<kScoreQueries>(queries, [&](int64_t q, auto count) {
            score_all<S, count.value>(own + q * head_dim, head_dim, keys + first_group, last_group - first_group,
                                      key_stride, head_dim, attend.scale, scores + q * kTileKeys + first_group * kLanes,
                                      kTileKeys);
        });
        if constexpr (kIsQuantized<C>) multiply(staged.key_factors, first_group * kLanes, last_group * kLanes);
        for (int64_t q = 0; q < queries; ++q) prepare_scores(q, start, first_group, last_group);
        add_scores(scores, queries, first_group, last_group, state, head_dim, [&](int64_t q) {
            return std::max(first_key(q), start) < std::min(last_key(q), start + last_group * kLanes);
        });
        ahead.fetch(fetched, false);
        // Factors of keys that no query sees may be anything.
        if constexpr (kIsQuantized<C>) multiply(staged.value_factors, lowest - start, highest - start);
        weigh_tile(scores, values, lowest - start, highest - start, state.values, queries, head_dim);
    }

    // Multiplies the scores or weights of some keys of a tile by the keys' factors.
    void multiply(const float* factors, int64_t first, int64_t last) const {
        for (int64_t q = 0; q < queries; ++q)
            for (int64_t i = first; i < last; ++i) scores[q * kTileKeys + i] *= factors[i];
    }

    // Lowers a query's scores of a tile by the distance of their keys.
    void slope_scores(int64_t q, int64_t start, int64_t first_group, int64_t last_group) const {
        const Lanes slope = splat(attend.layer.slopes[kv_head * group_size + q % group_size]);
        float distances[kLanes];  // from the query on: of earlier keys negative
        for (int64_t g = first_group; g < last_group; ++g) {
            for (int64_t i = 0; i < kLanes; ++i) distances[i] = (float)(start + g * kLanes + i - position(q));
            float* row = scores + q * kTileKeys + g * kLanes;
            store(row, fma(load(distances), slope, load(row)));
        }
    }

    // Caps and lowers a query's scores of a tile, and hides the keys that it does not see.
    void prepare_scores(int64_t q, int64_t start, int64_t first_group, int64_t last_group) const {
        float* row = scores + q * kTileKeys;
        if (attend.softcap != 0.f) {
            const Lanes cap = splat(attend.softcap), inverse = splat(1.f / attend.softcap);
            for (int64_t g = first_group; g < last_group; ++g)
                store(row + g * kLanes, cap * tanh(load(row + g * kLanes) * inverse));
        }
        if (attend.layer.slopes != nullptr) slope_scores(q, start, first_group, last_group);
        const int64_t begin = first_group * kLanes, end = last_group * kLanes;
        for (int64_t i = begin; i < std::min(first_key(q) - start, end); ++i) row[i] = kMinusInfinity;
        for (int64_t i = std::max(last_key(q) - start, begin); i < end; ++i) row[i] = kMinusInfinity;
    }

    void partition(int64_t index, SoftmaxState state) const {
        clear(state, queries, attend.layer.head_dim);
        for (int64_t start = index * kPartitionKeys; start < (index + 1) * kPartitionKeys; start += kTileKeys)
            tile(start, start + kTileKeys, state);
    }
};

template <class T>
void write(const AttentionLayer& layer, const AttentionUnit& unit, int64_t kv_head, SoftmaxState state, void* to) {
    const int64_t group = layer.num_heads / layer.num_kv_heads, head_dim = layer.head_dim;
    for (int64_t q = 0; q < unit.num_tokens * group; ++q) {
        const int64_t head = kv_head * group + q % group;
        T* row = static_cast<T*>(to) + ((unit.first_token + q / group) * layer.num_heads + head) * head_dim;
        const float* sink = layer.sinks == nullptr ? nullptr : layer.sinks + head;
        write_values(row, state.values + q * head_dim, inverse_total(state, q, sink), head_dim);
    }
}

template <class T, class C>
void attend_unit(const Attend& attend, int64_t chunk) {
    const AttentionLayer& layer = attend.layer;
    const AttentionUnit& unit = attend.unit_of(chunk);
    const int64_t kv_head = chunk % layer.num_kv_heads;
    const int64_t next = std::min(chunk + num_threads(), attend.num_chunks() - 1);
    const int64_t group = layer.num_heads / layer.num_kv_heads, head_dim = layer.head_dim;
    const int64_t queries = unit.num_tokens * group, size = state_size(queries, head_dim);
    thread_local std::vector<float> memory;
    using W = Walk<T, C>;
    const int64_t staged_size = StagedTile<typename W::S, C>::num_floats(head_dim);
    memory.resize(queries * (head_dim + kTileKeys) + 2 * size + staged_size);
    float* own = memory.data() + staged_size;
    float* scores = own + queries * head_dim;
    const SoftmaxState first = state_at(scores + queries * kTileKeys, queries);
    const SoftmaxState later = state_at(scores + queries * kTileKeys + size, queries);
    const int64_t token_size = (layer.num_heads + 2 * layer.num_kv_heads) * head_dim;
    for (int64_t q = 0; q < queries; ++q) {
        const T* query = static_cast<const T*>(layer.qkv) + (unit.first_token + q / group) * token_size +
                         (kv_head * group + q % group) * head_dim;
        if constexpr (kMultipliesPairs<T>)
            std::memcpy(own + q * head_dim, query, head_dim * sizeof(T));
        else
            for (int64_t d = 0; d < head_dim; ++d) own[q * head_dim + d] = to_float(query[d]);
    }
    const W walk{attend, unit, kv_head, group, queries, own, scores, {memory.data(), head_dim},
                 {layer, attend.rows, unit, kv_head},
                 {layer, attend.rows, attend.unit_of(next), next % layer.num_kv_heads}};
    if (unit.split >= 0) {
        walk.partition(unit.first_partition,
                       part_at(*attend.plan, unit, layer.num_kv_heads, kv_head, part_size(layer), queries));
        return;
    }
    walk_partitions(walk, first, later, head_dim);
    write<T>(layer, unit, kv_head, first, attend.to);
}

template <class T>
void merge_units(const MergeSplits& arguments, const AttentionSplit& split, int64_t kv_head) {
    const AttentionLayer& layer = arguments.layer;
    const AttentionUnit& unit = arguments.plan->units[split.first_unit];
    const int64_t queries = unit.num_tokens * (layer.num_heads / layer.num_kv_heads);
    const SoftmaxState merged = merge_parts(*arguments.plan, split, layer.num_kv_heads, kv_head, part_size(layer),
                                            queries, layer.head_dim);
    write<T>(layer, unit, kv_head, merged, arguments.to);
}

template <class T>
void rotate(T* head, const T* cos, const T* sin, int64_t rotary) {
    const int64_t half = rotary / 2;
    for (int64_t i = 0; i < half; ++i) {
        const float first = to_float(head[i]), second = to_float(head[i + half]);
        const float a = __builtin_fmaf(second, to_float(sin[i]), first * to_float(cos[i]));
        const float b = __builtin_fmaf(first, to_float(sin[i + half]), second * to_float(cos[i + half]));
        store_some(head + i, splat(a), 1);
        store_some(head + i + half, splat(b), 1);
    }
}

template <class T>
void rotate_whole(T* head, const T* cos, const T* sin, int64_t rotary) {
    const int64_t half = rotary / 2;
    for (int64_t i = 0; i < half; i += kLanes) {
        const Lanes first = load(head + i), second = load(head + i + half);
        store(head + i, fma(second, load(sin + i), first * load(cos + i)));
        store(head + i + half, fma(first, load(sin + i + half), second * load(cos + i + half)));
    }
}

// Stores a token's keys, which its values follow.
template <class C, class T>
void store_token(const AttentionLayer& layer, const T* keys, int64_t block, int64_t token, int64_t block_size) {
    const int64_t head_dim = layer.head_dim, kv_heads = layer.num_kv_heads;
    C* to = reinterpret_cast<C*>(layer.cache) + block * layer.block_stride;
    for (int64_t head = 0; head < kv_heads; ++head) {
        const T *key = keys + head * head_dim, *value = key + kv_heads * head_dim;
        C* run = to + head * block_size * head_dim;
        C* value_to = run + layer.value_offset + token * head_dim;
        if constexpr (kIsQuantized<C>) {
            const CacheFactors& factors = layer.factors;
            float* factor = factors.first + block * factors.block + head * factors.head + token * factors.token;
            if (!factors.are_given) {
                factor[0] = vector_scale<C>(key, head_dim);
                factor[factors.half] = vector_scale<C>(value, head_dim);
            }
            round_vector(key, head_dim, factor[0], run + token, block_size);
            round_vector(value, head_dim, factor[factors.half], value_to, 1);
        } else {
            for (int64_t d = 0; d < head_dim; ++d) run[Keys<T>::place(d, token, block_size)] = key[d];
            std::memcpy(value_to, value, head_dim * sizeof(T));
        }
    }
}

template <class T>
void rotate_token(const RotateAndStore& arguments, int64_t token) {
    const AttentionLayer& layer = arguments.layer;
    const int64_t head_dim = layer.head_dim, rotary = arguments.rotary;
    const int64_t heads = layer.num_heads + layer.num_kv_heads;
    T* row = static_cast<T*>(layer.qkv) + token * (heads + layer.num_kv_heads) * head_dim;
    const T* cos = static_cast<const T*>(arguments.cos) + token * rotary;
    const T* sin = static_cast<const T*>(arguments.sin) + token * rotary;
    for (int64_t head = 0; head < heads; ++head) {
        T* values = row + head * head_dim;
        const void* weight = head < layer.num_heads ? arguments.query_norm : arguments.key_norm;
        if (weight != nullptr) {
            by_type(arguments.norm_type, [&](auto value) {
                rms_norm_row(values, values, static_cast<const decltype(value)*>(weight), head_dim, arguments.eps);
            });
        }
        rotary / 2 % kLanes == 0 ? rotate_whole(values, cos, sin, rotary) : rotate(values, cos, sin, rotary);
    }
    if (arguments.rows.slot_mapping == nullptr) return;
    const int64_t slot = arguments.rows.slot_mapping[token], size = arguments.rows.block_size;
    if (slot < 0) return;
    by_cache_type<T>(layer.cache_type, [&](auto value) {
        store_token<decltype(value)>(layer, row + layer.num_heads * head_dim, slot / size, slot % size, size);
    });
}

}  // namespace

void add_unit(AttentionPlan& plan, AttentionUnit unit, bool may_split) {
    unit.split = -1;
    const int32_t partitions = unit.last_partition - unit.first_partition;
    if (!may_split || partitions <= 1) {
        plan.units.push_back(unit);
        return;
    }
    plan.splits.push_back({(int32_t)plan.units.size(), partitions});
    for (int32_t partition = unit.first_partition; partition < unit.last_partition; ++partition) {
        AttentionUnit part = unit;
        part.first_partition = partition;
        part.last_partition = partition + 1;
        part.split = (int32_t)plan.num_split_units++;
        plan.units.push_back(part);
    }
}

void PlanAttention::run(int64_t) const {
    plan->units.clear();
    plan->splits.clear();
    plan->num_tokens = rows.counts[2];
    plan->num_split_units = 0;
    const int32_t most_tokens = std::max<int32_t>(1, kMaxQueries / group_size);
    for (int32_t row = 0; row < rows.counts[0]; ++row) {
        const int32_t start = rows.query_starts[row], stop = rows.query_starts[row + 1];
        const int32_t position = rows.seq_lens[row] - (stop - start);
        const bool is_short = stop - start <= most_tokens;
        for (int32_t token = start; token < stop; token += most_tokens) {
            AttentionUnit unit{};
            unit.row = row;
            unit.first_token = token;
            unit.num_tokens = std::min(most_tokens, stop - token);
            unit.first_position = position + token - start;
            unit.first_partition = (int32_t)(rows.first_key(unit.first_position) / kPartitionKeys);
            unit.last_partition = (unit.first_position + unit.num_tokens - 1) / (int32_t)kPartitionKeys + 1;
            add_unit(*plan, unit, is_short);
        }
    }
}

void RotateAndStore::run(int64_t chunk) const {
    const int64_t last = std::min<int64_t>(chunk * 4 + 4, rows.counts[2]);
    by_type(layer.type, [&](auto value) {
        for (int64_t token = chunk * 4; token < last; ++token) rotate_token<decltype(value)>(*this, token);
    });
}

int64_t Attend::count_chunks() const {
    reserve_parts(*plan, layer.num_kv_heads, part_size(layer));
    return num_chunks();
}

void Attend::run(int64_t chunk) const {
    by_type(layer.type, [&](auto value) {
        by_cache_type<decltype(value)>(layer.cache_type, [&](auto cached) {
            attend_unit<decltype(value), decltype(cached)>(*this, chunk);
        });
    });
}

void MergeSplits::run(int64_t chunk) const {
    by_type(layer.type, [&](auto value) {
        merge_units<decltype(value)>(*this, plan->splits[chunk / layer.num_kv_heads], chunk % layer.num_kv_heads);
    });
}

}  // namespace octavo
