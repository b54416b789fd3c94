// Formats of packed weights with integer values in groups, which share a scale: GGUF's blocks as they are, and int4 and
// int8 made at load.
//
// A weight is scale · code + offset for an unsigned code of 4 to 8 bits. Where a file's codes are signed, the offset is
// minus the zero point times the scale; else it is the file's minimum. x is rounded to 8 bits in groups of 32 with a
// scale each, so a group's sum is exact in integers, and only sums of groups are rounded. Groups with a value far above
// the row's mean, whose rounding is most of the error, get 8 bits more: a second code of what the first left.
//
// A panel (sixteen outputs) is a list of groups: its scales, its minimums, its codes. Codes lie so that four bytes of a
// register hold one output's codes for four inputs. The low four bits of two registers share one; a fifth and sixth bit
// are in one more register per group.
#pragma once

#include "lanes.h"
#include "weights.h"

namespace octavo {

constexpr int kSuper = 256;   // inputs that share the scale of scales, in formats that have one
constexpr int kXGroup = 32;   // inputs of x that share a scale
constexpr int kCodeBytes = 4 * kLanes;  // of the registers that hold four codes of each output

enum class Scale {
    kHalf,     // float16 per group
    kByte,     // an integer per group, times float16 per kSuper inputs
};

struct BlockSpec {
    int bits, group, zero;
    Scale scale;
    bool has_min;

    constexpr int vectors() const { return group / 4; }
    constexpr int low_bytes() const { return bits == 8 ? vectors() * kCodeBytes : vectors() / 2 * kCodeBytes; }
    constexpr int code_bytes() const { return low_bytes() + (bits > 4 && bits < 8 ? kCodeBytes : 0); }
    constexpr int scale_bytes() const {
        const int each = scale == Scale::kHalf ? 2 : (scale == Scale::kByte ? 1 : 0);
        return each * kLanes * (has_min ? 2 : 1);
    }
    constexpr int group_bytes() const { return scale_bytes() + code_bytes(); }
    constexpr int super_bytes() const { return scale == Scale::kByte ? 2 * kLanes * (has_min ? 2 : 1) : 0; }

    constexpr int64_t panel_bytes(int64_t num_inputs) const {
        return num_inputs / group * group_bytes() + (super_bytes() > 0 ? num_inputs / kSuper * super_bytes() : 0);
    }
    // Where a group starts in its panel, and the scale of scales before it.
    constexpr int64_t group_place(int64_t index) const {
        const int64_t supers = super_bytes() > 0 ? index / (kSuper / group) + 1 : 0;
        return index * group_bytes() + supers * super_bytes();
    }
    constexpr int64_t super_place(int64_t index) const {
        return index * (super_bytes() + (int64_t)(kSuper / group) * group_bytes());
    }
};

constexpr BlockSpec kQ4_0{4, 32, 8, Scale::kHalf, false};
constexpr BlockSpec kQ4_1{4, 32, 0, Scale::kHalf, true};
constexpr BlockSpec kQ5_0{5, 32, 16, Scale::kHalf, false};
constexpr BlockSpec kQ5_1{5, 32, 0, Scale::kHalf, true};
constexpr BlockSpec kQ8_0{8, 32, 128, Scale::kHalf, false};
constexpr BlockSpec kQ4_K{4, 32, 0, Scale::kByte, true};
constexpr BlockSpec kQ5_K{5, 32, 0, Scale::kByte, true};
constexpr BlockSpec kQ6_K{6, 16, 32, Scale::kByte, false};
constexpr BlockSpec kInt8 = kQ8_0;
constexpr BlockSpec kInt4 = kQ4_1;

// A tile of x: codes of four inputs by rows, then per group of 32 the rows' scales and scaled sums of codes; then per
// group of the weights what the codes' products start from, minus the weights' zero point times the sum of x's codes;
// then which rows of a group of 32 are fine, which is to say that they have second codes there, one bit each; last, for
// each group with a fine row, its second codes and what their products start from. Second codes count kFineStep of the
// first ones' steps, and those of other rows are not used.
template <class Code, class Number, class Flag>
struct XTile {
    Code* codes;
    Number *scales, *sums;
    Code* starts;
    Flag* fine_rows;
    Code* fine;

