// Packs, unpacks and makes weights in the formats of blocks.h.
#pragma once

#include "blocks.h"
#include "gemm.h"
#include "team.h"

namespace octavo {

// Numbers of the formats, in the order of kSpecs.
enum Block : int32_t { kBlockInt8 = 12, kBlockInt4 = 13, kBlockMXFP4 = 14 };

// Numbers of types from here on are blocks.
constexpr int32_t kFirstBlock = 16;

// Rows of a file's blocks to panels; in place if a panel is as large as its rows.
struct PackBlocks {
    const unsigned char* from;
    unsigned char* to;
    int64_t num_outputs, num_inputs;
    int32_t block;
    int64_t count_chunks() const { return (num_outputs + kLanes - 1) / kLanes; }
    void run(int64_t panel) const;
};

// Rounds rows of floating-point weights to int8, int4 or mxfp4.
struct Quantize {
    const unsigned char* from;
    unsigned char* to;
    int64_t num_outputs, num_inputs;
    int32_t block;
    Type type;
    int64_t count_chunks() const { return (num_outputs + kLanes - 1) / kLanes; }
    void run(int64_t panel) const;
};

// Rows of packed weights, as floating-point numbers.
struct GatherBlocks {
    const unsigned char* weights;
    const int64_t* index;
    unsigned char* to;  // [num_rows, num_inputs]
    int64_t num_rows, num_inputs;
    int32_t block;
    Type type;
    int64_t count_chunks() const { return (num_rows + 7) / 8; }
    void run(int64_t chunk) const;
};

// Rounds rows of x to 8 bits, in the scratch memory.
struct StageBlocks {
    const unsigned char* x;
    int64_t num_rows, num_inputs, x_stride;  // stride in bytes
    int32_t tile_rows;
    Type type;
    int32_t group, zero;  // of the weights
    int64_t first = 0;    // rows of the scratch memory before these
    int64_t count_chunks() const;
    void run(int64_t chunk) const;
};

// The function that computes a block of y with weights of a format, and the rows of its tiles.
decltype(Gemm::run_block) find_run_block_of(int32_t block);
constexpr TileRows kBlockTileRows{BlockFormat<0>::kWideRows, BlockFormat<0>::kTallRows};

// Bytes of one row of a file's blocks.
int64_t raw_row_bytes(int32_t block, int64_t num_inputs);

}  // namespace octavo
