// The choice of each token's experts: octavo/kernels/routing.py has the same in PyTorch.
#pragma once

#include "lanes.h"
#include "team.h"

namespace octavo {

enum Score : int32_t { kSoftmax = 0, kSigmoid = 1, kSparseMixer = 2, kUniform = 3 };

struct ChooseExperts {
    const float* logits;      // [num_tokens, num_experts]
    const float* correction;  // [num_experts], added to scores in the choice; null: none
    int64_t* chosen;          // [num_tokens, num_chosen]
    float* shares;            // [num_tokens, num_chosen]
    int32_t num_tokens, num_experts, num_chosen;
    Score score;
    int32_t num_groups, num_open_groups, num_ranked;
    float scale, jitter;
    bool renormalises;
    static constexpr int64_t kTokens = 4;  // of a chunk
    int64_t count_chunks() const { return (num_tokens + kTokens - 1) / kTokens; }
    void run(int64_t chunk) const;
};

}  // namespace octavo
