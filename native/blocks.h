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

// A tile of x: codes of four inputs by rows, then per group of 32 the rows' scales and scaled sums of codes, then such
// sums of groups of 16; then whether a group is fine, which is to say that a row has second codes there, and the second
// codes of fine groups in a row. Second codes count kFineStep of the first ones' steps, and are 0 where a row has none.
template <class Code, class Number, class Flag>
struct XTile {
    Code* codes;
    Number *scales, *sums, *half_sums;
    Flag* is_fine;
    Code* fine_codes;

    template <class Byte>
    XTile(Byte* tile, int64_t num_rows, int64_t num_inputs) {
        const int64_t groups = num_inputs / kXGroup * num_rows;
        codes = reinterpret_cast<Code*>(tile);
        scales = reinterpret_cast<Number*>(tile + num_inputs * num_rows);
        sums = scales + groups;
        half_sums = sums + groups;
        is_fine = reinterpret_cast<Flag*>(half_sums + 2 * groups);
        fine_codes = reinterpret_cast<Code*>(is_fine + (num_inputs / kXGroup * num_rows + 3) / 4 * 4);
    }
};

constexpr float kFineStep = 1.f / 254;

// Enough for each row of a tile, if all groups are fine.
inline int64_t x_row_bytes(int64_t num_inputs) {
    return (2 * num_inputs + num_inputs / kXGroup * 17 + 3 + 63) / 64 * 64;
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

// The codes of a group, a register per four inputs.
template <int kBits, int kVectors>
[[gnu::always_inline]] inline void unpack(const unsigned char* from, Codes (&codes)[kVectors]) {
    if constexpr (kBits == 8) {
        for (int v = 0; v < kVectors; ++v) codes[v] = load_codes(from + v * kCodeBytes);
    } else {
        constexpr int kHalf = kVectors / 2;
        for (int v = 0; v < kHalf; ++v) {
            const Codes both = load_codes(from + v * kCodeBytes);
            OCTAVO_EACH_PART {
                codes[v].part[i] = both.part[i] & 15;
                codes[v + kHalf].part[i] = bit_cast<CodeVector>(bit_cast<Words>(both.part[i]) >> 4) & 15;
            }
        }
        if constexpr (kBits > 4) {
            constexpr int kHigh = kBits - 4, kMask = (1 << kHigh) - 1;
            const Codes high = load_codes(from + kHalf * kCodeBytes);
            for (int v = 0; v < kVectors; ++v) {
                OCTAVO_EACH_PART {
                    const Words bits = bit_cast<Words>(high.part[i]) >> (v * kHigh);
                    codes[v].part[i] |= bit_cast<CodeVector>((bits & (0x01010101u * kMask)) << 4);
                }
            }
        }
    }
}

// Whether codes of 8 bits are multiplied as signed numbers, so that their zero point is 0.
#if defined(__AVX512VNNI__)
constexpr bool kSignedCodes = false;
#else
constexpr bool kSignedCodes = true;
#endif

// sums += the products of four codes of each output with four codes of x.
template <int kBits>
[[gnu::always_inline]] inline Integers dot(const Integers& sums, const Codes& codes, const int32_t* x) {
    Integers r;
    OCTAVO_EACH_PART {
#if defined(__AVX512VNNI__)
        // Written out, since the compiler would keep x in registers for the next panel, and spill the sums.
        r.part[i] = sums.part[i];
        asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(r.part[i]) : "v"(codes.part[i]), "m"(*x));
#elif defined(__AVX2__)
        __m256i u = (__m256i)codes.part[i], s = _mm256_set1_epi32(*x);
        if constexpr (kBits == 8) {  // |w| times x with w's sign, which fits 16 bits
            u = _mm256_xor_si256(u, _mm256_set1_epi8((char)0x80));
            s = _mm256_sign_epi8(s, u);
            u = _mm256_abs_epi8(u);
        }
        const __m256i pairs = _mm256_maddubs_epi16(u, s);
        r.part[i] = sums.part[i] + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
        constexpr int kFlip = kBits == 8 ? 0x80 : 0;
        const int8_t* four = reinterpret_cast<const int8_t*>(x);
        for (int lane = 0; lane < kWidth; ++lane) {
            int32_t sum = sums.part[i][lane];
            for (int k = 0; k < 4; ++k) sum += (int8_t)(codes.part[i][4 * lane + k] ^ kFlip) * four[k];
            r.part[i][lane] = sum;
        }
#endif
    }
    return r;
}

