// GEMMs with packed weights: what the module calls.
#pragma once

#include <vector>

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

// Converts rows of x into what the tiles of a format read, in the scratch memory or elsewhere: for each input, or pair of
// inputs, the values of a tile's rows.
struct Stage {
    const unsigned char* x;
    int64_t num_rows, num_inputs, x_stride;  // stride in bytes
    int32_t tile_rows, unit;                 // inputs that lie together
    Type from, into;
    int64_t first = 0;                       // rows of the scratch memory before these
    unsigned char* to = nullptr;  // null: the scratch memory, which is reserved when chunks are counted
    int64_t row_bytes() const { return (num_inputs + unit - 1) / unit * unit * (into == kFloat32 ? 4 : 2); }
    int64_t num_tiles() const { return (num_rows + tile_rows - 1) / tile_rows; }
    int64_t count_chunks() const;
    void run(int64_t chunk) const;
};

// How tiles of a weight's type read x.
struct Staging {
    Type type;
    int32_t unit;     // inputs of a row that lie together
    TileRows rows;
    bool reads_rows;  // also where they are; otherwise one row is a tile as it is, but others are staged
    bool is_needed(Type x, int64_t num_rows, int64_t num_inputs) const {
        return x != type || num_inputs % unit != 0 || (num_rows > 1 && !reads_rows);
    }
};
Staging staging_of(Type weight);

// Makes a GEMM's x, rows of a type, what its tiles read: as it is, or staged in `memory`.
void stage_rows(Gemm& gemm, const Staging& staging, Type type, std::vector<unsigned char>& memory);

// The functions that compute a block of y, and that write it in its type.
decltype(Gemm::run_block) find_run_block(Type weight);
decltype(Gemm::store_tile) find_store_tile(Type y);

}  // namespace octavo
