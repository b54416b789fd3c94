// Attention of every token to all tokens of its sequence, or to those near it, without a cache: what encoders use.
//
// Sequences lie end to end. Keys and values are copied into the scratch memory first, sixteen tokens of one sequence
// together, so that scores are computed as those of paged attention are (see scores.h). A query's scores are all there
// before its softmax: its sums run over the sequence's keys in order, in one accumulator each, and do not depend on other
// sequences.
#pragma once

#include "lanes.h"
#include "team.h"
#include "weights.h"

namespace octavo {

constexpr int64_t kPackedTile = 48;  // tokens of a sequence that are worked on together; a multiple of kLanes

// Some tokens of a sequence; tiles of kPackedTile tokens, the last one of a sequence may have fewer.
struct PackedTile {
    int32_t start, length;  // of the sequence: its first token in the step, number of tokens
    int32_t place;          // of the sequence among all, each rounded up to a multiple of kLanes
    int32_t first;          // of the tile's tokens in the sequence
};

struct PackedLayer {
    const void* qkv;  // [tokens, heads + 2 * kv_heads, head_dim]
    void* to;         // [tokens, heads, head_dim]
    const PackedTile* tiles;
    int32_t num_tiles, num_places;  // places: of all sequences
    int32_t num_heads, num_kv_heads, head_dim;
    int32_t window;  // tokens on each side that a query sees, itself included; 0: all
    float scale, softcap;  // softcap 0: none
    Type type;

    // Values of a head in memory, padded with zeros.
    int64_t padded_dim() const { return (head_dim + kLanes - 1) / kLanes * kLanes; }
    // The keys of a key head are followed by its values; in elements of the staged type.
    int64_t head_size() const { return 2 * num_places * padded_dim(); }
};

// Copies keys and values into the scratch memory: bfloat16 in pairs where pairs are multiplied, float32 otherwise.
struct StagePacked {
    PackedLayer layer;
    int64_t count_chunks() const;
    void run(int64_t chunk) const;
};

struct AttendPacked {
    PackedLayer layer;
    int64_t count_chunks() const { return (int64_t)layer.num_tiles * layer.num_heads; }
    void run(int64_t chunk) const;
};

}  // namespace octavo