// The sum of two, as floating-point numbers.
[[gnu::always_inline]] inline Lanes to_lanes(const Integers& a, const Integers& b) {
    Lanes r;
    OCTAVO_EACH_PART r.part[i] = __builtin_convertvector(a.part[i] + b.part[i], Floats);
    return r;
}

// The products of a group's codes with a row's, from four inputs of x on; a tile has so many rows. Two sums, since an
// addition waits for the one before it.
template <int kBits, int kRows, int kVectors>
[[gnu::always_inline]] inline Lanes dot_group(const Codes (&codes)[kVectors], const int32_t* four) {
    Integers even{}, odd{};
    OCTAVO_UNROLL for (int v = 0; v < kVectors; v += 2) {
        even = dot<kBits>(even, codes[v], four + v * kRows);
        odd = dot<kBits>(odd, codes[v + 1], four + (v + 1) * kRows);
    }
    return to_lanes(even, odd);
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

template <int kIndex>
struct BlockFormat {
    static constexpr BlockSpec kSpec = kSpecs[kIndex];
#if defined(__AVX512F__)
    static constexpr int kWideRows = 4, kTallRows = 8;
#else
    static constexpr int kWideRows = 1, kTallRows = 3;
#endif
    static constexpr int kZero = kSpec.bits == 8 && kSignedCodes ? 0 : kSpec.zero;
    static constexpr int kSteps = kXGroup / kSpec.group;  // groups to one of x
    using Tile = XTile<const int32_t, const float, const uint8_t>;

    template <int kRows, int kPanels>
    [[gnu::always_inline]] static inline void multiply(const unsigned char* const* panels, const unsigned char* x,
                                                       int64_t num_inputs, Lanes (&result)[kRows][kPanels]) {
        Lanes sums[kRows][kPanels];  // a copy, which stays in registers
        const Tile tile(x, kRows, num_inputs);
        const int32_t* fine_codes = tile.fine_codes;
        clear(sums);
        for (int64_t g = 0; g < num_inputs / kSpec.group; ++g) {
            if (tile.is_fine[g / kSteps]) {
                add_group<true>(panels, tile, g, fine_codes, sums);
                fine_codes += kSpec.vectors() * kRows;
            } else {
                add_group<false>(panels, tile, g, fine_codes, sums);
            }
        }
        keep(sums, result);
    }

    // Adds the products of one group's inputs.
    template <bool kFine, int kRows, int kPanels>
    [[gnu::always_inline]] static inline void add_group(const unsigned char* const* panels, const Tile& tile, int64_t g,
                                                        const int32_t* fine_codes, Lanes (&sums)[kRows][kPanels]) {
        constexpr int kVectors = kSpec.vectors();
        OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p) {
            const unsigned char* group = panels[p] + kSpec.group_place(g);
            Lanes scale, offset = splat(0.f);
            scales_of(panels[p], group, g, scale, offset);
            Codes codes[kVectors];
            unpack<kSpec.bits>(group + kSpec.scale_bytes(), codes);
            OCTAVO_UNROLL for (int r = 0; r < kRows; ++r) {
                Lanes product = dot_group<kSpec.bits, kRows>(codes, tile.codes + g * kVectors * kRows + r);
                if constexpr (kFine)
                    product = fma(dot_group<kSpec.bits, kRows>(codes, fine_codes + r), splat(kFineStep), product);
                const Lanes x_scale = splat(tile.scales[g / kSteps * kRows + r]);
                sums[r][p] = fma(product, scale * x_scale, sums[r][p]);
                const float x_sum = (kSteps == 1 ? tile.sums : tile.half_sums)[g * kRows + r];
                if constexpr (kSpec.has_min || kZero != 0) sums[r][p] = fma(offset, splat(x_sum), sums[r][p]);
            }
        }
    }

    // The group's scales, and what is added to each of its weights.
    [[gnu::always_inline]] static inline void scales_of(const unsigned char* panel, const unsigned char* group,
                                                        int64_t index, Lanes& scale, Lanes& offset) {
        if constexpr (kSpec.scale == Scale::kHalf) {
            scale = load(reinterpret_cast<const Float16*>(group));
            if constexpr (kSpec.has_min) offset = load(reinterpret_cast<const Float16*>(group) + kLanes);
        } else {
            const auto* super = reinterpret_cast<const Float16*>(
                panel + kSpec.super_place(index / (kSuper / kSpec.group)));
            scale = load(super) * load_bytes<!kSpec.has_min>(group);
            if constexpr (kSpec.has_min)
                offset = splat(0.f) - load(super + kLanes) * load_bytes<false>(group + kLanes);
        }
        if constexpr (kZero != 0) offset = splat(-(float)kZero) * scale;
    }
};

}  // namespace octavo
