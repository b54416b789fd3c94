// Formats of packed weights with integer values in groups, which share a scale: GGUF's blocks as they are, NVFP4
// with scales in float16, and int8, int4 and mxfp4 made at load.
//
// A weight is scale · number + offset for an unsigned number of 4 to 8 bits, which is the code itself, or the one that a
// table has for a code of 4 bits. Where a file's numbers are signed, the offset is minus the zero point times the scale;
// else it is the file's minimum. x is rounded to 8 bits in groups of 32 with a
// scale each, so a group's sum is exact in integers, and only sums of groups are rounded. Groups with a value far above
// the row's mean, whose rounding is most of the error, get 8 bits more: a second code of what the first left.
//
// A panel (sixteen outputs) is a list of groups: its scales, its minimums, its codes. Codes lie so that four bytes of a
// register hold one output's codes for four inputs. The low four bits of two registers share one; a fifth and sixth bit
// are in one more register per group.
#pragma once

#include "lanes.h"
#include "tiles.h"
#include "weights.h"

namespace octavo {

constexpr int kSuper = 256;   // inputs that share the scale of scales, in formats that have one
constexpr int kXGroup = 32;   // inputs of x that share a scale
constexpr int kCodeBytes = 4 * kLanes;  // of the registers that hold four codes of each output

enum class Scale {
    kHalf,     // float16 per group
    kByte,     // an integer per group, times float16 per kSuper inputs
    kPower,    // the exponent of a power of two per group
};

enum class Table { kNone, kFloat4, kNonlinear };

struct BlockSpec {
    int bits, group, zero;  // the zero point is one of numbers
    Scale scale;
    bool has_min;
    Table table = Table::kNone;

    constexpr int number_bits() const { return table == Table::kNonlinear ? 8 : bits; }

