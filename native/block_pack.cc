#include "block_pack.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace octavo {
namespace {

constexpr float kLeastSize = 1e-30f;  // groups of smaller values are zeros
constexpr float kFineFrom = 6;  // times the mean size of a row's values: docs/quantization.md shows what it gives

uint16_t half_at(const unsigned char* from) {
    uint16_t bits;
    std::memcpy(&bits, from, 2);
    return bits;
}

// The code of an output's input: where put_codes() of panel_pack.cc leaves it.
uint8_t get_code(const BlockSpec& spec, const unsigned char* codes, int lane, int input) {
    const int vector = input / 4, byte = lane * 4 + input % 4;
    if (spec.bits == 8) return codes[vector * kCodeBytes + byte];
    const int half = spec.vectors() / 2, high = spec.bits - 4;
    const int low = codes[vector % half * kCodeBytes + byte] >> (vector / half * 4) & 15;
    if (high == 0) return (uint8_t)low;
    return (uint8_t)(low | (codes[half * kCodeBytes + byte] >> (vector * high) & ((1 << high) - 1)) << 4);
}

float scale_at(const BlockSpec& spec, const unsigned char* panel, int64_t g, int lane, bool is_min) {
    const unsigned char* group = panel + spec.group_place(g);
    if (spec.scale == Scale::kPower) return std::ldexp(1.f, group[lane] - 128);
    if (spec.scale == Scale::kHalf)
        return to_float(Float16{half_at(group + (is_min ? 2 * kLanes : 0) + 2 * lane)});
    const unsigned char* super = panel + spec.super_place(g / (kSuper / spec.group)) + (is_min ? 2 * kLanes : 0);
    const unsigned char byte = group[(is_min ? kLanes : 0) + lane];
    const float number = spec.has_min ? (float)byte : (float)(int8_t)byte;
    return to_float(Float16{half_at(super + 2 * lane)}) * (is_min ? -number : number);
}

template <class T>
void gather_row(const GatherBlocks& gather, int64_t row) {
    const BlockSpec& spec = kSpecs[gather.block];
    const int64_t output = gather.index[row];
    const unsigned char* panel = gather.weights + output / kLanes * spec.panel_bytes(gather.num_inputs);
    const int lane = (int)(output % kLanes);
    float values[32];
    for (int64_t g = 0; g < gather.num_inputs / spec.group; ++g) {
        const float scale = scale_at(spec, panel, g, lane, false);
        const float min = spec.has_min ? scale_at(spec, panel, g, lane, true) : 0.f;
        const unsigned char* codes = panel + spec.group_place(g) + spec.scale_bytes();
        for (int i = 0; i < spec.group; ++i) {
            const uint8_t code = get_code(spec, codes, lane, i);
            const int number = spec.table == Table::kNone ? code : numbers_of(spec.table)[code];
            values[i] = scale * (float)(number - spec.zero) + min;
        }
        T* to = reinterpret_cast<T*>(gather.to) + row * gather.num_inputs + g * spec.group;
        for (int i = 0; i < spec.group; i += kLanes) store(to + i, load(values + i));
    }
}

// How the groups of a row are rounded.
struct RowScales {
    std::vector<float> most, scales, inverses;  // the greatest size in each group; most / 127, and one over it
    std::vector<uint32_t> fine;                 // of sixteen groups each, those that are fine: one bit each
    bool is_finite;

