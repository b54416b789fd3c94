#include "step.h"

#include <algorithm>
#include <limits>

namespace octavo {
namespace {

constexpr int64_t kBlock = 256;

// Whether any of sixteen values is a NaN: its bits without the sign are above those of infinity.
Ints nan_bits(const Lanes& x) {
    Ints found{};
    OCTAVO_EACH_PART found |= (bit_cast<Ints>(x.part[i]) & 0x7fffffff) > 0x7f800000;
    return found;
}

bool has_any(const Ints& bits) {
    for (int i = 0; i < kWidth; ++i)
        if (bits[i] != 0) return true;
    return false;
}

template <class T>
void find_largest(const Argmax& arguments, int64_t row) {
    const T* x = reinterpret_cast<const T*>(arguments.x + row * arguments.stride);
    const int64_t size = arguments.size;
    float best = -std::numeric_limits<float>::infinity();
    int64_t best_block = 0;
    Ints nans{};
    for (int64_t start = 0; start < size; start += kBlock) {
        const int64_t stop = std::min(start + kBlock, size);
        Lanes most = splat(-std::numeric_limits<float>::infinity());
        int64_t i = start;
        for (; i + kLanes <= stop; i += kLanes) {
            const Lanes values = load(x + i);
            most = max(values, most);
            nans |= nan_bits(values);
        }
        float largest_here = largest(most);
        for (; i < stop; ++i) {
            const float value = to_float(x[i]);
            if (value != value) nans[0] = 1;
            largest_here = value > largest_here ? value : largest_here;
        }
        if (largest_here > best) {
            best = largest_here;
            best_block = start;
        }
    }
    const bool is_nan = has_any(nans);
    int64_t place = is_nan ? 0 : best_block;
    const auto is_it = [&](float value) { return is_nan ? value != value : value == best; };
    while (place < size && !is_it(to_float(x[place]))) ++place;
    arguments.places[row] = place < size ? place : 0;
    arguments.values[row] = is_nan ? std::numeric_limits<float>::quiet_NaN() : best;
}

}  // namespace

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

void Argmax::run(int64_t row) const {
    by_type(type, [&](auto value) { find_largest<decltype(value)>(*this, row); });
}

}  // namespace octavo