    constexpr int vectors() const { return group / 4; }
    constexpr int low_bytes() const { return bits == 8 ? vectors() * kCodeBytes : vectors() / 2 * kCodeBytes; }
    constexpr int code_bytes() const { return low_bytes() + (bits > 4 && bits < 8 ? kCodeBytes : 0); }
    constexpr int scale_bytes() const {
        const int each = scale == Scale::kHalf ? 2 : 1;
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
constexpr BlockSpec kMXFP4{4, 32, 12, Scale::kPower, false, Table::kFloat4};
constexpr BlockSpec kIQ4_NL{4, 32, 128, Scale::kHalf, false, Table::kNonlinear};
constexpr BlockSpec kIQ4_XS{4, 32, 128, Scale::kByte, false, Table::kNonlinear};
constexpr BlockSpec kNVFP4{4, 16, 12, Scale::kHalf, false, Table::kFloat4};
constexpr BlockSpec kInt8 = kQ8_0;
constexpr BlockSpec kInt4 = kQ4_1;

// What codes stand for, plus the zero point: floats of 4 bits (e2m1) in halves, and GGUF's nonlinear steps.
constexpr uint8_t kFloat4Numbers[] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
constexpr uint8_t kNonlinearNumbers[] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
constexpr const uint8_t* numbers_of(Table table) {
    return table == Table::kFloat4 ? kFloat4Numbers : kNonlinearNumbers;
}

// A tile of x: per group of 32 the rows' codes, 32 bytes each, so that a group is a tile of AMX; then per group the rows'
// scales and scaled sums of codes; then per group of the weights what the codes' products start from, minus the weights'
// zero point times the sum of x's codes; then which rows of a group of 32 are fine, which is to say that they have second
// codes there, one bit each; last, for each group with a fine row, its second codes and what their products start from.
// Second codes count kFineStep of the first ones' steps, and those of other rows are not used.
template <class Code, class Number, class Flags>
struct XTile {
    Code* codes;
    Number *scales, *sums;
    Code* starts;
    Flags* fine_rows;
    Code* fine;

    template <class Byte>
    XTile(Byte* tile, int64_t num_rows, int64_t num_inputs, int group) {
        const int64_t groups = num_inputs / kXGroup * num_rows;
        codes = reinterpret_cast<Code*>(tile);
        scales = reinterpret_cast<Number*>(tile + num_inputs * num_rows);
        sums = scales + groups;
        starts = reinterpret_cast<Code*>(sums + groups);
        fine_rows = reinterpret_cast<Flags*>(starts + kXGroup / group * groups);
        fine = reinterpret_cast<Code*>(fine_rows + num_inputs / kXGroup);
    }
};

constexpr float kFineStep = 1.f / 254;

constexpr int kXWords = kXGroup / 4;  // of a row's codes in a group

// What one row of a fine group adds to a tile, in Codes.
constexpr int fine_size(int group) { return kXWords + kXGroup / group; }

// Enough for each row of a tile, if all groups are fine.
inline int64_t x_row_bytes(int64_t num_inputs) {
    return (2 * num_inputs + num_inputs / kXGroup * (2 + 2 * 2 + 1) * 4 + 63) / 64 * 64;
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

// The numbers that a format has for codes.
template <Table kTable>
[[gnu::always_inline]] inline Codes look_up(const Codes& codes) {
    constexpr const uint8_t* kNumbers = numbers_of(kTable);
    Codes r;
    OCTAVO_EACH_PART {
#if defined(__AVX512BW__)
        const __m512i table = _mm512_broadcast_i32x4(load_vector<__m128i>(kNumbers));
        r.part[i] = (CodeVector)_mm512_shuffle_epi8(table, (__m512i)codes.part[i]);
#elif defined(__AVX2__)
        const __m256i table = _mm256_broadcastsi128_si256(load_vector<__m128i>(kNumbers));
        r.part[i] = (CodeVector)_mm256_shuffle_epi8(table, (__m256i)codes.part[i]);
#elif defined(__aarch64__)
        r.part[i] = (CodeVector)vqtbl1q_u8(vld1q_u8(kNumbers), (uint8x16_t)codes.part[i]);
#else
        for (int k = 0; k < 4 * kWidth; ++k) r.part[i][k] = kNumbers[codes.part[i][k]];
#endif
    }
    return r;
}

// One of a group's registers of numbers.
template <const BlockSpec& kSpec>
[[gnu::always_inline]] inline Codes numbers_at(const unsigned char* from, int v) {
    const Codes codes = codes_at<kSpec.bits, kSpec.vectors()>(from, v);
    if constexpr (kSpec.table == Table::kNone) return codes;
    return look_up<kSpec.table>(codes);
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
#elif defined(__ARM_FEATURE_DOTPROD)
        const uint8x16_t w = (uint8x16_t)codes.part[i];
        const int8x16_t s = vreinterpretq_s8_u8(kBits == 8 ? veorq_u8(w, vdupq_n_u8(0x80)) : w);
        sums.part[i] = (Ints)vdotq_s32((int32x4_t)sums.part[i], s, (int8x16_t)x);
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
[[gnu::always_inline]] inline Integers load_integers(const unsigned char* from) {
    Integers r;
    OCTAVO_EACH_PART {
#if defined(__AVX512F__)
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        r.part[i] = (Ints)(kSigned ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
#elif defined(__AVX2__)
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + i * kWidth));
        r.part[i] = (Ints)(kSigned ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
#else
        for (int lane = 0; lane < kWidth; ++lane) {
            const unsigned char byte = from[i * kWidth + lane];
            r.part[i][lane] = kSigned ? (int8_t)byte : byte;
        }
#endif
    }
    return r;
}

template <bool kSigned>
[[gnu::always_inline]] inline Lanes load_bytes(const unsigned char* from) {
    return to_lanes(load_integers<kSigned>(from));
}

// Halves of the powers of two whose exponents, plus 127, are sixteen bytes; those of 0 and 1 count as 0.
[[gnu::always_inline]] inline Lanes load_halved_powers(const unsigned char* from) {
    const Integers exponents = load_integers<false>(from);
    Lanes r;
    OCTAVO_EACH_PART {
        const Ints numbers = exponents.part[i] - 1;
        r.part[i] = bit_cast<Floats>((numbers > 0 ? numbers : Ints{}) << 23);
    }
    return r;
}

constexpr BlockSpec kSpecs[] = {kQ4_0,  kQ4_1,  kQ5_0,   kQ5_1,   kQ8_0,  kQ4_K, kQ5_K, kQ6_K,
                                kMXFP4, kIQ4_NL, kIQ4_XS, kNVFP4, kInt8, kInt4, kMXFP4};

// The zero point that products with numbers of a format have.
constexpr int zero_of(const BlockSpec& spec) { return spec.number_bits() == 8 && kSignedCodes ? 0 : spec.zero; }

template <int kIndex>
struct BlockFormat {
    static constexpr BlockSpec kSpec = kSpecs[kIndex];
    static constexpr bool kWideInTiles = false;
#if defined(OCTAVO_HAS_TILES)
    static constexpr int kWideRows = 4, kTallRows = 2 * kTileRows;
    static constexpr bool kTallInTiles = true;
#elif defined(__AVX512F__)
    static constexpr int kWideRows = 4, kTallRows = 8;
    static constexpr bool kTallInTiles = false;
#else
    static constexpr int kWideRows = 1, kTallRows = 3;
    static constexpr bool kTallInTiles = false;
#endif
    static_assert(kTallRows <= 32);  // bits of XTile::fine_rows
    static constexpr int kVectors = kSpec.vectors();
    static constexpr int kSteps = kXGroup / kSpec.group;  // groups to one of x
    using Tile = XTile<const int32_t, const float, const uint32_t>;

    template <int kRows, int kPanels>
    [[gnu::always_inline]] static inline void multiply(const unsigned char* const* panels, const unsigned char* x,
                                                       int64_t num_inputs, Lanes (&result)[kRows][kPanels]) {
        // Sums of groups stay in registers, sums of them in memory.
        Lanes* sums = &result[0][0];
        asm("" : "+r"(sums) : : "memory");
        const Tile tile(x, kRows, num_inputs, kSpec.group);
        const int32_t* fine = tile.fine;
        for (int i = 0; i < kRows * kPanels; ++i) sums[i] = splat(0.f);
        for (int64_t g = 0; g < num_inputs / kSpec.group; ++g) {
            if constexpr (kRows <= kWideRows)  // the time of more rows is that of arithmetic
                for (int p = 0; p < kPanels; ++p)
                    for (int i = 0; i < kSpec.group_bytes(); i += 64) read_ahead(panels[p] + kSpec.group_place(g) + i);
            const Weights<kPanels> weights = weights_at<kPanels>(panels, g);
            const Inputs first = inputs_at(tile, kRows, g);
            add_plane<kRows, kPanels, kSpec.has_min>(weights, first, sums);
            fine = add_second_codes(weights, first, tile.fine_rows[g / kSteps], fine, kRows, g, sums);
        }
        asm("" : : : "memory");
    }

#if defined(OCTAVO_HAS_TILES)
    // The same for up to kTallRows rows by two panels, with the same bits, since sums of a group's integers are exact. While
    // a group's products are added up, those of the next one are multiplied.
    template <int kPanels>
    static inline void multiply_rows(const unsigned char* const* panels, const TileInputs& x, int64_t num_inputs,
                                     Lanes* sums) {
        const int rows = x.rows;
        const int64_t num_groups = num_inputs / kSpec.group;
        const Tile tile(x.first, rows, num_inputs, kSpec.group);
        const int32_t* fine = tile.fine;
        Integers products[2][kTallRows * kPanels];
        for (int i = 0; i < rows * kPanels; ++i) sums[i] = splat(0.f);
        shape_tiles(rows, kVectors);
        multiply_group(panels, tile, rows, 0, products[0]);
        for (int64_t g = 0; g < num_groups; ++g) {
            if (g + 1 < num_groups) multiply_group(panels, tile, rows, g + 1, products[(g + 1) % 2]);
            const Weights<kPanels> weights = weights_at<kPanels>(panels, g);
            const Inputs first = inputs_at(tile, rows, g);
            for (int r = 0; r < rows; ++r) {
                Integers row[kPanels];
                for (int p = 0; p < kPanels; ++p)
                    row[p].part[0] = products[g % 2][r * kPanels + p].part[0] + start_of(first, r);
                add_row<kPanels, kSpec.has_min>(weights, first, r, row, sums + r * kPanels);
            }
            fine = add_second_codes(weights, first, tile.fine_rows[g / kSteps], fine, rows, g, sums);
        }
    }
#endif

   private:
    // Of a group, the weights of some panels, and the first or second codes of a tile's rows.
    template <int kPanels>
    struct Weights {
        const unsigned char* codes[kPanels];
        Lanes scales[kPanels], least[kPanels];
    };
    struct Inputs {
        const int32_t *codes, *starts;
        const float *scales, *sums;
    };

    template <int kPanels>
    [[gnu::always_inline]] static inline Weights<kPanels> weights_at(const unsigned char* const* panels, int64_t g) {
        Weights<kPanels> weights;
        OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p) {
            const unsigned char* group = panels[p] + kSpec.group_place(g);
            scales_of(panels[p], group, g, weights.scales[p], weights.least[p]);
            weights.codes[p] = group + kSpec.scale_bytes();
        }
        return weights;
    }

    static inline Inputs inputs_at(const Tile& tile, int64_t rows, int64_t g) {
        return {tile.codes + g / kSteps * kXWords * rows + g % kSteps * kVectors, tile.starts + g * rows,
                tile.scales + g / kSteps * rows, tile.sums + g * rows};
    }

    // Adds what the second codes of a group's fine rows give. Returns the place of the next second codes.
    template <int kPanels>
    [[gnu::always_inline]] static inline const int32_t* add_second_codes(Weights<kPanels> weights, const Inputs& first,
                                                                         uint32_t fine_rows, const int32_t* fine,
                                                                         int64_t rows, int64_t g, Lanes* sums) {
        if (fine_rows == 0) return fine;
        const int64_t part = g % kSteps;
        OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p) weights.scales[p] = weights.scales[p] * splat(kFineStep);
        for (uint32_t left = fine_rows; left != 0; left &= left - 1) {
            const int r = __builtin_ctz(left);
            const Inputs second{fine + r * kXWords + part * kVectors, fine + (kXWords + part) * rows + r,
                                first.scales + r, nullptr};
            add_plane<1, kPanels, false>(weights, second, sums + r * kPanels);
        }
        return part == kSteps - 1 ? fine + fine_size(kSpec.group) * rows : fine;
    }

    // Adds a group's products, and the least of its weights times the sums of x.
    template <int kRows, int kPanels, bool kAddsLeast>
    [[gnu::always_inline]] static inline void add_plane(const Weights<kPanels>& weights, const Inputs& x, Lanes* sums) {
        Integers products[kRows][kPanels];
        OCTAVO_UNROLL for (int r = 0; r < kRows; ++r) {
            const Ints start = start_of(x, r);
            OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p)
                OCTAVO_EACH_PART products[r][p].part[i] = start;
        }
        OCTAVO_UNROLL for (int v = 0; v < kVectors; ++v) {
            Codes codes[kPanels];
            OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p)
                codes[p] = numbers_at<kSpec>(weights.codes[p], v);
            OCTAVO_UNROLL for (int r = 0; r < kRows; ++r) {
                const Ints four = Ints{} + x.codes[r * kXWords + v];
                OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p) add_dot<kSpec.number_bits()>(products[r][p], codes[p], four);
            }
        }
        OCTAVO_UNROLL for (int r = 0; r < kRows; ++r)
            add_row<kPanels, kAddsLeast>(weights, x, r, products[r], sums + r * kPanels);
    }

#if defined(OCTAVO_HAS_TILES)
    // Products of first codes, [rows][2]: x's are the rows of a tile as they lie, the weights' as bytes those of another.
    static inline void multiply_group(const unsigned char* const* panels, const Tile& tile, int rows, int64_t g,
                                      Integers* products) {
        Codes unpacked[2][kVectors];
        const void* weights[2];
        for (int p = 0; p < 2; ++p) {
            const unsigned char* codes = panels[p] + kSpec.group_place(g) + kSpec.scale_bytes();
            weights[p] = codes;
            if constexpr (kSpec.bits != 8) {
                for (int v = 0; v < kVectors; ++v) unpacked[p][v] = numbers_at<kSpec>(codes, v);
                weights[p] = unpacked[p];
            }
        }
        load_tile<kWeightTiles>(weights[0], kTileBytes), load_tile<kWeightTiles + 1>(weights[1], kTileBytes);
        const int32_t* x = inputs_at(tile, rows, g).codes;
        load_tile<kXTiles>(x, kXGroup);
        multiply_tiles<0, kXTiles, kWeightTiles>(products);
        multiply_tiles<1, kXTiles, kWeightTiles + 1>(products + 1);
        if (rows > kTileRows) {
            load_tile<kXTiles + 1>(x + kTileRows * kXWords, kXGroup);
            multiply_tiles<2, kXTiles + 1, kWeightTiles>(products + 2 * kTileRows);
            multiply_tiles<3, kXTiles + 1, kWeightTiles + 1>(products + 2 * kTileRows + 1);
        }
    }

