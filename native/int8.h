// GEMMs of 8-bit integers: weights with a scale per output, rows of x with a scale each.
//
// Sums are exact in 32 bits, and scaled once at their end; so a result depends neither on the order of its sum nor on the
// other rows. octavo/kernels/scaled.py has the same in PyTorch.
//
// A panel of sixteen outputs is [inputs / 4][16][4] unsigned codes, 128 more than the weights, then sixteen scales in
// float32. Inputs are filled up with zeros to a multiple of four.
#pragma once

#include <limits>

#include "blocks.h"
#include "gemm.h"

namespace octavo {

constexpr int32_t kInt8Weight = 15;  // the number of this format among types of weights
constexpr int kInt8Zero = kSignedCodes ? 0 : 128;

inline int64_t int8_quads(int64_t num_inputs) { return (num_inputs + 3) / 4; }
inline int64_t int8_panel_bytes(int64_t num_inputs) {
    return int8_quads(num_inputs) * kCodeBytes + kLanes * (int64_t)sizeof(float);
}
// A tile of x: codes of four inputs by rows; what the rows' sums start from; the rows' scales.
inline int64_t int8_row_bytes(int64_t num_inputs) { return int8_quads(num_inputs) * 4 + 8; }

struct PackInt8 {
    const int8_t* from;   // [num_outputs, num_inputs]
    const float* scales;  // [num_outputs]
    unsigned char* to;
    int64_t num_outputs, num_inputs;
    int64_t count_chunks() const { return (num_outputs + kLanes - 1) / kLanes; }
    void run(int64_t panel) const;
};

// Rounds rows of x, in the scratch memory, with the scale that makes a row's largest magnitude 127. A row with an infinity
// or a NaN gets NaN as its scale.
struct StageInt8 {
    const unsigned char* x;
    int64_t num_rows, num_inputs, x_stride;  // stride in bytes
    int32_t tile_rows;
    Type type;
    int64_t count_chunks() const {
        reserve_scratch(num_rows * int8_row_bytes(num_inputs));
        return (num_rows + tile_rows - 1) / tile_rows;
    }
    void run(int64_t tile) const;
};

struct Int8Format {
    static constexpr bool kWideInTiles = false, kTallInTiles = false;
    static constexpr int kWideRows = kMaxWideRows, kTallRows = kMaxTallRows;

    template <int kRows, int kPanels>
    [[gnu::always_inline]] static inline void multiply(const unsigned char* const* panels, const unsigned char* x,
                                                       int64_t num_inputs, Lanes (&result)[kRows][kPanels]) {
        const int64_t quads = int8_quads(num_inputs);
        const auto* codes = reinterpret_cast<const int32_t*>(x);
        const int32_t* starts = codes + quads * kRows;
        const auto* x_scales = reinterpret_cast<const float*>(starts + kRows);
        Integers sums[kRows][kPanels];
        OCTAVO_UNROLL for (int r = 0; r < kRows; ++r)
            OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p)
                OCTAVO_EACH_PART sums[r][p].part[i] = Ints{} + starts[r];
        for (int64_t k = 0; k < quads; ++k) {
            Codes w[kPanels];
            OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p) {
                w[p] = load_codes(panels[p] + k * kCodeBytes);
                if constexpr (kRows <= kWideRows) read_ahead(panels[p] + k * kCodeBytes);
            }
            OCTAVO_UNROLL for (int r = 0; r < kRows; ++r) {
                const Ints four = Ints{} + codes[k * kRows + r];
                OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p) add_dot<8>(sums[r][p], w[p], four);
            }
        }
        OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p) {
            const Lanes scale = load(reinterpret_cast<const float*>(panels[p] + quads * kCodeBytes));
            OCTAVO_UNROLL for (int r = 0; r < kRows; ++r)
                result[r][p] = to_lanes(sums[r][p]) * splat(x_scales[r]) * scale;
        }
    }
};

decltype(Gemm::run_block) find_run_block_of_int8();
constexpr TileRows kInt8TileRows{Int8Format::kWideRows, Int8Format::kTallRows};

}  // namespace octavo
