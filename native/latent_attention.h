// Causal attention over paged latent vectors, in the absorbed form: all heads share a token's vector, whose first `rank`
// values are its value, too.
//
// Vectors lie as they are, [tokens][size]. Keys are grouped by their position in the sequence alone, as in attention.h,
// so a token's attention has the same bits whether it is decoded or prefilled.
#pragma once

#include "attention.h"

namespace octavo {

// One layer's tensors.
struct LatentLayer {
    const void* q;  // [num_tokens, heads, size]
    const void* cache;
    void* to;              // [num_tokens, heads, rank]; padding becomes zero
    int64_t block_stride;  // elements
    int32_t num_tokens, num_heads;
    int32_t group_size;  // heads of a unit, which divide all heads
    int32_t rank, size;
    float scale;
    Type type;
    CacheType cache_type;
    CacheFactors factors;
    const float* sinks;     // [heads] logits that count in the softmax's denominator and have no value; null: none
    const int32_t* chosen;  // [num_tokens, num_chosen] positions that a token sees, then -1; null: all up to its own
    int32_t num_chosen;
    int64_t num_groups() const { return num_heads / group_size; }
};

// Divides a step whose tokens see chosen positions: a unit is a token and some of its positions. They are numbered like
// keys, so that a token's sums depend on its positions alone.
struct PlanChosen {
    AttentionPlan* plan;
    AttentionRows rows;
    const int32_t* chosen;
    int64_t num_chosen;
    int64_t count_chunks() const { return 1; }
    void run(int64_t chunk) const;
};

struct AttendLatent {
    AttentionPlan* plan;
    LatentLayer layer;
    AttentionRows rows;
    int64_t count_chunks() const;
    void run(int64_t chunk) const;
};

// Puts the parts of split rows together.
struct MergeLatent {
    AttentionPlan* plan;
    LatentLayer layer;
    AttentionRows rows;
    int64_t count_chunks() const { return (int64_t)plan->splits.size() * layer.num_groups() + 1; }
    void run(int64_t chunk) const;
};

}  // namespace octavo
