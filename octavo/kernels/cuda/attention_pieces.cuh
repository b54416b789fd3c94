// A warp's pieces of 16 tokens in decode attention: their copies, scores and weighted sums; see attention.cu.

#pragma once

#include "attention_layout.cuh"

// What a warp attends to: every ALL_WARPS-th piece of a row, and its ring in shared memory.
struct Pieces {
    // A warp copies 512 bytes of a piece at a time; their places in shared memory, but for a distance that is the same
    // for all lanes, repeat after so many copies.
    static constexpr int COPIES = PIECE_BYTES / 512, PERIOD = HEAD_DIM == 128 ? 4 : 2;

    const u16* keys;  // of the head in the first block, for this lane to copy
    const int* table;
    i64 part_stride, block_stride;
    u32 ring;
    int log_block_size;
    int first, count;
    int end;  // position of the new token
    int lane;
    int block;         // that of the i-th piece for the lane i % 32, of 32 pieces at a time
    u32 spots[PERIOD];  // in a stage, of this lane's copies

    __device__ __forceinline__ Pieces(
        const Operands& operands, const Context& context, const u16* cache, int slot, u32 ring, int own)
        : table(operands.block_tables + slot * operands.table_stride),
          part_stride(operands.part_stride),
          block_stride(operands.block_stride),
          ring(ring),
          log_block_size(operands.log_block_size),
          first(own),
          count(max(context.num_pieces - own + ALL_WARPS - 1, 0) / ALL_WARPS),
          end(context.end),
          lane(threadIdx.x % 32) {
        load_blocks(0);
        keys = cache + lane * 8;
#pragma unroll
        for (int i = 0; i < PERIOD; i++) {
            const int token = i * (32 / CHUNKS) + lane / CHUNKS;
            spots[i] = chunk_offset(token, lane % CHUNKS) - i * 512;
        }
    }

    // Of the i-th piece's first token.
    __device__ __forceinline__ int position(int i) const { return (first + i * ALL_WARPS) * PIECE; }

    __device__ __forceinline__ void load_blocks(int i) {
        block = i + lane < count ? load_word(table + (position(i + lane) >> log_block_size)) : 0;
    }

    __device__ __forceinline__ i64 offset(int position, int block) const {
        return block * block_stride + (position & ((1 << log_block_size) - 1)) * HEAD_DIM;
    }

    // Where a token's key lies, from the first block's.
    __device__ __forceinline__ i64 offset(int position) const {
        return offset(position, load_word(table + (position >> log_block_size)));
    }

    __device__ __forceinline__ u32 stage(int i) const { return ring + i % STAGES * (2 * PIECE_BYTES); }

    // Requests the i-th piece, if there is one, as one group of copies.
    __device__ __forceinline__ void request(int i) {
        if (i < count) {
            if (i > 0 && i % 32 == 0) load_blocks(i);
            const int start = position(i);
            const u16* key = keys + offset(start, __shfl_sync(~0u, block, i % 32));
            const u16* value = key + part_stride;
            const u32 to = stage(i);
            const int num_tokens = end - start - lane / CHUNKS;  // of this lane's, and those behind it
#pragma unroll
            for (int j = 0; j < COPIES; j++) {
                const u32 spot = to + spots[j % PERIOD], num_bytes = j * (32 / CHUNKS) < num_tokens ? 16 : 0;
                copy_async(spot + j * 512, key + j * 256, num_bytes);
                copy_async(spot + j * 512 + PIECE_BYTES, value + j * 256, num_bytes);
            }
        }
        end_copy_group();
    }
};

// Peaks need not be the largest scores: weights up to 2 to this power lose nothing.
constexpr float SLACK = 8;

// A warp's softmax over its pieces. A lane has the queries 2 (lane % 4) and the next one.
struct Softmax {
    float peaks[2] = {LOWEST, LOWEST};  // what weights are relative to
    float totals[2] = {0, 0};  // of this lane's tokens
    float sums[TILES][4] = {};

    // Scores of 16 tokens (rows lane / 4, and 8 further) and two queries.
    __device__ __forceinline__ static void score(float (&scores)[4], u32 stage, const u32 (&queries)[WORDS], int lane) {
        float odd[4] = {};
#pragma unroll
        for (int i = 0; i < 4; i++) scores[i] = 0;
#pragma unroll
        for (int i = 0; i < WORDS / 4; i++) {
            const int token = lane / 4, chunk = i * 4 + lane % 4;
            const Words low = load_shared<Words>(stage + chunk_offset(token, chunk));
            const Words high = load_shared<Words>(stage + chunk_offset(token + 8, chunk));
            multiply_add(scores, {low.words[0], high.words[0], low.words[1], high.words[1]}, queries[i * 4],
                         queries[i * 4 + 1]);
            multiply_add(odd, {low.words[2], high.words[2], low.words[3], high.words[3]}, queries[i * 4 + 2],
                         queries[i * 4 + 3]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) scores[i] += odd[i];
    }

    __device__ __forceinline__ static void load_values(u32 (&values)[TILES][4], u32 stage, int lane) {
        const int token = lane % 8 + lane / 16 * 8;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
            load_transposed(stage + PIECE_BYTES + chunk_offset(token, tile * 2 + lane / 8 % 2), values[tile]);
    }

    // Raises the peaks to the largest of the lanes' scores, and scales what is summed up so far to fit.
    __device__ __forceinline__ void raise_peaks(float (&largest)[2]) {
        float decays[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
            for (int distance = 4; distance < 32; distance *= 2)
                largest[j] = fmaxf(largest[j], __shfl_xor_sync(~0u, largest[j], distance));
            largest[j] = fmaxf(largest[j], peaks[j]);
            decays[j] = exp2_of(peaks[j] - largest[j]);
            peaks[j] = largest[j];
            totals[j] *= decays[j];
        }
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int j = 0; j < 4; j++) sums[tile][j] *= decays[j % 2];
    }

    // Adds AT_ONCE pieces from the i-th on, as far as they are there.
    __device__ __forceinline__ void add(const Pieces& pieces, int i, const u32 (&queries)[WORDS], float scale) {
        const int lane = pieces.lane;
        float scores[AT_ONCE][4];
        float largest[2] = {LOWEST, LOWEST};
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (i + u >= pieces.count) break;
            score(scores[u], pieces.stage(i + u), queries, lane);
            const int position = pieces.position(i + u) + lane / 4;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                scores[u][j] = position + j / 2 * 8 <= pieces.end ? scores[u][j] * scale : -__int_as_float(0x7f800000);
                largest[j % 2] = fmaxf(largest[j % 2], scores[u][j]);
            }
        }
        u32 values[TILES][4];
        load_values(values, pieces.stage(i), lane);
        if (__any_sync(~0u, largest[0] > peaks[0] + SLACK || largest[1] > peaks[1] + SLACK)) raise_peaks(largest);
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (i + u >= pieces.count) break;
            if (u > 0) load_values(values, pieces.stage(i + u), lane);
            float weights[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                weights[j] = exp2_of(scores[u][j] - peaks[j % 2]);
                totals[j % 2] += weights[j];
            }
            const u32 low = transpose(pack_pair(weights[0], weights[1]));
            const u32 high = transpose(pack_pair(weights[2], weights[3]));
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) multiply_add(sums[tile], values[tile], low, high);
        }
    }

    __device__ __forceinline__ void finish() {
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) {
            totals[0] += __shfl_xor_sync(~0u, totals[0], distance);
            totals[1] += __shfl_xor_sync(~0u, totals[1], distance);
        }
    }
};
