// The two ends of a step: from the batch's state to the model's inputs, and drawn tokens back to it.
// Names and meanings are those of octavo/kernels/step.py, which has the same in PyTorch.
#pragma once

#include "weights.h"

namespace octavo {

struct BatchState {
    const int32_t *header, *row_slots, *row_num_new, *row_num_drawn;
    int32_t *num_computed, *recent_tokens;
    const int32_t *step_tokens, *block_tables, *block_sizes;
    int64_t num_slots, num_recent, num_groups, max_blocks;

    // The place of a position's token; the number of recent tokens is a power of two.
    int32_t* place(int64_t slot, int64_t position) const {
        return recent_tokens + slot * num_recent + (position & (num_recent - 1));
    }
};

struct PrepareInputs {
    BatchState state;
    int64_t *token_ids, *positions, *slot_mapping, *last_tokens;
    int32_t *query_starts, *seq_lens;
    int64_t mapping_stride, num_rows, num_tokens;  // elements from a group's mapping to the next; bounds
    int64_t count_chunks() const { return 1; }
    void run(int64_t) const;
};

struct AppendTokens {
    BatchState state;
    const int64_t* drawn;
    int32_t* new_tokens;
    int64_t count_chunks() const { return 1; }
    void run(int64_t) const;
};

}  // namespace octavo
