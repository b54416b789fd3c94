// Formats of packed weights with floating-point values.
#pragma once

#include "lanes.h"
#include "tiles.h"

namespace octavo {

enum Type : int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

// Calls `work` with a value of the type.
template <class Work>
inline void by_type(Type type, const Work& work) {
    if (type == kFloat32)
        work(float{});
    else if (type == kBFloat16)
        work(BFloat16{});
    else
        work(Float16{});
}

// Panels are streams that are too short for the processor to fetch far enough ahead by itself, so each read of one fetches
// what lies this far behind it into the second-level cache. Addresses past the end of all weights do no harm.
constexpr int64_t kReadAhead = 2048;  // bytes

inline void read_ahead(const unsigned char* panel) { __builtin_prefetch(panel + kReadAhead, 0, 2); }

// Rows of x and tile sizes that fill the registers: sums, weights, and one value of x.
#if defined(__AVX512F__)
constexpr int kMaxWideRows = 4, kMaxTallRows = 12;
#elif defined(__AVX2__)
constexpr int kMaxWideRows = 1, kMaxTallRows = 3;
#else
constexpr int kMaxWideRows = 1, kMaxTallRows = 3;
#endif

// Rows of x as AMX reads them: a step is 64 bytes of each row.
struct TileInputs {
    const unsigned char* first;
    int64_t row_bytes, step_bytes;  // from one row to the next, from one step to the next
    int rows;
};

// One value per output at a time: [inputs][16].
template <class T>
struct ValueFormat {
    static constexpr int kWideRows = kMaxWideRows, kTallRows = kMaxTallRows, kUnit = 1;
    static constexpr bool kWideInTiles = false, kTallInTiles = false;
    static int64_t panel_bytes(int64_t num_inputs) { return num_inputs * kLanes * sizeof(T); }

    template <int kRows, int kPanels>
    static inline void multiply(const unsigned char* const* panels, const unsigned char* x, int64_t num_inputs,
                                Lanes (&result)[kRows][kPanels]) {
        Lanes sums[kRows][kPanels];  // a copy, which stays in registers
        clear(sums);
        for (int64_t k = 0; k < num_inputs; ++k) {
            Lanes w[kPanels];
            OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p) {
                w[p] = load(reinterpret_cast<const T*>(panels[p]) + k * kLanes);
                read_ahead(panels[p] + k * kLanes * sizeof(T));
            }
            OCTAVO_UNROLL for (int r = 0; r < kRows; ++r) {
                const Lanes value = splat(reinterpret_cast<const float*>(x)[k * kRows + r]);
                OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p) sums[r][p] = fma(w[p], value, sums[r][p]);
            }
        }
        keep(sums, result);
    }
};

// Two bfloat16 values per output at a time: [inputs / 2][16][2].
#if defined(OCTAVO_HAS_TILES)
// Sixteen pairs of a panel are a tile. All rows are multiplied in tiles, single ones too: their sums have another order
// than those of pairs in registers.
struct PairFormat {
    using X = BFloat16;
    static constexpr int kWideRows = kTileRows, kTallRows = 2 * kTileRows, kUnit = 2 * kTileRows;
    static constexpr bool kWideInTiles = true, kTallInTiles = true;
    static int64_t panel_bytes(int64_t num_inputs) { return (num_inputs + 1) / 2 * kTileBytes; }

    // Sums [rows][kPanels] of up to 16 rows by four panels, or 32 by two.
    template <int kPanels>
    static inline void multiply_rows(const unsigned char* const* panels, const TileInputs& x, int64_t num_inputs,
                                     Lanes* sums) {
        if (x.rows > kTileRows)
            multiply_tiles<kPanels, kPanels == 2>(panels, x, num_inputs, sums);
        else
            multiply_tiles<kPanels, false>(panels, x, num_inputs, sums);
    }

