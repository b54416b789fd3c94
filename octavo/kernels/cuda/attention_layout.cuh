// What each warp of decode attention has, and where a thread block keeps it in shared memory; see attention.cu.

#pragma once

#include "mma.cuh"

typedef long long i64;

constexpr float LOG2E = 1.4426950408889634f;  // exponents are in base 2
constexpr float LOWEST = -1e30f;              // below all scores, but finite, so that its difference to itself is 0

constexpr int THREADS = WARPS * 32;
constexpr int ALL_WARPS = CLUSTER * WARPS;
constexpr int PIECE = 16;  // tokens
constexpr int ROW_BYTES = HEAD_DIM * 2;
constexpr int CHUNKS = ROW_BYTES / 16;          // of 16 bytes in a row
constexpr int PIECE_BYTES = PIECE * ROW_BYTES;  // of keys, and of values
constexpr int WORDS = HEAD_DIM / 8;             // of a query in a lane: four lanes have one
constexpr int TILES = HEAD_DIM / 16;            // of the outputs
constexpr int PAIRS = (GROUP + 1) / 2;          // of queries

// Heads of the new token are prepared by as many lanes each, in rounds of all warps.
constexpr int HEAD_LANES = HEAD_DIM / 4;
constexpr int HEADS_AT_ONCE = 32 / HEAD_LANES;
constexpr int ROUNDS = (GROUP + WARPS * HEADS_AT_ONCE) / (WARPS * HEADS_AT_ONCE);

// Blocks of a cluster that merge, each some tiles of the outputs.
constexpr int MERGERS = CLUSTER < TILES ? CLUSTER : TILES;
constexpr int OWN_TILES = TILES / MERGERS;

constexpr int RING_BYTES = STAGES * 2 * PIECE_BYTES;         // of a warp
constexpr int PARTIAL_BYTES = OWN_TILES * 8 * PAIRS * 16;    // sums of a warp in a block that merges
constexpr int SUM_BYTES = PAIRS * 16;                        // its largest scores and sums of weights
constexpr int QUERY_STRIDE = ROW_BYTES + 64;                 // half rows of two queries lie in different banks
constexpr int QUERY_PLACE = WARPS * RING_BYTES;              // the queries, behind them the new key
constexpr int VALUE_PLACE = QUERY_PLACE + 9 * QUERY_STRIDE;  // the new value
constexpr int PARTIAL_PLACE = VALUE_PLACE + ROW_BYTES;
constexpr int SUM_PLACE = PARTIAL_PLACE + ALL_WARPS * PARTIAL_BYTES;
constexpr int ARRIVED_PLACE = SUM_PLACE + ALL_WARPS * SUM_BYTES;

static_assert(GROUP <= 8 && (HEAD_DIM == 64 || HEAD_DIM == 128) && STAGES >= AT_ONCE, "see attention.cu");

// Addresses, distances in elements, sizes; mirrored in attention.py.
struct Operands {
    const u16* qkv;
    const u16* cos;
    const u16* sin;
    const u16* q_norm;
    const u16* k_norm;
    u16* kv_cache;
    const int* block_tables;
    const int* slots;
    const int* seq_lens;
    const int* counts;
    u16* out;
    i64 qkv_stride, cos_stride, sin_stride;
    i64 part_stride, block_stride, head_stride, table_stride, out_stride;
    int num_kv_heads;
    int log_block_size;
    int slot_words;  // 1, or 2 of 64-bit slots, whose upper half is 0
    float eps, scale;
};

// A row's tokens.
struct Context {
    int end;         // position of the new token
    int num_pieces;  // with it
    int num_warps;   // that have any

    __device__ __forceinline__ explicit Context(int length)
        : end(length - 1), num_pieces(end / PIECE + 1), num_warps(min(num_pieces, ALL_WARPS)) {}

    // The warp that has the last piece, and the new token.
    __device__ __forceinline__ int last_warp() const { return (num_pieces - 1) % ALL_WARPS; }
};

// Where 16 bytes of a token's key or value lie in a piece. The same chunk of eight tokens, and half the row of two, lie
// in different banks.
__device__ __forceinline__ u32 chunk_offset(int token, int chunk) {
    return token * ROW_BYTES + ((chunk ^ ((token & 1) << 2 | (token >> 1 & 3))) * 16);
}

// Loads that are not moved behind a wait.

__device__ __forceinline__ u32 load_word(const void* address) {
    u32 word;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(word) : "l"(address) : "memory");
    return word;
}

__device__ __forceinline__ Words load_words(const void* address) {
    Words values;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(values.words[0]), "=r"(values.words[1]), "=r"(values.words[2]), "=r"(values.words[3])
                 : "l"(address)
                 : "memory");
    return values;
}