    template <class T>
    void measure(const T* x, int64_t num_inputs) {
        const int64_t groups = num_inputs / kXGroup, padded = (groups + kLanes - 1) / kLanes * kLanes;
        for (std::vector<float>* each : {&most, &scales, &inverses}) each->resize(padded);
        fine.resize(padded / kLanes);
        const Lanes steps = splat(127.f);
        Lanes total = splat(0.f), largest = total;
        for (int64_t first = 0; first < padded; first += kLanes) {
            const int64_t count = std::min<int64_t>(kLanes, groups - first);
            Lanes sizes[kLanes];
            for (int64_t i = count; i < kLanes; ++i) sizes[i] = splat(0.f);
            for (int64_t i = 0; i < count; ++i) {
                const T* group = x + (first + i) * kXGroup;
                const Lanes low = abs(load(group)), high = abs(load(group + kLanes));
                total = total + (low + high);
                sizes[i] = max_size(low, high);
            }
            const Lanes own = reduce<LargestSize>(sizes);
            largest = max_size(largest, own);
            store(&most[first], own);
            store(&scales[first], own / steps);
            store(&inverses[first], steps / max(own, splat(kLeastSize)));
        }
        is_finite = bits_above(largest, std::numeric_limits<float>::max()) == 0;
        if (!is_finite) scales[0] = std::numeric_limits<float>::quiet_NaN();  // and so are all results
        const float limit = kFineFrom * sum(total) / (float)num_inputs;
        for (int64_t i = 0; i < padded / kLanes; ++i)
            fine[i] = is_finite ? bits_above(load(&most[i * kLanes]), limit) : 0;
    }
};

// The rows of a tile of x, and where the tile lies.
template <class T>
struct StagedTile {
    int32_t zero;  // of the weights
    int64_t rows, num_starts;
    XTile<int32_t, float, uint32_t> tile;
    const RowScales* scales;

    // Rounds up to sixteen groups of a row, from a multiple of sixteen on. `fine` has for each of them what its fine rows
    // add to the tile.
    void round(const T* x, int64_t r, int64_t first, int64_t count, int32_t* const* fine) const {
        const RowScales& own = scales[r];
        Lanes lows[kLanes], highs[kLanes];
        for (int64_t i = own.is_finite ? count : 0; i < kLanes; ++i) lows[i] = highs[i] = splat(0.f);
        if (own.is_finite) {
            const float* inverses = &own.inverses[first];
            for (int64_t i = 0; i < count; ++i) {
                const Lanes inverse = splat(inverses[i]);
                lows[i] = round_to_nearest(load(x + i * kXGroup) * inverse);
                highs[i] = round_to_nearest(load(x + i * kXGroup + kLanes) * inverse);
            }
        }
        int32_t* codes = tile.codes + (first * rows + r) * kXWords;
        for (int64_t i = 0; i < count; ++i) put_bytes(lows[i], highs[i], codes + i * rows * kXWords);
        CodeSums sums = add_codes(lows, highs);
        int32_t* starts = tile.starts + first * num_starts * rows + r;
        for (int64_t i = 0; i < count; ++i) put_starts(sums, i, starts + i * num_starts * rows);
        if (own.fine[first / kLanes] != 0) round_finer(x, r, first, lows, highs, fine, sums);
        float *scales_to = tile.scales + first * rows + r, *sums_to = tile.sums + first * rows + r;
        for (int64_t i = 0; i < count; ++i) {
            const float scale = own.scales[first + i];
            scales_to[i * rows] = scale;
            sums_to[i * rows] = scale * sums.total[i];
        }
    }

   private:
    // Of sixteen groups, the sums of codes, and what products with weights start from in each half.
    struct CodeSums {
        float total[kLanes];
        int32_t starts[2][kLanes];
    };

    // Rounds what is left of a row's fine groups, and adds it to the sums of their codes.
    void round_finer(const T* x, int64_t r, int64_t first, Lanes (&lows)[kLanes], Lanes (&highs)[kLanes],
                     int32_t* const* fine, CodeSums& sums) const {
        const uint32_t groups = scales[r].fine[first / kLanes];
        for (int64_t i = 0; i < kLanes; ++i) {
            if ((groups >> i & 1) == 0) {
                lows[i] = highs[i] = splat(0.f);
                continue;
            }
            const T* group = x + i * kXGroup;
            const Lanes inverse = splat(scales[r].inverses[first + i]), step = splat(kFineStep);
            lows[i] = round_to_nearest((load(group) * inverse - lows[i]) / step);
            highs[i] = round_to_nearest((load(group + kLanes) * inverse - highs[i]) / step);
            put_bytes(lows[i], highs[i], fine[i] + r * kXWords);
        }
        const CodeSums finer = add_codes(lows, highs);
        for (uint32_t left = groups; left != 0; left &= left - 1) {
            const int i = __builtin_ctz(left);
            put_starts(finer, i, fine[i] + kXWords * rows + r);
            sums.total[i] = __builtin_fmaf(finer.total[i], kFineStep, sums.total[i]);
        }
    }

