#include "latent_attention.h"

#include <algorithm>

#include "scores.h"

namespace octavo {
namespace {

constexpr int kDotQueries = kWidth == 16 ? 4 : 2, kDotKeys = kWidth == 16 ? 4 : 2;

// Where the next query is behind one of a size: behind whole steps of any type.
int64_t round_up(int64_t size) { return (size + 2 * kLanes - 1) / (2 * kLanes) * (2 * kLanes); }

// Size of the state of a unit of a split row; a single token may have more queries than kMaxQueries.
int64_t part_size(const LatentLayer& layer) {
    return state_size(std::max<int64_t>(kMaxQueries, layer.group_size), layer.rank);
}

// Values of a query or a key that are multiplied at a time.
template <class S>
constexpr int64_t kStep = kMultipliesPairs<S> ? 2 * kLanes : kLanes;

inline Lanes add_products(const Lanes& sum, const Lanes& a, const Lanes& b) { return fma(a, b, sum); }
#if defined(__AVX512BF16__)
inline Lanes add_products(const Lanes& sum, const Pairs& a, const Pairs& b) {
    return {(Floats)_mm512_dpbf16_ps((__m512)sum.part[0], a, b)};
}
template <class S>
inline auto load_step(const S* from) {
    if constexpr (kMultipliesPairs<S>)
        return load_vector<Pairs>(from);
    else
        return load(from);
}
#else
template <class S>
inline Lanes load_step(const S* from) {
    return load(from);
}
#endif

// One step of the products of kQueries queries and kKeys keys, of which `key_at` loads their values there.
template <class S, int kQueries, int kKeys, class KeyAt>
inline void add_step(const Staged<S>* queries, int64_t query_stride, const KeyAt& key_at, Lanes (&sums)[kQueries][kKeys]) {
    decltype(key_at(0)) key[kKeys];
    OCTAVO_UNROLL for (int k = 0; k < kKeys; ++k) key[k] = key_at(k);
    OCTAVO_UNROLL for (int q = 0; q < kQueries; ++q) {
        const auto query = load_step(queries + q * query_stride);
        OCTAVO_UNROLL for (int k = 0; k < kKeys; ++k) sums[q][k] = add_products(sums[q][k], key[k], query);
    }
}

// Products of kQueries queries, which zeros follow up to a whole step, and kKeys keys, still in sixteen parts.
template <class S, int kQueries, int kKeys>
inline void multiply(const Staged<S>* queries, int64_t query_stride, const S* const* keys, int64_t size,
                     Lanes (&products)[kQueries][kLanes], int64_t first) {
    Lanes sums[kQueries][kKeys];
    clear(sums);
    int64_t d = 0;
    for (; d + kStep<S> <= size; d += kStep<S>)
        add_step<S>(queries + d, query_stride, [&](int k) { return load_step(keys[k] + d); }, sums);
    if (const int64_t left = size - d; left > 0) {
        const auto load_rest = [&](int k) {
            S rest[kStep<S>] = {};
            std::memcpy(rest, keys[k] + d, left * sizeof(S));
            return load_step(rest);
        };
        add_step<S>(queries + d, query_stride, load_rest, sums);
    }
    OCTAVO_UNROLL for (int q = 0; q < kQueries; ++q)
        OCTAVO_UNROLL for (int k = 0; k < kKeys; ++k) products[q][first + k] = sums[q][k];
}

// Scores of kQueries queries and up to sixteen keys; those behind `count` are arbitrary.
template <class S, int kQueries>
inline void score(const Staged<S>* queries, int64_t query_stride, const S* const* keys, int64_t count, int64_t size,
                  float scale, float* scores) {
    Lanes products[kQueries][kLanes];
    clear(products);
    int64_t k = 0;
    for (; k + kDotKeys <= count; k += kDotKeys)
        multiply<S, kQueries, kDotKeys>(queries, query_stride, keys + k, size, products, k);
    for (; k < count; ++k) multiply<S, kQueries, 1>(queries, query_stride, keys + k, size, products, k);
    for (int q = 0; q < kQueries; ++q) store(scores + q * kTileKeys, sums(products[q]) * splat(scale));
}

// Memory for a tile's vectors of a cache of 8 bits, which are multiplied in float32.
template <class C>
int64_t staged_size(const LatentLayer& layer) {
    return kIsQuantized<C> ? kTileKeys * layer.size : 0;
}

template <class C>
void stage_vector(const C* from, float factor, int64_t size, float* to) {
    int64_t d = 0;
    for (; d + kLanes <= size; d += kLanes) store(to + d, load(from + d) * splat(factor));
    if (d == size) return;
    C rest[kLanes] = {};
    std::memcpy(rest, from + d, size - d);
    store_some(to + d, load(rest) * splat(factor), size - d);
}

// A unit's keys, and its queries: some tokens times the heads of a group. C is the cache's type.
template <class T, class C>
struct LatentWalk {
    using S = std::conditional_t<kIsQuantized<C>, float, T>;

