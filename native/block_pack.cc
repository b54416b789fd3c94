#include "block_pack.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace octavo {
namespace {

constexpr float kLeastSize = 1e-30f;  // groups of smaller values are zeros
constexpr int64_t kMaxFineRows = 32;  // rows of a tile: bits of XTile::fine_rows
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
        for (int i = 0; i < spec.group; ++i)
            values[i] = scale * (float)((int)get_code(spec, codes, lane, i) - spec.zero) + min;
        T* to = reinterpret_cast<T*>(gather.to) + row * gather.num_inputs + g * spec.group;
        for (int i = 0; i < spec.group; i += kLanes) store(to + i, load(values + i));
    }
}

// How the groups of a row are rounded.
struct RowScales {
    std::vector<float> most, scales, inverses;  // the greatest value of each group; most / 127, and one over it
    float limit;                                // what a group must exceed to be fine
    bool is_finite;

    bool is_fine(int64_t g) const { return is_finite && most[g] > limit; }

    template <class T>
    void measure(const T* x, int64_t num_inputs) {
        const int64_t groups = num_inputs / kXGroup, padded = (groups + kLanes - 1) / kLanes * kLanes;
        for (std::vector<float>* each : {&most, &scales, &inverses}) each->resize(padded);
        const Lanes zero = splat(0.f), steps = splat(127.f);
        Lanes total = zero, invalid = zero;
        for (int64_t first = 0; first < padded; first += kLanes) {
            Lanes sizes[kLanes];
            for (int64_t i = 0; i < kLanes; ++i) {
                sizes[i] = zero;
                if (first + i >= groups) continue;
                const T* group = x + (first + i) * kXGroup;
                const Lanes low = load(group), high = load(group + kLanes);
                const Lanes low_size = max(low, zero - low), high_size = max(high, zero - high);
                total = total + (low_size + high_size);
                invalid = invalid + (low * zero + high * zero);
                sizes[i] = max(low_size, high_size);
            }
            const Lanes largest = reduce<Largest>(sizes);
            store(&most[first], largest);
            store(&scales[first], largest / steps);
            store(&inverses[first], steps / max(largest, splat(kLeastSize)));
        }
        limit = kFineFrom * sum(total) / (float)num_inputs;
        is_finite = sum(invalid) == 0.f;
        if (!is_finite) scales[0] = std::numeric_limits<float>::quiet_NaN();  // and so are all results
    }
};

// Whole numbers as bytes.
void put_codes(const Lanes& numbers, int32_t* to) {
#if defined(__AVX512F__)
    const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32((__m512)numbers.part[0]));
    std::memcpy(to, &bytes, sizeof(bytes));
#else
    float values[kLanes];
    store(values, numbers);
    for (int i = 0; i < kLanes; ++i) reinterpret_cast<int8_t*>(to)[i] = (int8_t)(int)values[i];
#endif
}

// The rows of a tile of x, and where the tile lies.
template <class T>
struct StagedTile {
    const StageBlocks& stage;
    int64_t rows;
    XTile<int32_t, float, uint32_t> tile;
    const RowScales* scales;

    // Rounds up to eight groups of a row, of which `fine_groups` has those that are fine, one bit each. `fine` is what the
    // first one of them that is fine adds to the tile.
    void round(const T* x, int64_t r, int64_t first, int64_t count, uint32_t fine_groups, int32_t* fine) const {
        Lanes rounded[kLanes];
        for (Lanes& each : rounded) each = splat(0.f);
        for (int64_t i = 0; i < count && scales[r].is_finite; ++i) {
            const Lanes inverse = splat(scales[r].inverses[first + i]);
            for (int h = 0; h < 2; ++h)
                rounded[2 * i + h] = round_to_nearest(load(x + i * kXGroup + h * kLanes) * inverse);
        }
        float sums_of_codes[kLanes], sums_of_finer[kLanes];
        store(sums_of_codes, sums(rounded));
        Lanes finer[kLanes];
        if (fine_groups != 0) {
            round_finer(x, r, first, fine_groups, rounded, finer);
            store(sums_of_finer, sums(finer));
        }
        for (int64_t i = 0; i < count; ++i) {
            const int64_t g = first + i;
            const float scale = scales[r].scales[g];
            float sum_of_codes = sums_of_codes[2 * i] + sums_of_codes[2 * i + 1];
            put(rounded + 2 * i, tile.codes + (g * rows + r) * kXWords);
            put_starts(sums_of_codes + 2 * i, tile.starts + g * num_starts() * rows + r);
            if (tile.fine_rows[g] != 0) {
                if ((fine_groups >> i & 1) != 0) {  // what other rows have there is not read
                    sum_of_codes += (sums_of_finer[2 * i] + sums_of_finer[2 * i + 1]) * kFineStep;
                    put(finer + 2 * i, fine + r * kXWords);
                    put_starts(sums_of_finer + 2 * i, fine + kXWords * rows + r);
                }
                fine += fine_size(stage.group) * rows;
            }
            tile.scales[g * rows + r] = scale;
            tile.sums[g * rows + r] = scale * sum_of_codes;
        }
    }

   private:
    // The second codes of a row's fine groups among up to eight, and zeros.
    void round_finer(const T* x, int64_t r, int64_t first, uint32_t fine_groups, const Lanes* rounded,
                     Lanes (&finer)[kLanes]) const {
        for (Lanes& each : finer) each = splat(0.f);
        for (uint32_t left = fine_groups; left != 0; left &= left - 1) {
            const int64_t i = __builtin_ctz(left);
            const Lanes inverse = splat(scales[r].inverses[first + i]);
            for (int64_t h = 2 * i; h < 2 * i + 2; ++h)
                finer[h] = round_to_nearest((load(x + h * kLanes) * inverse - rounded[h]) / splat(kFineStep));
        }
    }

    int64_t num_starts() const { return kXGroup / stage.group; }

    void put(const Lanes* rounded, int32_t* to) const {
        put_codes(rounded[0], to);
        put_codes(rounded[1], to + kLanes / 4);
    }

    void put_starts(const float* halves, int32_t* to) const {
        if (num_starts() == 1) {
            to[0] = -stage.zero * (int32_t)(halves[0] + halves[1]);
        } else {
            to[0] = -stage.zero * (int32_t)halves[0];
            to[rows] = -stage.zero * (int32_t)halves[1];
        }
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
    const StagedTile<T> staged{
        stage, rows, {scratch() + (stage.first + first_row) * x_row_bytes(stage.num_inputs), rows, stage.num_inputs, stage.group},
        scales.data()};
    int32_t* fine = staged.tile.fine;
    constexpr int64_t kAtOnce = kLanes / 2;
    for (int64_t first = 0; first < num_groups; first += kAtOnce) {
        const int64_t count = std::min(kAtOnce, num_groups - first);
        int64_t num_fine = 0;
        uint32_t fine_groups[kMaxFineRows] = {};
        for (int64_t g = first; g < first + count; ++g) {
            uint32_t fine_rows = 0;
            for (int64_t r = 0; r < rows; ++r) {
                const uint32_t is_fine = scales[r].is_fine(g) ? 1 : 0;
                fine_rows |= is_fine << r;
                fine_groups[r] |= is_fine << (g - first);
            }
            staged.tile.fine_rows[g] = fine_rows;
            num_fine += fine_rows != 0;
        }
        for (int64_t r = 0; r < rows; ++r)
            staged.round(row_of(r) + first * kXGroup, r, first, count, fine_groups[r], fine);
        fine += num_fine * fine_size(stage.group) * rows;
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