    template <int kSums, int kX, int kWeights>
    static inline void multiply_tiles(Integers* products) {
        clear_tile<kSums>();
        add_byte_products<kSums, kX, kWeights>();
        keep_tile<kSums>(products, 2 * kTileBytes);
    }
#endif

    static inline Ints start_of(const Inputs& x, int row) {
        return zero_of(kSpec) == 0 ? Ints{} : Ints{} + x.starts[row];
    }

    template <int kPanels, bool kAddsLeast>
    [[gnu::always_inline]] static inline void add_row(const Weights<kPanels>& weights, const Inputs& x, int row,
                                                      const Integers* products, Lanes* sums) {
        const Lanes scale = splat(x.scales[row]);
        OCTAVO_UNROLL for (int p = 0; p < kPanels; ++p) {
            Lanes sum = fma(to_lanes(products[p]), weights.scales[p] * scale, sums[p]);
            if constexpr (kAddsLeast) sum = fma(weights.least[p], splat(x.sums[row]), sum);
            sums[p] = sum;
        }
    }

    // The scales of a group's weights, and the least of them.
    [[gnu::always_inline]] static inline void scales_of(const unsigned char* panel, const unsigned char* group,
                                                        int64_t index, Lanes& scale, Lanes& least) {
        if constexpr (kSpec.scale == Scale::kHalf) {
            scale = load(reinterpret_cast<const Float16*>(group));
            if constexpr (kSpec.has_min) least = load(reinterpret_cast<const Float16*>(group) + kLanes);
        } else if constexpr (kSpec.scale == Scale::kPower) {
            scale = load_halved_powers(group);
        } else {
            const auto* super = reinterpret_cast<const Float16*>(
                panel + kSpec.super_place(index / (kSuper / kSpec.group)));
            scale = load(super) * load_bytes<!kSpec.has_min>(group);
            if constexpr (kSpec.has_min) least = splat(0.f) - load(super + kLanes) * load_bytes<false>(group + kLanes);
        }
    }
};

}  // namespace octavo
