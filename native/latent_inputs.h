// What precedes latent attention: the rotation of heads, and a token's vector in the cache.
#pragma once

#include "cache_values.h"
#include "team.h"
#include "weights.h"

namespace octavo {

// Cosines and sines of the step's tokens, [tokens, size], the first half of the sines negated. Pairs of values that turn
// together are size / 2 apart in results; where they come from, they may be neighbours.
struct Rotation {
    const void *cos, *sin;
    int32_t size;
    int32_t is_interleaved;
};

// Rotates a part of each head, which is first in the result; the rest follows as it is.
struct RotateHeads {
    const void* x;
    void* to;
    Rotation rotation;
    int64_t x_stride, x_head, to_stride, to_head;  // elements: from a token to the next, from a head to the next
    int64_t num_tokens;
    int32_t num_heads, head_dim;
    int32_t is_last;  // whether the part that turns is a head's last
    Type type;
    int64_t count_chunks() const { return (num_tokens + 3) / 4; }
    void run(int64_t chunk) const;
};

// Writes a step's vectors into the cache, rounded if it is one of 8 bits: as they are, or with all but their last values
// normed, and those rotated.
struct StoreLatent {
    const unsigned char* latent;
    unsigned char* cache;
    const int64_t* slot_mapping;  // [num_tokens]; -1 stores nothing
    int64_t num_tokens, row_bytes, row_stride, block_stride, block_size;  // of the cache, but for row_stride; in bytes
    Type type;                                                            // of the vectors
    CacheType cache_type;
    CacheFactors factors;
    const void* norm;  // null: vectors are stored as they are
    Type norm_type;
    float eps;
    Rotation rotation;
    static constexpr int64_t kTokens = 4;  // of a chunk
    int64_t count_chunks() const { return (num_tokens + kTokens - 1) / kTokens; }
    void run(int64_t chunk) const;
};

}  // namespace octavo
