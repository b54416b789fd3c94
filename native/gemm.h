// y = x Wᵀ + b for packed weights of any format: how the work is divided, and the loops around a format's tile.
//
// Sixteen outputs are a panel: their weights lie together, interleaved along the inputs so that one register holds the
// weights of sixteen outputs for the same inputs. A tile is a few rows of x by a few panels. Every sum is built in one
// accumulator in the order of the inputs whatever the size of the tile, so a row's result has the same bits in every
// batch.
#pragma once

#include <algorithm>

#include "lanes.h"
#include "team.h"
#include "tiles.h"
#include "weights.h"

namespace octavo {

enum Activation : int32_t { kNoGate = 0, kSilu = 1, kGeluTanh = 2 };

constexpr int kUnit = 2;                  // panels: the least that a chunk of work has
constexpr int64_t kRowBlockBytes = 1 << 18;  // rows of x that are used for all panels of a chunk stay in the cache
#if defined(OCTAVO_HAS_TILES)
constexpr int64_t kRowUnit = 96;  // a multiple of the rows of all formats' tiles
#else
constexpr int64_t kRowUnit = 24;
#endif

// Rows of x are staged by tiles of so many: within a tile, all rows' values for the same inputs lie side by side, so
// that a tile reads x through one pointer. The last tile has what is left.
struct TileRows {
    int32_t wide, tall;  // for few rows, which take more panels at a time, and for others
    int32_t of(int64_t num_rows) const { return num_rows <= wide ? wide : tall; }
};

struct Columns;

struct Gemm {
    const unsigned char* weights;  // panels
    const unsigned char* x;        // staged rows, each x_stride bytes; null: in the scratch memory
    void* y;                       // rows of num_outputs (half as many behind a gate)
    const void* bias;              // of y's type, or null
    int64_t x_stride, y_stride;    // bytes; elements of y
    int64_t panel_bytes;
    int32_t num_rows, num_outputs, num_inputs;
    int32_t wide_rows;             // so many rows, or fewer, take four panels at a time
    bool is_staged;
    Activation gate;
    void (*run_block)(const Gemm& gemm, int64_t first_unit, int64_t last_unit, int64_t first_row, int64_t last_row);
    void (*store_tile)(const Gemm& gemm, const Columns& columns, int64_t first_row, int num_rows, int num_panels,
                       const Lanes* sums);

    // Units are pairs of panels; behind a gate, a panel of the first half of the outputs and its partner.
    int64_t num_panels() const { return (num_outputs + kLanes - 1) / kLanes; }
    int64_t num_units() const { return (num_panels() + kUnit - 1) / kUnit; }
    int64_t rows_per_block() const {
        const int64_t fitting = kRowBlockBytes / (x_stride > 0 ? x_stride : 1) / kRowUnit * kRowUnit;
        return std::max(fitting, kRowUnit);
    }
    int64_t num_row_blocks() const { return (num_rows + rows_per_block() - 1) / rows_per_block(); }
    int64_t units_per_chunk() const {
        const int64_t wanted = std::max<int64_t>(1, 8 * num_threads() / num_row_blocks());
        const int64_t least = num_rows <= wide_rows ? 2 : 1;  // what a tile of few rows has
        return std::clamp<int64_t>(num_units() / wanted, least, 16);
    }
    int64_t chunks_per_block() const { return (num_units() + units_per_chunk() - 1) / units_per_chunk(); }