    const AttendLatent& attend;
    const AttentionUnit& unit;
    int64_t queries, query_stride;
    const Staged<S>* own;  // [queries][query_stride]
    float* scores;        // [queries][kTileKeys]
    float* staged;        // [kTileKeys][size]

    // One past the last key that a query sees; of a token that sees chosen ones, their number.
    int64_t last_key(int64_t query) const { return unit.first_position + query / attend.layer.group_size + 1; }

    void tile(int64_t start, SoftmaxState state) const {
        const LatentLayer& layer = attend.layer;
        const AttentionRows& rows = attend.rows;
        const int64_t count = std::min(kTileKeys, last_key(queries - 1) - start);
        if (count <= 0) return;
        const int32_t* table = rows.block_tables + (int64_t)rows.slots[unit.row] * rows.table_stride;
        const int32_t* chosen =
            layer.chosen == nullptr ? nullptr : layer.chosen + (int64_t)unit.first_token * layer.num_chosen + start;
        const S* keys[kTileKeys];
        for (int64_t i = 0; i < count; ++i) {
            const int64_t position = chosen == nullptr ? start + i : chosen[i];
            const int64_t block = table[position / rows.block_size], place = position % rows.block_size;
            const C* vector = static_cast<const C*>(layer.cache) + block * layer.block_stride + place * layer.size;
            if constexpr (kIsQuantized<C>) {
                const CacheFactors& factors = layer.factors;
                const float factor = factors.first[block * factors.block + place * factors.token];
                stage_vector(vector, factor, layer.size, staged + i * layer.size);
                keys[i] = staged + i * layer.size;
            } else {
                keys[i] = vector;
            }
        }
        in_groups<kDotQueries>(queries, [&](int64_t q, auto num) {
            for (int64_t k = 0; k < count; k += kLanes)
                score<S, num.value>(own + q * query_stride, query_stride, keys + k, std::min<int64_t>(kLanes, count - k),
                                    layer.size, layer.scale, scores + q * kTileKeys + k);
        });
        const int64_t num_groups = (count + kLanes - 1) / kLanes;
        for (int64_t q = 0; q < queries; ++q) {
            float* row = scores + q * kTileKeys;
            const int64_t seen = std::clamp<int64_t>(last_key(q) - start, 0, count);
            std::fill(row + seen, row + num_groups * kLanes, kMinusInfinity);
        }
        add_scores(scores, queries, 0, num_groups, state, layer.rank, [&](int64_t q) { return last_key(q) > start; });
        weigh_tile(scores, keys, 0, count, state.values, queries, layer.rank);
    }

