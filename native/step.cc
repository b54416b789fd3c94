#include "step.h"

#include <algorithm>

namespace octavo {
void PrepareInputs::run(int64_t) const {
    const int64_t real_rows = state.header[0], real_tokens = state.header[2];
    int64_t token = 0;
    for (int64_t row = 0; row < real_rows; ++row) {
        const int64_t slot = state.row_slots[row], first = state.num_computed[slot], count = state.row_num_new[row];
        query_starts[row] = (int32_t)token;
        seq_lens[row] = (int32_t)(first + count);
        last_tokens[row] = token + count - 1;
        for (int64_t position = first; position < first + count; ++position, ++token) {
            const int32_t sent = state.step_tokens[token];
            token_ids[token] = sent >= 0 ? sent : *state.place(slot, position);
            positions[token] = position;
            for (int64_t group = 0; group < state.num_groups; ++group) {
                const int64_t size = state.block_sizes[group], block = position / size;
                const int32_t* table = state.block_tables + (group * state.num_slots + slot) * state.max_blocks;
                // A step that runs ahead may reach past the longest sequence; its results are never read.
                slot_mapping[group * mapping_stride + token] =
                    block < state.max_blocks ? table[block] * size + position % size : -1;
            }
        }
    }
    std::fill(query_starts + real_rows, query_starts + num_rows + 1, (int32_t)real_tokens);
    std::fill(seq_lens + real_rows, seq_lens + num_rows, 0);
    std::fill(last_tokens + real_rows, last_tokens + num_rows, 0);
    std::fill(token_ids + real_tokens, token_ids + num_tokens, 0);
    std::fill(positions + real_tokens, positions + num_tokens, 0);
    for (int64_t group = 0; group < state.num_groups; ++group)
        std::fill(slot_mapping + group * mapping_stride + real_tokens, slot_mapping + group * mapping_stride + num_tokens,
                  -1);
}

void AppendTokens::run(int64_t) const {
    for (int64_t row = 0; row < state.header[0]; ++row) {
        const int64_t slot = state.row_slots[row], length = state.num_computed[slot] + state.row_num_new[row];
        state.num_computed[slot] = (int32_t)length;
        const bool is_drawn = state.row_num_drawn[row] > 0;
        new_tokens[row] = is_drawn ? (int32_t)drawn[row] : 0;
        if (is_drawn) *state.place(slot, length) = std::max((int32_t)drawn[row], 0);
    }
}

}  // namespace octavo
