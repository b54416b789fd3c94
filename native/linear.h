// GEMMs with packed weights: what the module calls.
#pragma once

#include "gemm.h"
#include "weights.h"

namespace octavo {

// Bytes of a packed weight [num_outputs, num_inputs] of a type.
int64_t packed_bytes(Type type, int64_t num_outputs, int64_t num_inputs);

// Rewrites rows of weights, in place if `to` is `from`: every sixteen rows become a panel.
struct Pack {
    const unsigned char* from;
    unsigned char* to;
    int64_t num_outputs, num_inputs;
    Type type;
    int64_t count_chunks() const { return (num_outputs + kLanes - 1) / kLanes; }
    void run(int64_t panel) const;
};

// Rows of a packed weight as they were: a token embedding that shares its memory with the head.
struct GatherPacked {
    const unsigned char* weights;
    const int64_t* index;
    unsigned char* to;  // [num_rows, num_inputs]
    int64_t num_rows, num_inputs;
    Type type;
    int64_t count_chunks() const { return (num_rows + 7) / 8; }
    void run(int64_t chunk) const;
};

// Converts rows of x into what the tiles of a format read, in the scratch memory.
struct Stage {
    const unsigned char* x;
    int64_t num_rows, num_inputs, x_stride, to_stride;  // strides in bytes
    Type from, into;
    int64_t count_chunks() const;
    void run(int64_t chunk) const;
};

// The type in which tiles of a weight's type read x.
Type staged_type(Type weight);

// The function that computes a block of y, of type `y`.
decltype(Gemm::run_block) find_block(Type weight, Type y);

}  // namespace octavo