    // The codes are whole numbers: the order of their sums does not matter.
    CodeSums add_codes(const Lanes (&lows)[kLanes], const Lanes (&highs)[kLanes]) const {
        CodeSums result;
        const auto put = [&](int half, const Lanes& total) {
            OCTAVO_EACH_PART {
                const Ints starts = __builtin_convertvector(total.part[i], Ints) * -zero;
                store_vector(&result.starts[half][i * kWidth], starts);
            }
        };
        if (num_starts == 1) {
            Lanes both[kLanes];
            for (int64_t i = 0; i < kLanes; ++i) both[i] = lows[i] + highs[i];
            const Lanes total = sums(both);
            put(0, total);
            store(result.total, total);
        } else {
            const Lanes low = sums(lows), high = sums(highs);
            put(0, low);
            put(1, high);
            store(result.total, low + high);
        }
        return result;
    }

    void put_starts(const CodeSums& sums, int64_t i, int32_t* to) const {
        to[0] = sums.starts[0][i];
        if (num_starts == 2) to[rows] = sums.starts[1][i];
    }
};

template <class T>
void stage_tile(const StageBlocks& stage, int64_t first_row) {
    thread_local std::vector<RowScales> scales;
    const int64_t rows = std::min<int64_t>(stage.tile_rows, stage.num_rows - first_row);
    const int64_t num_groups = stage.num_inputs / kXGroup;
    const auto row_of = [&](int64_t r) { return reinterpret_cast<const T*>(stage.x + (first_row + r) * stage.x_stride); };
    if ((int64_t)scales.size() < rows) scales.resize(rows);
    for (int64_t r = 0; r < rows; ++r) scales[r].measure(row_of(r), stage.num_inputs);
    unsigned char* to = scratch() + (stage.first + first_row) * x_row_bytes(stage.num_inputs);
    const StagedTile<T> staged{stage.zero, rows, kXGroup / stage.group, {to, rows, stage.num_inputs, stage.group}, scales.data()};
    int32_t* next_fine = staged.tile.fine;
    for (int64_t first = 0; first < num_groups; first += kLanes) {
        const int64_t count = std::min<int64_t>(kLanes, num_groups - first);
        uint32_t fine_rows[kLanes] = {};
        for (int64_t r = 0; r < rows; ++r)
            for (uint32_t left = scales[r].fine[first / kLanes]; left != 0; left &= left - 1)
                fine_rows[__builtin_ctz(left)] |= 1u << r;
        int32_t* fine[kLanes];
        for (int64_t i = 0; i < count; ++i) {
            staged.tile.fine_rows[first + i] = fine_rows[i];
            fine[i] = next_fine;
            if (fine_rows[i] != 0) next_fine += fine_size(stage.group) * rows;
        }
        for (int64_t r = 0; r < rows; ++r) staged.round(row_of(r) + first * kXGroup, r, first, count, fine);
    }
}

}  // namespace

void GatherBlocks::run(int64_t chunk) const {
    for (int64_t row = chunk * 8; row < std::min(chunk * 8 + 8, num_rows); ++row) {
        if (type == kFloat32)
            gather_row<float>(*this, row);
        else
            type == kBFloat16 ? gather_row<BFloat16>(*this, row) : gather_row<Float16>(*this, row);
    }
}

int64_t StageBlocks::count_chunks() const {
    reserve_scratch(num_rows * x_row_bytes(num_inputs));
    return (num_rows + tile_rows - 1) / tile_rows;
}

void StageBlocks::run(int64_t tile) const {
    if (type == kFloat32)
        stage_tile<float>(*this, tile * tile_rows);
    else
        type == kBFloat16 ? stage_tile<BFloat16>(*this, tile * tile_rows) : stage_tile<Float16>(*this, tile * tile_rows);
}

}  // namespace octavo
