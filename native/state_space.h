// Mamba-2's mixer over paged states: the causal convolution, the scan, and the gated norm.
//
// Tokens of a row are computed one after another, whether they come one at a time or many: a token's bits and the states
// depend on the tokens before it alone. What lies where in a block is told in octavo/kernels/state_space.py.
#pragma once

#include "lanes.h"
#include "rows.h"
#include "team.h"
#include "weights.h"

namespace octavo {

constexpr int64_t kMaxConvWidth = 8;
constexpr int64_t kConvChannels = 128;  // of a chunk

// Where a step's rows are; all in memory that each step fills anew.
struct StateRows {
    const int32_t* counts;  // rows, decoding rows, tokens, ...
    const int32_t* query_starts;
    const int32_t* seq_lens;
    const int32_t* block_tables;
    const int32_t* slots;
    int64_t table_stride;
    int32_t num_columns;  // of the block tables
    int32_t page_size, num_places;
};

// The states of a layer.
struct StatePages {
    void* memory;
    int64_t block_stride, place_stride;  // elements
};

// silu(bias + sum of the last `width` inputs times their weights), for each channel.
struct CausalConv {
    StateRows rows;
    StatePages states;   // [channels, width - 1] each, of the type of x
    const void* x;       // [num_tokens, channels], of which the first counts[2] are the step's
    const void* weight;  // [channels, width]
    const void* bias;    // [channels]; null: none
    void* to;            // [num_tokens, channels]; padding becomes zero
    int64_t x_stride, num_tokens;
    int32_t channels, width;
    Type type;
    int64_t chunks_of_row() const { return (channels + kConvChannels - 1) / kConvChannels; }
    int64_t count_chunks() const { return rows.counts[0] * chunks_of_row() + 1; }
    void run(int64_t chunk) const;
};

// h = e^(step * A) h + step * x B^T, y = h C + D x, for each head.
struct StateSpaceScan {
    StateRows rows;
    StatePages states;                  // [heads, head_dim, state_size] each, float32
    const void *x, *dt, *b, *c;         // [num_tokens, ...], of which the first counts[2] are the step's
    const float *a_log, *d, *dt_bias;   // [heads]
    void* to;                           // [num_tokens, heads, head_dim]; padding becomes zero
    int32_t x_stride, dt_stride, b_stride, c_stride, num_tokens;
    int32_t num_heads, head_dim, num_groups, state_size;
    float least_step, most_step;
    Type type;
    int64_t count_chunks() const { return rows.counts[0] * num_heads + 1; }
    void run(int64_t chunk) const;
};

// The norm of x * silu(gate), of each `group_size` values by themselves.
struct GatedNorm {
    const void *x, *gate, *weight;
    void* to;
    int64_t num_rows, size, group_size, x_stride, gate_stride;
    float eps;
    Type type, weight_type;
    int64_t count_chunks() const { return chunks_of(num_rows); }
    void run(int64_t chunk) const;
};

}  // namespace octavo