    template <class Byte>
    XTile(Byte* tile, int64_t num_rows, int64_t num_inputs, int group) {
        const int64_t groups = num_inputs / kXGroup * num_rows;
        codes = reinterpret_cast<Code*>(tile);
        scales = reinterpret_cast<Number*>(tile + num_inputs * num_rows);
        sums = scales + groups;
        starts = reinterpret_cast<Code*>(sums + groups);
        fine_rows = reinterpret_cast<Flag*>(starts + kXGroup / group * groups);
        fine = reinterpret_cast<Code*>(fine_rows + (num_inputs / kXGroup * num_rows + 3) / 4 * 4);
    }
};

constexpr float kFineStep = 1.f / 254;

// What one row of a fine group adds to a tile, in Codes.
constexpr int fine_size(int group) { return kXGroup / 4 + kXGroup / group; }

// Enough for each row of a tile, if all groups are fine.
inline int64_t x_row_bytes(int64_t num_inputs) {
    return (2 * num_inputs + num_inputs / kXGroup * (2 + 2 * 2) * 4 + num_inputs / kXGroup + 3 + 63) / 64 * 64;
}

using CodeVector = uint8_t __attribute__((vector_size(4 * kWidth)));

struct Codes {
    CodeVector part[kParts];
};

struct Integers {
    Ints part[kParts];
};

[[gnu::always_inline]] inline Codes load_codes(const unsigned char* from) {
    Codes r;
    OCTAVO_EACH_PART r.part[i] = load_vector<CodeVector>(from + i * 4 * kWidth);
    return r;
}

// One of a group's kVectors registers of codes, for four inputs of each output.
template <int kBits, int kVectors>
[[gnu::always_inline]] inline Codes codes_at(const unsigned char* from, int v) {
    if constexpr (kBits == 8) return load_codes(from + v * kCodeBytes);
    constexpr int kHalf = kVectors / 2;
    Codes codes = load_codes(from + v % kHalf * kCodeBytes);
    OCTAVO_EACH_PART {
        if (v >= kHalf) codes.part[i] = bit_cast<CodeVector>(bit_cast<Words>(codes.part[i]) >> 4);
        codes.part[i] &= 15;
    }
    if constexpr (kBits > 4) {
        constexpr int kHigh = kBits - 4, kMask = (1 << kHigh) - 1;
        const Codes high = load_codes(from + kHalf * kCodeBytes);
        OCTAVO_EACH_PART {
            const Words bits = bit_cast<Words>(high.part[i]) >> (v * kHigh);
            codes.part[i] |= bit_cast<CodeVector>((bits & (0x01010101u * kMask)) << 4);
        }
    }
    return codes;
}

// Whether codes of 8 bits are multiplied as signed numbers, so that their zero point is 0.
#if defined(__AVX512VNNI__)
constexpr bool kSignedCodes = false;
#else
constexpr bool kSignedCodes = true;
#endif

// sums += the products of four codes of each output with four codes of x, which all lanes of `x` have.
template <int kBits>
[[gnu::always_inline]] inline void add_dot(Integers& sums, const Codes& codes, const Ints& x) {
    OCTAVO_EACH_PART {
#if defined(__AVX512VNNI__)
        sums.part[i] = (Ints)_mm512_dpbusd_epi32((__m512i)sums.part[i], (__m512i)codes.part[i], (__m512i)x);
#elif defined(__AVX2__)
        __m256i u = (__m256i)codes.part[i], s = (__m256i)x;
        if constexpr (kBits == 8) {  // |w| times x with w's sign, which fits 16 bits
            u = _mm256_xor_si256(u, _mm256_set1_epi8((char)0x80));
            s = _mm256_sign_epi8(s, u);
            u = _mm256_abs_epi8(u);
        }
        const __m256i pairs = _mm256_maddubs_epi16(u, s);
        sums.part[i] += (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
        constexpr int kFlip = kBits == 8 ? 0x80 : 0;
        const int32_t word = x[0];
        const int8_t* four = reinterpret_cast<const int8_t*>(&word);
        for (int lane = 0; lane < kWidth; ++lane) {
            int32_t sum = sums.part[i][lane];
            for (int k = 0; k < 4; ++k) sum += (int8_t)(codes.part[i][4 * lane + k] ^ kFlip) * four[k];
            sums.part[i][lane] = sum;
        }
#endif
    }
}

[[gnu::always_inline]] inline Lanes to_lanes(const Integers& a) {
    Lanes r;
    OCTAVO_EACH_PART r.part[i] = __builtin_convertvector(a.part[i], Floats);
    return r;
}

// Sixteen bytes, signed where the format's scales are.
template <bool kSigned>
[[gnu::always_inline]] inline Lanes load_bytes(const unsigned char* from) {
    Lanes r;
    OCTAVO_EACH_PART {
#if defined(__AVX512F__)
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        const __m512i wide = kSigned ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes);
        r.part[i] = __builtin_convertvector((Ints)wide, Floats);
#elif defined(__AVX2__)
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + i * kWidth));
        const __m256i wide = kSigned ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
        r.part[i] = __builtin_convertvector((Ints)wide, Floats);
#else
        for (int lane = 0; lane < kWidth; ++lane) {
            const unsigned char byte = from[i * kWidth + lane];
            r.part[i][lane] = kSigned ? (float)(int8_t)byte : (float)byte;
        }
#endif
    }
    return r;
}

constexpr BlockSpec kSpecs[] = {kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K, kInt8, kInt4};

// The zero point that products with codes of a format have.
constexpr int zero_of(const BlockSpec& spec) { return spec.bits == 8 && kSignedCodes ? 0 : spec.zero; }

template <int kIndex>
struct BlockFormat {
    static constexpr BlockSpec kSpec = kSpecs[kIndex];
#if defined(__AVX512F__)
    static constexpr int kWideRows = 4, kTallRows = 8;
#else
    static constexpr int kWideRows = 1, kTallRows = 3;
#endif
    static_assert(kTallRows <= 8);  // bits of XTile::fine_rows
    static constexpr int kVectors = kSpec.vectors();
    static constexpr int kSteps = kXGroup / kSpec.group;  // groups to one of x
    using Tile = XTile<const int32_t, const float, const uint8_t>;

