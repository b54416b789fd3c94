// GEMMs of heads: y[:, h] = x[:, h] W[h]ᵀ, with a packed weight for each head, as one operation.
#pragma once

#include "linear.h"

namespace octavo {

struct HeadLinear {
    const unsigned char* weights;  // [heads] packed weights
    const unsigned char* x;        // rows of one head after another's, or as far apart as the strides say
    unsigned char* y;
    int64_t weight_bytes;                  // of a head
    int64_t x_stride, x_head, y_head;      // bytes from a row to the next, from a head to the next
    int64_t y_stride;                      // elements
    int32_t num_rows, num_outputs, num_inputs, num_heads;
    Type weight_type, x_type, y_type;

    // A chunk has some rows of a head and, where there would be too few chunks, a part of the outputs. It stages its rows
    // itself, in its thread's memory: they are few, and nobody waits for them.
    static constexpr int64_t kRows = 96;
    int64_t num_row_blocks() const { return (num_rows + kRows - 1) / kRows; }
    int64_t num_units() const { return (num_outputs + kUnit * kLanes - 1) / (kUnit * kLanes); }
    int64_t units_per_chunk() const {
        const int64_t wanted = std::max<int64_t>(1, 4 * num_threads() / (num_heads * num_row_blocks()));
        return std::max<int64_t>((num_units() + wanted - 1) / wanted, std::min<int64_t>(num_units(), 4));
    }
    int64_t chunks_per_block() const { return (num_units() + units_per_chunk() - 1) / units_per_chunk(); }
    int64_t count_chunks() const { return num_rows == 0 ? 0 : num_heads * num_row_blocks() * chunks_per_block(); }
    void run(int64_t chunk) const;
    Stream stream() const {
        if (num_rows == 0) return {};
        return {weights, weight_bytes / chunks_per_block(), 0, weight_bytes * num_heads};
    }
};

}  // namespace octavo