    void partition(int64_t index, SoftmaxState state) const {
        clear(state, queries, attend.layer.rank);
        for (int64_t start = index * kPartitionKeys; start < (index + 1) * kPartitionKeys; start += kTileKeys)
            tile(start, state);
    }
};

template <class T>
void write(const LatentLayer& layer, const AttentionUnit& unit, int64_t group, SoftmaxState state) {
    for (int64_t q = 0; q < unit.num_tokens * layer.group_size; ++q) {
        const int64_t token = unit.first_token + q / layer.group_size;
        const int64_t head = group * layer.group_size + q % layer.group_size;
        const float* sink = layer.sinks == nullptr ? nullptr : layer.sinks + head;
        write_values(static_cast<T*>(layer.to) + (token * layer.num_heads + head) * layer.rank,
                     state.values + q * layer.rank, inverse_total(state, q, sink), layer.rank);
    }
}

template <class T, class C>
void attend_unit(const AttendLatent& attend, int64_t index, int64_t group) {
    const LatentLayer& layer = attend.layer;
    const AttentionUnit& unit = attend.plan->units[index];
    using Walk = LatentWalk<T, C>;
    using Own = Staged<typename Walk::S>;
    const int64_t queries = unit.num_tokens * layer.group_size, stride = round_up(layer.size);
    const int64_t size = state_size(queries, layer.rank);
    thread_local std::vector<float> memory;
    memory.resize(staged_size<C>(layer) + queries * (stride + kTileKeys) + 2 * size);
    Own* own = reinterpret_cast<Own*>(memory.data() + staged_size<C>(layer));
    float* scores = memory.data() + staged_size<C>(layer) + queries * stride;
    const SoftmaxState first = state_at(scores + queries * kTileKeys, queries);
    const SoftmaxState later = state_at(scores + queries * kTileKeys + size, queries);
    for (int64_t q = 0; q < queries; ++q) {
        const int64_t token = unit.first_token + q / layer.group_size;
        const int64_t head = group * layer.group_size + q % layer.group_size;
        const T* query = static_cast<const T*>(layer.q) + (token * layer.num_heads + head) * layer.size;
        Own* values = own + q * stride;
        if constexpr (std::is_same_v<T, Own>)
            std::copy_n(query, layer.size, values);
        else
            for (int64_t d = 0; d < layer.size; ++d) values[d] = to_float(query[d]);
        std::fill(values + layer.size, values + stride, Own{});
    }
    const Walk walk{attend, unit, queries, stride, own, scores, memory.data()};
    if (unit.split >= 0) {
        walk.partition(unit.first_partition,
                       part_at(*attend.plan, unit, layer.num_groups(), group, part_size(layer), queries));
        return;
    }
    walk_partitions(walk, first, later, layer.rank);
    write<T>(layer, unit, group, first);
}

template <class T>
void merge_units(const MergeLatent& arguments, const AttentionSplit& split, int64_t group) {
    const LatentLayer& layer = arguments.layer;
    const AttentionUnit& unit = arguments.plan->units[split.first_unit];
    const int64_t queries = unit.num_tokens * layer.group_size;
    const SoftmaxState merged =
        merge_parts(*arguments.plan, split, layer.num_groups(), group, part_size(layer), queries, layer.rank);
    write<T>(layer, unit, group, merged);
}

template <class T>
void clear_padding(const LatentLayer& layer, int64_t first_token) {
    const int64_t row_size = (int64_t)layer.num_heads * layer.rank, count = layer.num_tokens - first_token;
    if (count > 0) std::memset(static_cast<T*>(layer.to) + first_token * row_size, 0, count * row_size * sizeof(T));
}

}  // namespace

void PlanChosen::run(int64_t) const {
    constexpr int64_t kFewTokens = 16;  // of a step whose positions are divided over threads
    plan->units.clear();
    plan->splits.clear();
    plan->num_tokens = rows.counts[2];
    plan->num_split_units = 0;
    for (int32_t row = 0; row < rows.counts[0]; ++row) {
        for (int32_t token = rows.query_starts[row]; token < rows.query_starts[row + 1]; ++token) {
            const int32_t* own = chosen + (int64_t)token * num_chosen;
            const auto count = (int32_t)(std::partition_point(own, own + num_chosen, [](int32_t p) { return p >= 0; }) - own);
            AttentionUnit unit{};
            unit.row = row;
            unit.first_token = token;
            unit.num_tokens = 1;
            unit.first_position = count - 1;
            unit.last_partition = (count + (int32_t)kPartitionKeys - 1) / (int32_t)kPartitionKeys;
            add_unit(*plan, unit, plan->num_tokens <= kFewTokens);
        }
    }
}

int64_t AttendLatent::count_chunks() const {
    reserve_parts(*plan, layer.num_groups(), part_size(layer));
    return (int64_t)plan->units.size() * layer.num_groups();
}

void AttendLatent::run(int64_t chunk) const {
    // Later units have more keys; they go first, so that no thread begins the longest one last.
    const int64_t unit = (int64_t)plan->units.size() - 1 - chunk / layer.num_groups();
    by_type(layer.type, [&](auto value) {
        by_cache_type<decltype(value)>(layer.cache_type, [&](auto cached) {
            attend_unit<decltype(value), decltype(cached)>(*this, unit, chunk % layer.num_groups());
        });
    });
}

void MergeLatent::run(int64_t chunk) const {
    by_type(layer.type, [&](auto value) {
        const int64_t split = chunk / layer.num_groups();
        if (split == (int64_t)plan->splits.size()) return clear_padding<decltype(value)>(layer, rows.counts[2]);
        merge_units<decltype(value)>(*this, plan->splits[split], chunk % layer.num_groups());
    });
}

}  // namespace octavo
