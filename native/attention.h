// Paged causal attention: norms and rotation of queries and keys, the cache, and attention over it.
//
// A head's keys in a block lie transposed, so that one register holds the same dimension of sixteen keys: [D][tokens],
// and in pairs of dimensions for bfloat16: [D / 2][tokens][2]; keys of 8 bits never in pairs. Its values lie as they are: [tokens][D]. A query's scores
// and its weighted sum of values are then built in one accumulator each, key after key, and keys are grouped by their
// position in the sequence alone: a token's attention has the same bits whether it is decoded, prefilled or drafted.
#pragma once

#include <algorithm>
#include <vector>

#include "cache_values.h"
#include "lanes.h"
#include "softmax.h"
#include "team.h"
#include "weights.h"

namespace octavo {

constexpr int64_t kPartitionKeys = 256;  // keys of a softmax of its own; partitions are merged in order
constexpr int64_t kMaxQueries = 64;      // of a unit with several tokens: tokens times query heads of a key head

// Some tokens of a row, and the keys that they are compared with here.
struct AttentionUnit {
    int32_t row, first_token, num_tokens, first_partition, last_partition;
    int32_t first_position;  // of the first token in its sequence
    int32_t split;           // number among the units of rows whose keys are split; -1: this one has all keys
};

// Consecutive units that are merged.
struct AttentionSplit {
    int32_t first_unit, num_units;
};

// What all layers of a cache group share in a step.
struct AttentionPlan {
    std::vector<AttentionUnit> units;
    std::vector<AttentionSplit> splits;
    int64_t num_tokens = 0;
    int64_t num_split_units = 0;
    std::vector<float> partials;
};

// Where a step's rows are; all in memory that each step fills anew.
struct AttentionRows {
    const int32_t* counts;  // rows, decoding rows, tokens, ...
    const int32_t* query_starts;
    const int32_t* seq_lens;
    const int32_t* block_tables;
    const int32_t* slots;
    const int64_t* slot_mapping;
    int64_t table_stride;
    int32_t block_size;
    int32_t window;  // tokens that a query sees; negative: it sees its own chunk of so many tokens; 0: all

    // The first key that a query at a position sees.
    int64_t first_key(int64_t position) const {
        if (window < 0) return position - position % -window;
        return window == 0 ? 0 : std::max<int64_t>(0, position - window + 1);
    }
};

// Adds a unit to a plan, or if it may be split one for each of its partitions.
void add_unit(AttentionPlan& plan, AttentionUnit unit, bool may_split);

struct PlanAttention {
    AttentionPlan* plan;
    AttentionRows rows;
    int32_t group_size;  // query heads of a key head
    int64_t count_chunks() const { return 1; }
    void run(int64_t chunk) const;
};

// One layer's tensors.
struct AttentionLayer {
    void* qkv;  // [tokens, heads + 2 * kv_heads, head_dim]
    unsigned char* cache;
    int64_t value_offset, block_stride;  // elements: from keys to values, from a block to the next
    int32_t num_heads, num_kv_heads, head_dim;
    Type type;             // of queries and results
    CacheType cache_type;
    CacheFactors factors;  // of a cache of 8 bits
    const float* sinks;   // [heads] logits that count in the softmax's denominator and have no value; null: none
    const float* slopes;  // [heads] what a score falls by for each token from key to query (ALiBi); null: none
};

// Norms and rotates queries and keys where they are, and stores keys and values if there is a slot mapping.
struct RotateAndStore {
    AttentionLayer layer;
    AttentionRows rows;
    const void *query_norm, *key_norm;  // null: none
    const void *cos, *sin;              // [tokens, rotary], the first half of sin negated
    int32_t rotary;
    float eps;
    Type norm_type;
    int64_t count_chunks() const { return (rows.counts[2] + 3) / 4; }
    void run(int64_t chunk) const;
};

struct Attend {
    AttentionPlan* plan;
    AttentionLayer layer;
    AttentionRows rows;
    void* to;  // [tokens, heads, head_dim]
    float scale, softcap;  // softcap 0: none

    // Later units have more keys; they go first, so that no thread begins the longest one last.
    int64_t num_chunks() const { return (int64_t)plan->units.size() * layer.num_kv_heads; }
    const AttentionUnit& unit_of(int64_t chunk) const {
        return plan->units[plan->units.size() - 1 - chunk / layer.num_kv_heads];
    }
    int64_t count_chunks() const;
    void run(int64_t chunk) const;
};

// Puts the parts of split rows together.
struct MergeSplits {
    AttentionPlan* plan;
    AttentionLayer layer;
    void* to;
    int64_t count_chunks() const { return (int64_t)plan->splits.size() * layer.num_kv_heads; }
    void run(int64_t chunk) const;
};

// The state of a unit of a split row, of `size` values in the plan's memory; `head` is one of the unit's `num_heads`.
inline SoftmaxState part_at(AttentionPlan& plan, const AttentionUnit& unit, int64_t num_heads, int64_t head,
                            int64_t size, int64_t queries) {
    return state_at(plan.partials.data() + (unit.split * num_heads + head) * size, queries);
}

// Attends to a unit's partitions one after another, and merges them in `first`; `later` is for each of the others.
template <class Walk>
inline void walk_partitions(const Walk& walk, SoftmaxState first, SoftmaxState later, int64_t head_dim) {
    const AttentionUnit& unit = walk.unit;
    walk.partition(unit.first_partition, first);
    for (int64_t partition = unit.first_partition + 1; partition < unit.last_partition; ++partition) {
        walk.partition(partition, later);
        merge(first, later, walk.queries, head_dim);
    }
}

// Merges the parts of a split row in the first of them, which is the result; arguments as of part_at().
inline SoftmaxState merge_parts(AttentionPlan& plan, const AttentionSplit& split, int64_t num_heads, int64_t head,
                                int64_t size, int64_t queries, int64_t head_dim) {
    const auto part = [&](int64_t index) {
        return part_at(plan, plan.units[split.first_unit + index], num_heads, head, size, queries);
    };
    for (int32_t i = 1; i < split.num_units; ++i) merge(part(0), part(i), queries, head_dim);
    return part(0);
}

// Memory for all parts of split rows.
inline void reserve_parts(AttentionPlan& plan, int64_t num_heads, int64_t size) {
    const size_t needed = plan.num_split_units * num_heads * size;
    if (plan.partials.size() < needed) plan.partials.resize(needed);
}

}  // namespace octavo
