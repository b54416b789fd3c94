// The experts of a layer: each token's rows through the experts that were chosen for it, and their weighted sum.
//
// Pairs of a token and an expert are ordered by their experts, and each expert multiplies its rows by the panels of its
// weights, as a linear layer does; see gemm.h. A row's sums do not depend on the other rows of its expert.
// octavo/kernels/experts.py has the same in PyTorch.
#pragma once

#include "gemm.h"

namespace octavo {

enum ExpertActivation : int32_t {
    kGateSilu = 1,
    kGateGeluTanh = 2,
    kGateClampedSwiglu = 3,
    kGateClampedSilu = 4,
    kGateSwigluStep = 5,
};

// The packed weights of one of the two GEMMs. The first one's outputs are the gates and then the up projections, each in
// panels of their own.
struct ExpertWeights {
    const unsigned char* packed;
    const void* bias;      // [num_experts, num_outputs] of x's type, or null
    int64_t expert_bytes;  // from one expert's weights to the next one's
    Type type;             // or kFirstBlock and a block format's number
};

// What all operations of a layer read. `workspace` is as large as experts_workspace_bytes() says.
struct ExpertLayer {
    const unsigned char* x;  // [num_tokens, hidden_size]
    const int64_t* chosen;   // [num_tokens, num_chosen]
    const float* shares;     // [num_tokens, num_chosen]
    void* y;                 // [num_tokens, hidden_size]
    unsigned char* workspace;
    ExpertWeights gate_up, down;
    int64_t x_stride;  // bytes
    int32_t num_tokens, num_chosen, num_experts, hidden_size, size;
    Type type;  // of x, y and biases
    ExpertActivation activation;
    float alpha, limit;
    bool weighs_inputs;

    int64_t num_pairs() const { return (int64_t)num_tokens * num_chosen; }
};

int64_t experts_workspace_bytes(const ExpertLayer& layer);

// Orders the pairs by their experts, and converts their rows of x into what the first GEMM's tiles read; or, after the
// activation, into what the second one's read.
template <bool kIsFirst>
struct StageExperts {
    ExpertLayer layer;
    int64_t count_chunks() const;
    void run(int64_t tile) const;
};

// The first GEMM and the activation, or the second GEMM.
template <bool kIsFirst>
struct MultiplyExperts {
    ExpertLayer layer;
    int64_t count_chunks() const;
    void run(int64_t chunk) const;
};

// Each token's weighted sum, in the order of its experts.
struct AddExperts {
    ExpertLayer layer;
    static constexpr int64_t kTokens = 4;  // of a chunk
    int64_t count_chunks() const { return (layer.num_tokens + kTokens - 1) / kTokens; }
    void run(int64_t chunk) const;
};

// The operations of a layer, in order.
constexpr size_t kNumExpertOperations = 5;
void make_expert_operations(const ExpertLayer& layer, Operation* operations);

}  // namespace octavo
