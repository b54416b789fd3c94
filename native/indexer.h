// The choice of the tokens that attention sees: scores of all tokens before a query, and the highest of them.
//
// A score is built by the tiles of a GEMM whose rows are keys and whose outputs are a token's queries, head after head in
// the order of panels, so its bits depend on the query and the key alone.
#pragma once

#include "attention.h"

namespace octavo {

struct IndexLayer {
    const unsigned char* q;      // [tokens, heads, head_dim]
    const float* weights;        // [tokens, heads]
    const unsigned char* cache;  // keys
    int32_t* chosen;             // [num_tokens, num_chosen] positions in rising order, then -1
    int64_t block_stride;        // bytes
    int32_t num_tokens, num_heads, head_dim, num_chosen;
    Type type;
    int64_t key_bytes() const { return head_dim * (type == kFloat32 ? 4 : 2); }
};

// Divides a step's tokens into units of some of a row's.
struct PlanIndex {
    AttentionPlan* plan;
    AttentionRows rows;
    int64_t count_chunks() const { return 1; }
    void run(int64_t chunk) const;
};

// Steps of few tokens: the scores of a unit and some keys, in the plan's memory.
struct ScoreKeys {
    AttentionPlan* plan;
    IndexLayer layer;
    AttentionRows rows;
    int64_t count_chunks() const;
    void run(int64_t chunk) const;
};

// Chooses for the tokens of a unit, by those scores or by its own.
struct ChooseKeys {
    AttentionPlan* plan;
    IndexLayer layer;
    AttentionRows rows;
    int64_t count_chunks() const { return (int64_t)plan->units.size() + 1; }
    void run(int64_t chunk) const;
};

}  // namespace octavo
