// AMX: eight tiles of up to sixteen rows of 64 bytes, and products of them. With OCTAVO_EMULATE_TILES, which a build for
// tests sets, plain C++ computes the same sums in the same order on any processor.
//
// Tiles belong to a thread. A kernel gives them their shape before it uses them, and whoever runs kernels releases them.
#pragma once

#if defined(__AMX_BF16__) || defined(OCTAVO_EMULATE_TILES)
#define OCTAVO_HAS_TILES
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace octavo {

// Why this process may not use tiles; null if it may, or if the build does without them. Linux grants their use once
// asked, to all threads of the process.
const char* why_no_tiles();

constexpr int kTileRows = 16, kTileBytes = 64;  // rows of a tile, and bytes of each

#if defined(OCTAVO_HAS_TILES)
// What the tiles are used for: sums 0 to 3, rows of x in 4 and 5, weights in 6 and 7.
constexpr int kXTiles = 4, kWeightTiles = 6;

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

struct TileShape {
    int rows = 0, depth = 0;
};
inline thread_local TileShape g_tile_shape;

#if defined(OCTAVO_EMULATE_TILES)
struct Tiles {
    TileConfig config;
    unsigned char bytes[8][kTileRows][kTileBytes];
};
inline thread_local Tiles g_tiles;

// What the processor rejects, ends the process here as well.
inline void require(bool is_valid) {
    if (!is_valid) __builtin_trap();
}

inline void load_config(const TileConfig& config) {
    require(config.palette == 1);
    for (int tile = 0; tile < 16; ++tile) {
        require(config.rows[tile] <= (tile < 8 ? kTileRows : 0) && config.row_bytes[tile] <= (tile < 8 ? kTileBytes : 0));
        require((config.rows[tile] == 0) == (config.row_bytes[tile] == 0));
    }
    g_tiles.config = config;
    std::memset(g_tiles.bytes, 0, sizeof(g_tiles.bytes));
}
inline void drop_tiles() { g_tiles.config = {}; }
inline void require_shapes(int sums, int x, int weights) {
    const TileConfig& config = g_tiles.config;
    require(config.rows[sums] > 0 && config.rows[sums] == config.rows[x]);
    require(config.row_bytes[x] == 4 * config.rows[weights] && config.row_bytes[weights] == config.row_bytes[sums]);
}

template <int kTile>
inline void clear_tile() {
    require(g_tiles.config.rows[kTile] > 0);
    std::memset(g_tiles.bytes[kTile], 0, sizeof(g_tiles.bytes[kTile]));
}
template <int kTile>
inline void load_tile(const void* from, int64_t stride) {
    require(g_tiles.config.rows[kTile] > 0);
    for (int r = 0; r < g_tiles.config.rows[kTile]; ++r)
        std::memcpy(g_tiles.bytes[kTile][r], static_cast<const unsigned char*>(from) + r * stride,
                    g_tiles.config.row_bytes[kTile]);
}
template <int kTile>
inline void keep_tile(void* to, int64_t stride) {
    require(g_tiles.config.rows[kTile] > 0);
    for (int r = 0; r < g_tiles.config.rows[kTile]; ++r)
        std::memcpy(static_cast<unsigned char*>(to) + r * stride, g_tiles.bytes[kTile][r],
                    g_tiles.config.row_bytes[kTile]);
}

template <int kSums, int kX, int kWeights>
inline void add_bfloat16_products() {
    require_shapes(kSums, kX, kWeights);
    for (int m = 0; m < g_tiles.config.rows[kSums]; ++m) {
        float terms[2][16] = {};  // even and odd ones apart
        for (int k = 0; k < g_tiles.config.row_bytes[kX] / 4; ++k) {
            for (int n = 0; n < 16; ++n) {
                for (int i = 0; i < 2; ++i) {
                    const auto value = [&](int tile, int row, int at) {
                        uint16_t half;
                        std::memcpy(&half, g_tiles.bytes[tile][row] + 2 * at, 2);
                        const uint32_t bits = (uint32_t)half << 16;
                        float number;
                        std::memcpy(&number, &bits, 4);
                        return number;
                    };
                    terms[i][n] += value(kX, m, 2 * k + i) * value(kWeights, k, 2 * n + i);
                }
            }
        }
        float sums[16];
        std::memcpy(sums, g_tiles.bytes[kSums][m], sizeof(sums));
        for (int n = 0; n < 16; ++n) sums[n] += terms[0][n] + terms[1][n];
        std::memcpy(g_tiles.bytes[kSums][m], sums, sizeof(sums));
    }
}

template <int kSums, int kX, int kWeights>
inline void add_byte_products() {
    require_shapes(kSums, kX, kWeights);
    for (int m = 0; m < g_tiles.config.rows[kSums]; ++m) {
        int32_t sums[16];
        std::memcpy(sums, g_tiles.bytes[kSums][m], sizeof(sums));
        for (int k = 0; k < g_tiles.config.row_bytes[kX]; ++k)
            for (int n = 0; n < 16; ++n)
                sums[n] += (int8_t)g_tiles.bytes[kX][m][k] * (int32_t)g_tiles.bytes[kWeights][k / 4][4 * n + k % 4];
        std::memcpy(g_tiles.bytes[kSums][m], sums, sizeof(sums));
    }
}
#else
// Not the compiler's own functions, since GCC's take no template arguments for tiles.
inline void load_config(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
inline void drop_tiles() { asm volatile("tilerelease"); }

template <int kTile>
inline void clear_tile() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
template <int kTile>
inline void load_tile(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void keep_tile(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
}

// Per row of x and output: the terms of a tile's even inputs are added up from zero and those of its odd ones, then
// both to each other, then they to the sum.
template <int kSums, int kX, int kWeights>
inline void add_bfloat16_products() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kX), "i"(kWeights));
}
// Signed bytes of x, unsigned ones of weights.
template <int kSums, int kX, int kWeights>
inline void add_byte_products() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kX), "i"(kWeights));
}
#endif

// Tiles for up to 32 rows of x, the second sixteen in tiles of their own, and for 4 * depth bytes of each.
inline void shape_tiles(int rows, int depth) {
    if (g_tile_shape.rows == rows && g_tile_shape.depth == depth) return;
    g_tile_shape = {rows, depth};
    const auto first = (uint8_t)std::min(rows, kTileRows), second = (uint8_t)(rows > kTileRows ? rows - kTileRows : first);
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) config.row_bytes[tile] = kTileBytes;
    for (int x : {0, 1}) config.row_bytes[kXTiles + x] = (uint16_t)(4 * depth);
    for (int tile : {0, 1, kXTiles}) config.rows[tile] = first;
    for (int tile : {2, 3, kXTiles + 1}) config.rows[tile] = second;
    for (int weights : {0, 1}) config.rows[kWeightTiles + weights] = (uint8_t)depth;
    load_config(config);
}

inline void release_tiles() {
    if (g_tile_shape.rows == 0) return;
    g_tile_shape = {};
    drop_tiles();
}
#else
inline void release_tiles() {}
#endif

}  // namespace octavo
