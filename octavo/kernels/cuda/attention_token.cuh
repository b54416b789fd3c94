// The new token of decode attention: norms and rotation of queries and key, and its store; see attention.cu.

#pragma once

#include "attention_layout.cuh"

// Four dimensions of a head in a lane: two neighbours, and the two that they are rotated with.
struct Quarter {
    u32 first, second;

    __device__ __forceinline__ void load(const u16* head, int lane) {
        first = load_word(head + lane * 2);
        second = load_word(head + HEAD_DIM / 2 + lane * 2);
    }
};

// What the heads are multiplied by.
struct Factors {
    Quarter cos, sin, query_norm, key_norm;

    __device__ __forceinline__ Factors(const Operands& operands, int row) {
        const int lane = threadIdx.x % HEAD_LANES;
        cos.load(operands.cos + row * operands.cos_stride, lane);
        sin.load(operands.sin + row * operands.sin_stride, lane);
        if (NORMED) query_norm.load(operands.q_norm, lane), key_norm.load(operands.k_norm, lane);
    }

    // Norms and rotates a head, rounding after each step as the separate kernels do.
    __device__ __forceinline__ Quarter apply(Quarter head, bool is_key, float eps) const {
        float2 x = unpack_pair(head.first), y = unpack_pair(head.second);
        if (NORMED) {
            float squares = x.x * x.x + x.y * x.y + (y.x * y.x + y.y * y.y);
#pragma unroll
            for (int distance = HEAD_LANES / 2; distance; distance /= 2)
                squares += __shfl_xor_sync(~0u, squares, distance);
            const float inverse = rsqrtf(squares / HEAD_DIM + eps);
            const float2 x_weight = unpack_pair(is_key ? key_norm.first : query_norm.first);
            const float2 y_weight = unpack_pair(is_key ? key_norm.second : query_norm.second);
            x = unpack_pair(pack_pair(x.x * inverse, x.y * inverse));
            y = unpack_pair(pack_pair(y.x * inverse, y.y * inverse));
            x = unpack_pair(pack_pair(x.x * x_weight.x, x.y * x_weight.y));
            y = unpack_pair(pack_pair(y.x * y_weight.x, y.y * y_weight.y));
        }
        const float2 x_cos = unpack_pair(cos.first), x_sin = unpack_pair(sin.first);
        const float2 y_cos = unpack_pair(cos.second), y_sin = unpack_pair(sin.second);
        head.first = pack_pair(x.x * x_cos.x + y.x * x_sin.x, x.y * x_cos.y + y.y * x_sin.y);
        head.second = pack_pair(y.x * y_cos.x + x.x * y_sin.x, y.y * y_cos.y + x.y * y_sin.y);
        return head;
    }
};

// Prepares the queries and leaves them in shared memory; the same with the key and the value if `place`, where the key
// goes in the cache, is not null. HEADS_AT_ONCE heads of a warp follow each other: queries, then the key.
__device__ __forceinline__ void prepare_token(
    u32 shared, const Operands& operands, const Factors& factors, int row, int head, u16* place) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % HEAD_LANES, in_warp = threadIdx.x % 32 / HEAD_LANES;
    const int num_prepared = place ? GROUP + 1 : GROUP;
    const u16* qkv = operands.qkv + row * operands.qkv_stride;
    const u16* own_key = qkv + (operands.num_kv_heads * GROUP + head) * HEAD_DIM;
    Quarter heads[ROUNDS];
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        const int own = (i * WARPS + warp) * HEADS_AT_ONCE + in_warp;
        if (own < num_prepared) heads[i].load(own < GROUP ? qkv + (head * GROUP + own) * HEAD_DIM : own_key, lane);
    }
    const bool has_value = place && threadIdx.x >= THREADS - CHUNKS;
    const int chunk = threadIdx.x - (THREADS - CHUNKS);
    Words value;
    if (has_value) value = load_words(own_key + operands.num_kv_heads * HEAD_DIM + chunk * 8);
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        const int own = (i * WARPS + warp) * HEADS_AT_ONCE + in_warp;
        const Quarter prepared = factors.apply(heads[i], own == GROUP, operands.eps);
        if (own < num_prepared) {
            const u32 to = shared + QUERY_PLACE + own * QUERY_STRIDE + lane * 4;
            store_shared_word(to, prepared.first);
            store_shared_word(to + ROW_BYTES / 2, prepared.second);
        }
        if (own == GROUP && place) {
            reinterpret_cast<u32*>(place)[lane] = prepared.first;
            reinterpret_cast<u32*>(place)[HEAD_LANES + lane] = prepared.second;
        }
    }
    if (has_value) {
        store_shared_words(shared + VALUE_PLACE + chunk * 16, value);
        reinterpret_cast<Words*>(place + operands.part_stride)[chunk] = value;
    }
}

// A lane's part of the queries as a matmul's second operand: 16 bytes of every 64 of query lane / 4. Which dimensions
// are neighbours in it does not matter, if they are the same as in the keys.
__device__ __forceinline__ void load_queries(u32 (&queries)[WORDS], u32 shared, int lane) {
    const u32 from = shared + QUERY_PLACE + lane / 4 * QUERY_STRIDE + lane % 4 * 16;
#pragma unroll
    for (int i = 0; i < WORDS; i += 4) {
        const Words chunk = load_shared<Words>(from + i * 16);
#pragma unroll
        for (int j = 0; j < 4; j++) queries[i + j] = lane / 4 < GROUP ? chunk.words[j] : 0;
    }
}

// Copies the new token's key and value into a piece, as its token of this number.
__device__ __forceinline__ void insert_token(u32 shared, u32 piece, int token, int lane) {
    for (int i = lane; i < 2 * CHUNKS; i += 32) {
        const int chunk = i % CHUNKS;
        const u32 from = shared + (i < CHUNKS ? QUERY_PLACE + GROUP * QUERY_STRIDE : VALUE_PLACE);
        const u32 to = piece + i / CHUNKS * PIECE_BYTES + chunk_offset(token, chunk);
        store_shared_words(to, load_shared<Words>(from + chunk * 16));
    }
    __syncwarp();
}