    // A chunk's panels lie side by side; behind a gate, their partners do as well.
    Stream stream() const {
        if (num_rows == 0) return {};
        const int64_t unit_bytes = gate == kNoGate ? kUnit * panel_bytes : panel_bytes;
        const int64_t num_bytes = num_panels() * panel_bytes;
        return {weights, units_per_chunk() * unit_bytes, gate == kNoGate ? 0 : num_bytes / 2, num_bytes};
    }
    int64_t count_chunks() const { return num_rows == 0 ? 0 : num_row_blocks() * chunks_per_block(); }
    void run(int64_t chunk) const {
        const int64_t block = chunk / chunks_per_block(), first = chunk % chunks_per_block() * units_per_chunk();
        const int64_t first_row = block * rows_per_block();
        Gemm gemm = *this;
        gemm.is_staged = x == nullptr;
        if (gemm.is_staged) gemm.x = scratch();
        run_block(gemm, first, std::min(first + units_per_chunk(), num_units()), first_row,
                  std::min<int64_t>(first_row + rows_per_block(), num_rows));
        release_tiles();
    }
};

inline Lanes apply_gate(Activation gate, const Lanes& x) {
    const Lanes one = splat(1.f), zero = splat(0.f);
    if (gate == kSilu) return x / (one + exp(zero - x));
    const Lanes inner = splat(0.7978845608028654f) * (x + splat(0.044715f) * x * x * x);
    return splat(0.5f) * x * (one + tanh(inner));
}

// The panel numbers of a tile's columns.
struct Columns {
    int64_t panel[4];
    bool is_inside[4];
};

inline Columns columns_of(const Gemm& gemm, int64_t unit, int num_panels) {
    Columns columns;
    const int64_t panels = gemm.num_panels();
    for (int i = 0; i < num_panels; ++i) {
        const int64_t panel = gemm.gate == kNoGate ? unit * kUnit + i : unit + i / 2 + i % 2 * (panels / 2);
        columns.is_inside[i] = panel < panels;
        columns.panel[i] = columns.is_inside[i] ? panel : panels - 1;
    }
    return columns;
}

template <class T>
inline void store_lanes(const Gemm& gemm, int64_t row, int64_t output, int64_t num_outputs, const Lanes& value) {
    T* to = static_cast<T*>(gemm.y) + row * gemm.y_stride + output;
    if (output + kLanes <= num_outputs)
        store(to, value);
    else
        store_some(to, value, num_outputs - output);
}

template <class T>
inline Lanes add_bias(const Gemm& gemm, int64_t panel, const Lanes& value) {
    if (gemm.bias == nullptr) return value;
    const T* bias = static_cast<const T*>(gemm.bias) + panel * kLanes;
    const int64_t count = gemm.num_outputs - panel * kLanes;
    return value + (count >= kLanes ? load(bias) : load_some(bias, count));
}

// Writes a tile's sums [num_rows][num_panels] to y: with the bias, and behind the gate if there is one.
template <class T>
void store_tile(const Gemm& gemm, const Columns& columns, int64_t first_row, int num_rows, int num_panels,
                const Lanes* sums) {
    for (int r = 0; r < num_rows; ++r, sums += num_panels) {
        const int64_t row = first_row + r;
        if (gemm.gate == kNoGate) {
            for (int p = 0; p < num_panels; ++p)
                if (columns.is_inside[p])
                    store_lanes<T>(gemm, row, columns.panel[p] * kLanes, gemm.num_outputs,
                                   add_bias<T>(gemm, columns.panel[p], sums[p]));
        } else {
            for (int p = 0; p + 1 < num_panels; p += 2)
                if (columns.is_inside[p + 1])
                    store_lanes<T>(gemm, row, columns.panel[p] * kLanes, gemm.num_outputs / 2,
                                   apply_gate(gemm.gate, add_bias<T>(gemm, columns.panel[p], sums[p])) *
                                       add_bias<T>(gemm, columns.panel[p + 1], sums[p + 1]));
        }
    }
}

template <class Format, int kRows, int kPanels>
[[gnu::noinline]] void run_tile(const Gemm& gemm, const Columns& columns, int64_t row) {
    const unsigned char* panels[kPanels];
    for (int p = 0; p < kPanels; ++p) panels[p] = gemm.weights + columns.panel[p] * gemm.panel_bytes;
    Lanes sums[kRows][kPanels];
    Format::template multiply<kRows, kPanels>(panels, gemm.x + row * gemm.x_stride, gemm.num_inputs, sums);
    gemm.store_tile(gemm, columns, row, kRows, kPanels, &sums[0][0]);
}

// The same for any number of rows, by a format that multiplies them with AMX.
template <class Format, int kRows, int kPanels>
[[gnu::noinline]] void run_rows(const Gemm& gemm, const Columns& columns, int64_t row, int rows) {
    const unsigned char* panels[kPanels];
    for (int p = 0; p < kPanels; ++p) panels[p] = gemm.weights + columns.panel[p] * gemm.panel_bytes;
    Lanes sums[kRows * kPanels];
    const int64_t row_bytes = gemm.is_staged ? kTileBytes : gemm.x_stride;
    const TileInputs x{gemm.x + row * gemm.x_stride, row_bytes, gemm.is_staged ? rows * row_bytes : kTileBytes, rows};
    Format::template multiply_rows<kPanels>(panels, x, gemm.num_inputs, sums);
    gemm.store_tile(gemm, columns, row, rows, kPanels, sums);
}

// Up to kRows rows.
template <class Format, int kPanels, int kRows, bool kInTiles>
inline void run_some(const Gemm& gemm, const Columns& columns, int64_t row, int64_t rows) {
    if constexpr (kInTiles) {
        run_rows<Format, kRows, kPanels>(gemm, columns, row, (int)rows);
    } else if constexpr (kRows > 0) {
        if (rows == kRows)
            run_tile<Format, kRows, kPanels>(gemm, columns, row);
        else
            run_some<Format, kPanels, kRows - 1, false>(gemm, columns, row, rows);
    }
}

template <class Format, int kPanels, int kRows, bool kInTiles>
inline void run_columns(const Gemm& gemm, int64_t unit, int64_t first_row, int64_t last_row) {
    const Columns columns = columns_of(gemm, unit, kPanels);
    for (int64_t row = first_row; row < last_row; row += kRows)
        run_some<Format, kPanels, kRows, kInTiles>(gemm, columns, row, std::min<int64_t>(kRows, last_row - row));
}

// Some units for some rows. Few rows take more panels at a time, since a sum's additions wait for one another.
template <class Format>
void run_block(const Gemm& gemm, int64_t first_unit, int64_t last_unit, int64_t first_row, int64_t last_row) {
    int64_t unit = first_unit;
    if (gemm.num_rows <= Format::kWideRows)
        for (; unit + 2 <= last_unit; unit += 2)
            run_columns<Format, 4, Format::kWideRows, Format::kWideInTiles>(gemm, unit, first_row, last_row);
    for (; unit < last_unit; ++unit)
        run_columns<Format, 2, Format::kTallRows, Format::kTallInTiles>(gemm, unit, first_row, last_row);
}

}  // namespace octavo