    template <int kRows, int kPanels>
    [[gnu::always_inline]] static inline void multiply(const unsigned char* const* panels, const unsigned char* x,
                                                       int64_t num_inputs, Lanes (&result)[kRows][kPanels]) {
        const Tile tile(x, kRows, num_inputs, kSpec.group);
        const int32_t* fine = tile.fine;
        // Sums of groups stay in registers, sums of them in memory.
        Lanes* sums = &result[0][0];
        asm("" : "+r"(sums) : : "memory");
        for (int i = 0; i < kRows * kPanels; ++i) sums[i] = splat(0.f);
        for (int64_t g = 0; g < num_inputs / kSpec.group; ++g) {
            const unsigned char* groups[kPanels];
            Lanes scales[kPanels], least[kPanels];
            OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p) {
                groups[p] = panels[p] + kSpec.group_place(g);
                if constexpr (kRows <= kWideRows)  // the time of more rows is that of arithmetic
                    for (int i = 0; i < kSpec.group_bytes(); i += 64) read_ahead(groups[p] + i);
                scales_of(panels[p], groups[p], g, scales[p], least[p]);
                groups[p] += kSpec.scale_bytes();
            }
            const float* x_scales = tile.scales + g / kSteps * kRows;
            add_plane<kRows, kPanels, kRows>(groups, tile.codes + g * kVectors * kRows, tile.starts + g * kRows, x_scales,
                                      scales, sums);
            if constexpr (kSpec.has_min) {
                OCTAVO_UNROLL for (int r = 0; r < kRows; ++r) {
                    const Lanes x_sum = splat(tile.sums[g * kRows + r]);
                    OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p)
                        sums[r * kPanels + p] = fma(least[p], x_sum, sums[r * kPanels + p]);
                }
            }
            if (const uint32_t rows = tile.fine_rows[g / kSteps]; rows != 0) {
                OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p) scales[p] = scales[p] * splat(kFineStep);
                const int64_t part = g % kSteps;
                const int32_t *codes = fine + part * kVectors * kRows, *starts = fine + (kXGroup / 4 + part) * kRows;
                for (uint32_t left = rows; left != 0; left &= left - 1) {
                    const int r = __builtin_ctz(left);
                    add_plane<1, kPanels, kRows>(groups, codes + r, starts + r, x_scales + r, scales, sums + r * kPanels);
                }
                if (part == kSteps - 1) fine += fine_size(kSpec.group) * kRows;
            }
        }
        asm("" : : : "memory");
    }

    // Adds the products of a group's codes with first or second codes of some rows of a tile of kTileRows.
    template <int kRows, int kPanels, int kTileRows>
    [[gnu::always_inline]] static inline void add_plane(const unsigned char* const* groups, const int32_t* x,
                                                        const int32_t* starts, const float* x_scales,
                                                        const Lanes* scales, Lanes* sums) {
        Integers products[kRows][kPanels];
        OCTAVO_UNROLL for (int r = 0; r < kRows; ++r) {
            const Ints start = zero_of(kSpec) == 0 ? Ints{} : Ints{} + starts[r];
            OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p)
                OCTAVO_EACH_PART products[r][p].part[i] = start;
        }
        OCTAVO_UNROLL for (int v = 0; v < kVectors; ++v) {
            Codes codes[kPanels];
            OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p) codes[p] = codes_at<kSpec.bits, kVectors>(groups[p], v);
            OCTAVO_UNROLL for (int r = 0; r < kRows; ++r) {
                const Ints four = Ints{} + x[v * kTileRows + r];
                OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p) add_dot<kSpec.bits>(products[r][p], codes[p], four);
            }
        }
        OCTAVO_UNROLL for (int r = 0; r < kRows; ++r) {
            const Lanes x_scale = splat(x_scales[r]);
            OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p) {
                Lanes& sum = sums[r * kPanels + p];
                sum = fma(to_lanes(products[r][p]), scales[p] * x_scale, sum);
            }
        }
    }

    // The scales of a group's weights, and the least of them.
    [[gnu::always_inline]] static inline void scales_of(const unsigned char* panel, const unsigned char* group,
                                                        int64_t index, Lanes& scale, Lanes& least) {
        if constexpr (kSpec.scale == Scale::kHalf) {
            scale = load(reinterpret_cast<const Float16*>(group));
            if constexpr (kSpec.has_min) least = load(reinterpret_cast<const Float16*>(group) + kLanes);
        } else {
            const auto* super = reinterpret_cast<const Float16*>(
                panel + kSpec.super_place(index / (kSuper / kSpec.group)));
            scale = load(super) * load_bytes<!kSpec.has_min>(group);
            if constexpr (kSpec.has_min) least = splat(0.f) - load(super + kLanes) * load_bytes<false>(group + kLanes);
        }
    }
};

}  // namespace octavo
