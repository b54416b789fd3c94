#include "attention.h"

#include <algorithm>
#include <limits>

#include "rows.h"

namespace octavo {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

template <class T>
struct Keys {
    // Where dimension d of a block's first key is, and how far apart two dimensions are, in elements.
    static constexpr bool kInPairs = std::is_same_v<T, BFloat16>;
    static int64_t place(int64_t d, int64_t key, int64_t block_size) {
        return kInPairs ? (d / 2 * block_size + key) * 2 + d % 2 : d * block_size + key;
    }
};

// Softmax over some keys so far, of kMaxQueries queries at most.
struct State {
    float* most;   // [queries] the largest score
    float* total;  // [queries] the sum of e^(score - most)
    float* values; // [queries][head_dim] the values' sum, weighted alike
};

inline int64_t state_size(int64_t queries, int64_t head_dim) { return queries * (head_dim + 2); }

// Size of the state of a unit of a split row; a single token may have more queries than kMaxQueries.
inline int64_t part_size(const AttentionLayer& layer) {
    return state_size(std::max<int64_t>(kMaxQueries, layer.num_heads / layer.num_kv_heads), layer.head_dim);
}

inline State state_at(float* memory, int64_t queries) { return {memory, memory + queries, memory + 2 * queries}; }

void clear(State state, int64_t queries, int64_t head_dim) {
    std::fill_n(state.most, queries, kMinusInfinity);
    std::fill_n(state.total, queries, 0.f);
    std::fill_n(state.values, queries * head_dim, 0.f);
}

void scale_row(float* row, float factor, int64_t size) {
    if (factor == 1.f) return;
    for (int64_t i = 0; i < size; ++i) row[i] *= factor;
}

float exp_of(float x) {
    float lanes[kLanes];
    store(lanes, exp(splat(x)));
    return lanes[0];
}

// Adds the softmax over later keys.
void merge(State into, State later, int64_t queries, int64_t head_dim) {
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

// Scores of kQueries queries and sixteen keys in each of kGroups places.
template <class T, int kQueries, int kGroups>
inline void score(const float* queries, int64_t query_stride, const T* const* keys, int64_t block_size,
                  int64_t head_dim, float* scores) {
    Lanes sums[kQueries][kGroups];
    for (int q = 0; q < kQueries; ++q)
        for (int g = 0; g < kGroups; ++g) sums[q][g] = splat(0.f);
    if constexpr (Keys<T>::kInPairs) {
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
        for (int g = 0; g < kGroups; ++g) store(scores + q * kTileKeys + g * kLanes, sums[q][g]);
}

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

// The dimensions behind the last whole sixteen.
template <class T>
void weigh_rest(const float* weights, const T* const* values, int64_t first, int64_t last, float* sums, int64_t size) {
    for (int64_t key = first; key < last; ++key)
        for (int64_t d = 0; d < size; ++d) sums[d] = __builtin_fmaf(weights[key], to_float(values[key][d]), sums[d]);
}

constexpr int kScoreQueries = kWidth == 16 ? 6 : 2, kScoreGroups = kWidth == 16 ? 4 : 2;
constexpr int kWeighQueries = kWidth == 16 ? 6 : 2, kWeighLanes = kWidth == 16 ? 4 : 2;

template <class T, int kQueries>
void score_all(const float* queries, int64_t stride, const T* const* keys, int64_t groups, int64_t block_size,
               int64_t head_dim, float* scores) {
    int64_t g = 0;
    for (; g + kScoreGroups <= groups; g += kScoreGroups)
        score<T, kQueries, kScoreGroups>(queries, stride, keys + g, block_size, head_dim, scores + g * kLanes);
    for (; g < groups; ++g)
        score<T, kQueries, 1>(queries, stride, keys + g, block_size, head_dim, scores + g * kLanes);
}

template <class T, int kQueries>
void weigh_all(const float* weights, const T* const* values, int64_t first, int64_t last, float* sums,
               int64_t head_dim) {
    constexpr int64_t kStep = kWeighLanes * kLanes;
    const T* part[kTileKeys];
    int64_t d = 0;
    for (; d < head_dim / kLanes * kLanes;) {
        for (int64_t key = first; key < last; ++key) part[key] = values[key] + d;
        if (d + kStep <= head_dim) {
            weigh<T, kQueries, kWeighLanes>(weights, part, first, last, sums + d, head_dim);
            d += kStep;
        } else {
            weigh<T, kQueries, 1>(weights, part, first, last, sums + d, head_dim);
            d += kLanes;
        }
    }
    if (d == head_dim) return;
    for (int64_t key = first; key < last; ++key) part[key] = values[key] + d;
    for (int q = 0; q < kQueries; ++q)
        weigh_rest(weights + q * kTileKeys, part, first, last, sums + q * head_dim + d, head_dim - d);
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

// A unit's keys, and the queries' view of them.
template <class T>
struct Walk {
    const Attend& attend;
    const AttentionUnit& unit;
    int64_t kv_head;
    int64_t group_size, queries;
    const float* scaled;  // [queries][head_dim]
    float* scores;        // [queries][kTileKeys]

    // The first and one past the last key that a query sees.
    int64_t first_key(int64_t query) const {
        const int64_t window = attend.rows.window;
        return window == 0 ? 0 : std::max<int64_t>(0, position(query) - window + 1);
    }
    int64_t last_key(int64_t query) const { return position(query) + 1; }
    int64_t position(int64_t query) const { return unit.first_position + query / group_size; }

    void tile(int64_t start, int64_t stop, State state) const {
        const AttentionLayer& layer = attend.layer;
        const int64_t size = attend.rows.block_size, head_dim = layer.head_dim;
        const int32_t* table =
            attend.rows.block_tables + (int64_t)attend.rows.slots[unit.row] * attend.rows.table_stride;
        const int64_t lowest = std::max(start, first_key(0)), highest = std::min(stop, last_key(queries - 1));
        if (lowest >= highest) return;
        const int64_t first_group = (lowest - start) / kLanes, last_group = (highest - start + kLanes - 1) / kLanes;
        const T* keys[kTileKeys / kLanes];
        const T* values[kTileKeys];
        for (int64_t g = first_group; g < last_group; ++g) {
            const int64_t key = start + g * kLanes;
            const T* run = reinterpret_cast<const T*>(layer.cache) + table[key / size] * layer.block_stride +
                           kv_head * size * head_dim;
            keys[g] = run + key % size * (Keys<T>::kInPairs ? 2 : 1);
            for (int64_t i = 0; i < kLanes; ++i)
                values[g * kLanes + i] = run + layer.value_offset + (key % size + i) * head_dim;
        }
        in_groups<kScoreQueries>(queries, [&](int64_t q, auto count) {
            score_all<T, count.value>(scaled + q * head_dim, head_dim, keys + first_group, last_group - first_group,
                                      size, head_dim, scores + q * kTileKeys + first_group * kLanes);
        });
        for (int64_t q = 0; q < queries; ++q) weights_of(q, start, first_group, last_group, state);
        in_groups<kWeighQueries>(queries, [&](int64_t q, auto count) {
            weigh_all<T, count.value>(scores + q * kTileKeys, values, lowest - start, highest - start,
                                      state.values + q * head_dim, head_dim);
        });
    }

    // Turns a query's scores of a tile into weights, relative to the largest score so far.
    void weights_of(int64_t q, int64_t start, int64_t first_group, int64_t last_group, State state) const {
        float* row = scores + q * kTileKeys;
        const int64_t first = std::max(first_key(q) - start, first_group * kLanes);
        const int64_t last = std::min(last_key(q) - start, last_group * kLanes);
        if (attend.softcap != 0.f) {
            const Lanes cap = splat(attend.softcap), inverse = splat(1.f / attend.softcap);
            for (int64_t g = first_group; g < last_group; ++g)
                store(row + g * kLanes, cap * tanh(load(row + g * kLanes) * inverse));
        }
        for (int64_t i = first_group * kLanes; i < std::min(first, last_group * kLanes); ++i) row[i] = kMinusInfinity;
        for (int64_t i = std::max<int64_t>(last, first_group * kLanes); i < last_group * kLanes; ++i)
            row[i] = kMinusInfinity;
        if (first >= last) {  // no key of this tile is visible
            std::fill_n(row + first_group * kLanes, (last_group - first_group) * kLanes, 0.f);
            return;
        }
        Lanes most_lanes = splat(kMinusInfinity);
        for (int64_t g = first_group; g < last_group; ++g) most_lanes = max(most_lanes, load(row + g * kLanes));
        const float most = std::max(state.most[q], largest(most_lanes));
        Lanes total = splat(0.f);
        for (int64_t g = first_group; g < last_group; ++g) {
            const Lanes weight = exp(load(row + g * kLanes) - splat(most));
            store(row + g * kLanes, weight);
            total = total + weight;
        }
        const float factor = state.total[q] == 0.f ? 0.f : exp_of(state.most[q] - most);
        state.total[q] = state.total[q] * factor + sum(total);
        scale_row(state.values + q * attend.layer.head_dim, factor, attend.layer.head_dim);
        state.most[q] = most;
    }

    void partition(int64_t index, State state) const {
        clear(state, queries, attend.layer.head_dim);
        for (int64_t start = index * kPartitionKeys; start < (index + 1) * kPartitionKeys; start += kTileKeys)
            tile(start, start + kTileKeys, state);
    }
};

template <class T>
void write(const AttentionLayer& layer, const AttentionUnit& unit, int64_t kv_head, State state, void* to) {
    const int64_t group = layer.num_heads / layer.num_kv_heads, head_dim = layer.head_dim;
    for (int64_t q = 0; q < unit.num_tokens * group; ++q) {
        T* row = static_cast<T*>(to) +
                 ((unit.first_token + q / group) * layer.num_heads + kv_head * group + q % group) * head_dim;
        const float* values = state.values + q * head_dim;
        const Lanes inverse = splat(1.f / state.total[q]);
        int64_t d = 0;
        for (; d + kLanes <= head_dim; d += kLanes) store(row + d, load(values + d) * inverse);
        if (d < head_dim) store_some(row + d, load_some(values + d, head_dim - d) * inverse, head_dim - d);
    }
}

template <class T>
void attend_unit(const Attend& attend, int64_t index, int64_t kv_head) {
    const AttentionLayer& layer = attend.layer;
    const AttentionUnit& unit = attend.plan->units[index];
    const int64_t group = layer.num_heads / layer.num_kv_heads, head_dim = layer.head_dim;
    const int64_t queries = unit.num_tokens * group, size = state_size(queries, head_dim);
    thread_local std::vector<float> memory;
    memory.resize(queries * (head_dim + kTileKeys) + 2 * size);
    float* scaled = memory.data();
    float* scores = scaled + queries * head_dim;
    const State first = state_at(scores + queries * kTileKeys, queries);
    const State later = state_at(scores + queries * kTileKeys + size, queries);
    const int64_t token_size = (layer.num_heads + 2 * layer.num_kv_heads) * head_dim;
    for (int64_t q = 0; q < queries; ++q) {
        const T* query = static_cast<const T*>(layer.qkv) + (unit.first_token + q / group) * token_size +
                         (kv_head * group + q % group) * head_dim;
        for (int64_t d = 0; d < head_dim; ++d) scaled[q * head_dim + d] = to_float(query[d]) * attend.scale;
    }
    const Walk<T> walk{attend, unit, kv_head, group, queries, scaled, scores};
    if (unit.split >= 0) {
        float* part = attend.plan->partials.data() + (unit.split * layer.num_kv_heads + kv_head) * part_size(layer);
        walk.partition(unit.first_partition, state_at(part, queries));
        return;
    }
    walk.partition(unit.first_partition, first);
    for (int64_t partition = unit.first_partition + 1; partition < unit.last_partition; ++partition) {
        walk.partition(partition, later);
        merge(first, later, queries, head_dim);
    }
    write<T>(layer, unit, kv_head, first, attend.to);
}

template <class T>
void merge_units(const MergeSplits& arguments, const AttentionSplit& split, int64_t kv_head) {
    const AttentionLayer& layer = arguments.layer;
    AttentionPlan& plan = *arguments.plan;
    const AttentionUnit& unit = plan.units[split.first_unit];
    const int64_t queries = unit.num_tokens * (layer.num_heads / layer.num_kv_heads);
    const auto part = [&](int64_t index) {
        const int64_t number = plan.units[split.first_unit + index].split * layer.num_kv_heads + kv_head;
        return state_at(plan.partials.data() + number * part_size(layer), queries);
    };
    for (int32_t i = 1; i < split.num_units; ++i) merge(part(0), part(i), queries, layer.head_dim);
    write<T>(layer, unit, kv_head, part(0), arguments.to);
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
    const int64_t slot = arguments.rows.slot_mapping[token], size = arguments.rows.block_size;
    if (slot < 0) return;
    T* block = reinterpret_cast<T*>(layer.cache) + slot / size * layer.block_stride;
    for (int64_t head = 0; head < layer.num_kv_heads; ++head) {
        const T* key = row + (layer.num_heads + head) * head_dim;
        T* run = block + head * size * head_dim;
        for (int64_t d = 0; d < head_dim; ++d) run[Keys<T>::place(d, slot % size, size)] = key[d];
        std::memcpy(run + layer.value_offset + slot % size * head_dim, key + layer.num_kv_heads * head_dim,
                    head_dim * sizeof(T));
    }
}

}  // namespace

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
            const int32_t first_key = rows.window == 0 ? 0 : std::max(0, unit.first_position - rows.window + 1);
            unit.first_partition = first_key / (int32_t)kPartitionKeys;
            unit.last_partition = (unit.first_position + unit.num_tokens - 1) / (int32_t)kPartitionKeys + 1;
            unit.split = -1;
            const int32_t partitions = unit.last_partition - unit.first_partition;
            if (!is_short || partitions == 1) {
                plan->units.push_back(unit);
                continue;
            }
            plan->splits.push_back({(int32_t)plan->units.size(), partitions});
            for (int32_t partition = unit.first_partition; partition < unit.last_partition; ++partition) {
                AttentionUnit part = unit;
                part.first_partition = partition;
                part.last_partition = partition + 1;
                part.split = (int32_t)plan->num_split_units++;
                plan->units.push_back(part);
            }
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
    const size_t size = plan->num_split_units * layer.num_kv_heads * part_size(layer);
    if (plan->partials.size() < size) plan->partials.resize(size);
    return (int64_t)plan->units.size() * layer.num_kv_heads;
}

void Attend::run(int64_t chunk) const {
    // Later units have more keys; they go first, so that no thread begins the longest one last.
    const int64_t unit = (int64_t)plan->units.size() - 1 - chunk / layer.num_kv_heads;
    by_type(layer.type,
            [&](auto value) { attend_unit<decltype(value)>(*this, unit, chunk % layer.num_kv_heads); });
}

void MergeSplits::run(int64_t chunk) const {
    by_type(layer.type, [&](auto value) {
        merge_units<decltype(value)>(*this, plan->splits[chunk / layer.num_kv_heads], chunk % layer.num_kv_heads);
    });
}

}  // namespace octavo