   private:
    template <int kPanels, bool kTwice>
    static inline void multiply_tiles(const unsigned char* const* panels, const TileInputs& x, int64_t num_inputs,
                                      Lanes* sums) {
        shape_tiles(x.rows, kTileRows);
        clear_tile<0>(), clear_tile<1>(), clear_tile<2>(), clear_tile<3>();
        const int64_t num_pairs = (num_inputs + 1) / 2, num_steps = num_pairs / kTileRows;
        for (int64_t step = 0; step < num_steps; ++step) {
            const int64_t at = step * kTileRows * kTileBytes;
            if constexpr (kPanels == 4) {  // the time of more rows is that of arithmetic
                for (int p = 0; p < kPanels; ++p) {
                    const unsigned char* panel = panels[p] + at;
                    asm("" : "+r"(panel));  // so that addresses are this one and constants
                    for (int i = 0; i < kTileRows; ++i) read_ahead(panel + i * kTileBytes);
                }
            }
            load_inputs<kTwice>(x, step);
            add_panel<kTwice, 0>(panels[0] + at), add_panel<kTwice, 1>(panels[1] + at);
            if constexpr (kPanels == 4) add_panel<kTwice, 2>(panels[2] + at), add_panel<kTwice, 3>(panels[3] + at);
        }
        if (num_pairs % kTileRows != 0) {  // x has zeros behind its last value, and panels end
            alignas(64) unsigned char rest[kPanels][kTileRows * kTileBytes] = {};
            for (int p = 0; p < kPanels; ++p)
                std::memcpy(rest[p], panels[p] + num_steps * sizeof(rest[p]), num_pairs % kTileRows * kTileBytes);
            load_inputs<kTwice>(x, num_steps);
            add_panel<kTwice, 0>(rest[0]), add_panel<kTwice, 1>(rest[1]);
            if constexpr (kPanels == 4) add_panel<kTwice, 2>(rest[2]), add_panel<kTwice, 3>(rest[3]);
        }
        keep_tile<0>(sums, kPanels * kTileBytes), keep_tile<1>(sums + 1, kPanels * kTileBytes);
        Lanes* others = kTwice ? sums + kTileRows * kPanels : sums + 2;
        if constexpr (kTwice || kPanels == 4)
            keep_tile<2>(others, kPanels * kTileBytes), keep_tile<3>(others + 1, kPanels * kTileBytes);
    }

    template <bool kTwice>
    static inline void load_inputs(const TileInputs& x, int64_t step) {
        const unsigned char* from = x.first + step * x.step_bytes;
        load_tile<kXTiles>(from, x.row_bytes);
        if constexpr (kTwice) load_tile<kXTiles + 1>(from + kTileRows * x.row_bytes, x.row_bytes);
    }

    template <bool kTwice, int kPanel>
    static inline void add_panel(const unsigned char* weights) {
        constexpr int kWeights = kWeightTiles + kPanel % 2;
        load_tile<kWeights>(weights, kTileBytes);
        add_bfloat16_products<kPanel, kXTiles, kWeights>();
        if constexpr (kTwice) add_bfloat16_products<2 + kPanel, kXTiles + 1, kWeights>();
    }
};
#else
struct PairFormat {
    static constexpr int kWideRows = kMaxWideRows, kTallRows = kMaxTallRows, kUnit = 2;
    static constexpr bool kWideInTiles = false, kTallInTiles = false;
#if defined(__AVX512BF16__)
    using X = BFloat16;
#else
    using X = float;
#endif
    static int64_t panel_bytes(int64_t num_inputs) { return (num_inputs + 1) / 2 * kLanes * 4; }

    template <int kRows, int kPanels>
    static inline void multiply(const unsigned char* const* panels, const unsigned char* x, int64_t num_inputs,
                                Lanes (&result)[kRows][kPanels]) {
        Lanes sums[kRows][kPanels];  // a copy, which stays in registers
        clear(sums);
        const int64_t num_pairs = (num_inputs + 1) / 2;
        for (int64_t k = 0; k < num_pairs; ++k) {
#if defined(__AVX512BF16__)
            __m512bh w[kPanels];
            OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p) {
                w[p] = load_vector<__m512bh>(panels[p] + k * kLanes * 4);
                read_ahead(panels[p] + k * kLanes * 4);
            }
            OCTAVO_UNROLL for (int r = 0; r < kRows; ++r) {
                const auto pair = reinterpret_cast<const int32_t*>(x)[k * kRows + r];
                const __m512bh value = bit_cast<__m512bh>(_mm512_set1_epi32(pair));
                for (int p = 0; p < kPanels; ++p)
                    sums[r][p].part[0] = (Floats)_mm512_dpbf16_ps((__m512)sums[r][p].part[0], w[p], value);
            }
#else
            Lanes even[kPanels], odd[kPanels];
            OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p) {
                read_ahead(panels[p] + k * kLanes * 4);
                OCTAVO_EACH_PART {
                    const Words pair = load_vector<Words>(panels[p] + (k * kLanes + i * kWidth) * 4);
                    even[p].part[i] = bit_cast<Floats>(pair << 16);
                    odd[p].part[i] = bit_cast<Floats>(pair & 0xffff0000u);
                }
            }
            OCTAVO_UNROLL for (int r = 0; r < kRows; ++r) {
                const float* pair = reinterpret_cast<const float*>(x) + (k * kRows + r) * 2;
                const Lanes first = splat(pair[0]), second = splat(pair[1]);
                OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p) {
                    sums[r][p] = fma(even[p], first, sums[r][p]);
                    sums[r][p] = fma(odd[p], second, sums[r][p]);
                }
            }
#endif
        }
        keep(sums, result);
    }
};
#endif

}  // namespace octavo
