// Weights to panels of integers: a file's rows, and floating-point weights that are rounded.
//
// A thread owns a panel. It gathers the panel in its own memory and copies it to its place, since that may be where the
// rows lie. Codes are handled as words of one output's codes for four inputs, as panels have them.
#include "block_pack.h"

#include <algorithm>
#include <vector>

namespace octavo {
namespace {

uint32_t word_at(const unsigned char* from) {
    uint32_t word;
    std::memcpy(&word, from, 4);
    return word;
}

template <class T>
void put(unsigned char* to, T value) {
    std::memcpy(to, &value, sizeof(T));
}

constexpr uint32_t kNibbles = 0x0f0f0f0f, kTwos = 0x03030303, kOnes = 0x01010101;

// The codes of a group of one output: the low four bits (all eight of codes of 8 bits), and the bits above.
struct GroupCodes {
    uint32_t low[8], high[8];
};

// `to`: where the output's word is in the group's first register.
template <int kBits, int kVectors>
void put_codes(const GroupCodes& codes, unsigned char* to) {
    if constexpr (kBits == 8) {
        for (int v = 0; v < kVectors; ++v) put(to + v * kCodeBytes, codes.low[v]);
        return;
    }
    constexpr int kHalf = kVectors / 2;
    for (int v = 0; v < kHalf; ++v) put(to + v * kCodeBytes, codes.low[v] | codes.low[v + kHalf] << 4);
    if constexpr (kBits > 4) {
        uint32_t high = 0;
        for (int v = 0; v < kVectors; ++v) high |= codes.high[v] << (v * (kBits - 4));
        put(to + kHalf * kCodeBytes, high);
    }
}

// Codes of four bits of a group with kVectors words, the first half of the inputs low.
template <int kVectors>
void read_nibbles(const unsigned char* from, GroupCodes& codes) {
    for (int v = 0; v < kVectors / 2; ++v) {
        const uint32_t word = word_at(from + 4 * v);
        codes.low[v] = word & kNibbles;
        codes.low[v + kVectors / 2] = word >> 4 & kNibbles;
    }
}

// One row of blocks of a single group: GGUF's of 32 inputs, and NVFP4's of 16 with half of their scale. Scale, minimum if
// there is one, fifth bits, four-bit codes.
template <int kBlock>
void pack_small(const unsigned char* from, int64_t num_inputs, unsigned char* panel, int lane) {
    constexpr BlockSpec spec = kSpecs[kBlock];
    constexpr int kScale = spec.scale == Scale::kPower ? 1 : 2, kVectors = spec.vectors();  // bytes of a scale
    const int64_t bytes = raw_row_bytes(kBlock, 32) * spec.group / 32;
    for (int64_t g = 0; g < num_inputs / spec.group; ++g, from += bytes) {
        unsigned char* group = panel + spec.group_place(g);
        std::memcpy(group + kScale * lane, from, kScale);
        if (spec.has_min) std::memcpy(group + 2 * (kLanes + lane), from + 2, 2);
        const unsigned char* raw = from + kScale * (spec.has_min ? 2 : 1);
        GroupCodes codes;
        if constexpr (spec.bits == 8) {
            for (int v = 0; v < kVectors; ++v) codes.low[v] = word_at(raw + 4 * v) ^ 0x80808080;
        } else {
            constexpr bool kFive = spec.bits == 5;
            const uint32_t fifth = kFive ? word_at(raw) : 0;
            read_nibbles<kVectors>(raw + (kFive ? 4 : 0), codes);
            for (int v = 0; v < kVectors; ++v)  // four bits to the lowest of a byte each
                codes.high[v] = ((fifth >> (4 * v) & 15) * 0x00204081u) & kOnes;
        }
        put_codes<spec.bits, kVectors>(codes, group + spec.scale_bytes() + 4 * lane);
    }
}

// Eight scales and minimums of 6 bits in 12 bytes.
void read_six_bits(const unsigned char* from, uint8_t* scales, uint8_t* mins) {
    for (int i = 0; i < 4; ++i) {
        scales[i] = from[i] & 63;
        mins[i] = from[i + 4] & 63;
        scales[i + 4] = (uint8_t)((from[i + 8] & 15) | from[i] >> 6 << 4);
        mins[i + 4] = (uint8_t)(from[i + 8] >> 4 | from[i + 4] >> 6 << 4);
    }
}

// One row of GGUF's Q4_K or Q5_K: 256 inputs in eight groups, codes of two groups side by side.
template <int kBlock>
void pack_super(const unsigned char* from, int64_t num_inputs, unsigned char* panel, int lane) {
    constexpr BlockSpec spec = kSpecs[kBlock];
    const int64_t bytes = raw_row_bytes(kBlock, kSuper);
    for (int64_t s = 0; s < num_inputs / kSuper; ++s, from += bytes) {
        unsigned char* super = panel + spec.super_place(s);
        std::memcpy(super + 2 * lane, from, 2);
        std::memcpy(super + 2 * (kLanes + lane), from + 2, 2);
        uint8_t scales[8], mins[8];
        read_six_bits(from + 4, scales, mins);
        const unsigned char* high = from + 16;
        const unsigned char* low = high + (spec.bits == 5 ? 32 : 0);
        for (int g = 0; g < 8; ++g) {
            unsigned char* group = panel + spec.group_place(8 * s + g);
            group[lane] = scales[g];
            group[kLanes + lane] = mins[g];
            GroupCodes codes;
            for (int v = 0; v < 8; ++v) {
                codes.low[v] = word_at(low + g / 2 * 32 + 4 * v) >> (g % 2 * 4) & kNibbles;
                codes.high[v] = spec.bits == 5 ? word_at(high + 4 * v) >> g & kOnes : 0;
            }
            put_codes<spec.bits, 8>(codes, group + spec.scale_bytes() + 4 * lane);
        }
    }
}

// One row of GGUF's Q6_K: 256 inputs in groups of 16; in each half, four runs of 32 share bytes.
template <int kBlock>
void pack_six(const unsigned char* from, int64_t num_inputs, unsigned char* panel, int lane) {
    constexpr BlockSpec spec = kSpecs[kBlock];
    for (int64_t s = 0; s < num_inputs / kSuper; ++s, from += 210) {
        std::memcpy(panel + spec.super_place(s) + 2 * lane, from + 208, 2);
        for (int g = 0; g < 16; ++g) {
            unsigned char* group = panel + spec.group_place(16 * s + g);
            group[lane] = from[192 + g];
            const int half = g / 8, run = g % 8 / 2, within = g % 2 * 16;
            GroupCodes codes;
            for (int v = 0; v < 4; ++v) {
                const uint32_t low = word_at(from + half * 64 + run % 2 * 32 + within + 4 * v);
                codes.low[v] = low >> (run / 2 * 4) & kNibbles;
                codes.high[v] = word_at(from + 128 + half * 32 + within + 4 * v) >> (2 * run) & kTwos;
            }
            put_codes<spec.bits, 4>(codes, group + spec.scale_bytes() + 4 * lane);
        }
    }
}

// One row of GGUF's IQ4_XS: 256 inputs in eight groups with scales of 6 bits, of which the low four come after the high
// two; codes as in blocks of 32.
template <int kBlock>
void pack_nonlinear(const unsigned char* from, int64_t num_inputs, unsigned char* panel, int lane) {
    constexpr BlockSpec spec = kSpecs[kBlock];
    for (int64_t s = 0; s < num_inputs / kSuper; ++s, from += raw_row_bytes(kBlock, kSuper)) {
        std::memcpy(panel + spec.super_place(s) + 2 * lane, from, 2);
        const int high = from[2] | from[3] << 8;
        for (int g = 0; g < 8; ++g) {
            unsigned char* group = panel + spec.group_place(8 * s + g);
            const int scale = (from[4 + g / 2] >> (g % 2 * 4) & 15) | (high >> (2 * g) & 3) << 4;
            group[lane] = (unsigned char)(scale - 32);
            GroupCodes codes;
            read_nibbles<8>(from + 8 + 16 * g, codes);
            put_codes<spec.bits, 8>(codes, group + spec.scale_bytes() + 4 * lane);
        }
    }
}

using PackRow = void (*)(const unsigned char* from, int64_t num_inputs, unsigned char* panel, int lane);
constexpr PackRow kPackRow[] = {pack_small<0>, pack_small<1>, pack_small<2>, pack_small<3>,
                                pack_small<4>, pack_super<5>, pack_super<6>, pack_six<7>,
                                pack_small<8>, pack_small<9>, pack_nonlinear<10>, pack_small<11>};

// The weights of a group of inputs, each of all outputs of a panel; outputs that do not exist are zero.
template <class T>
void read_group(const T* rows, int64_t row_size, int num_rows, Lanes (&values)[kXGroup]) {
    float by_input[kXGroup][kLanes] = {};
    for (int lane = 0; lane < num_rows; ++lane) {
        float row[kXGroup];
        for (int i = 0; i < kXGroup; i += kLanes) store(row + i, load(rows + lane * row_size + i));
        for (int i = 0; i < kXGroup; ++i) by_input[i][lane] = row[i];
    }
    for (int i = 0; i < kXGroup; ++i) values[i] = load(by_input[i]);
}

// The nearest whole numbers within bounds.
Lanes count_whole(const Lanes& steps, float least, float most) {
    return round_to_nearest(min(max(steps, splat(least)), splat(most)));
}

// Each value as a whole number of steps, within bounds; 0 where the step is 0.
Lanes count_steps(const Lanes& value, const Lanes& step, float least, float most) {
    const Floats zero = broadcast(0.f);
    Lanes r = count_whole(value / step, least, most);
    OCTAVO_EACH_PART r.part[i] = step.part[i] == zero ? zero : r.part[i];
    return r;
}

Lanes as_half(const Lanes& x) {
    Float16 halves[kLanes];
    store(halves, x);
    return load(halves);
}

// The scale and minimum of codes 0 .. 15 of a group, as float16 holds them.
struct Range {
    Lanes scale, min;
};

// Looks for the range of a group's codes that has the least squared error. Codes are found with the inverse of a scale
// here, so that a rare one half way between two differs from what is stored.
class RangeSearch {
public:
    explicit RangeSearch(const Lanes (&values)[kXGroup]) : values_(values) {}

    // Tries a range, as it would be stored; what is better in none of the outputs is forgotten.
    void attempt(const Lanes& scale, const Lanes& min) {
        const Range range{as_half(scale), as_half(min)};
        const Lanes inverse = invert(range.scale);
        Lanes error = splat(0.f);
        for (const Lanes& value : values_) {
            const Lanes difference = value - fma(code(value, inverse, range.min), range.scale, range.min);
            error = fma(difference, difference, error);
        }
        OCTAVO_EACH_PART {
            const auto is_less = error.part[i] < least_.part[i];
            least_.part[i] = is_less ? error.part[i] : least_.part[i];
            best_.scale.part[i] = is_less ? range.scale.part[i] : best_.scale.part[i];
            best_.min.part[i] = is_less ? range.min.part[i] : best_.min.part[i];
        }
    }

    // Tries the line that fits best through the values of the codes that they have now.
    void attempt_fit() {
        const Lanes inverse = invert(best_.scale), share = splat(1.f / kXGroup);
        Lanes mean = splat(0.f), mean_code = splat(0.f), common = splat(0.f), own = splat(0.f);
        for (const Lanes& value : values_) {
            mean = fma(value, share, mean);
            mean_code = fma(code(value, inverse, best_.min), share, mean_code);
        }
        for (const Lanes& value : values_) {
            const Lanes offset = code(value, inverse, best_.min) - mean_code;
            common = fma(offset, value - mean, common);
            own = fma(offset, offset, own);
        }
        const Lanes step = common / own;
        attempt(step, mean - as_half(step) * mean_code);
    }

    const Range& best() const { return best_; }

private:
    static Lanes invert(const Lanes& scale) {
        Lanes r;
        const Floats zero = broadcast(0.f);
        OCTAVO_EACH_PART r.part[i] = scale.part[i] == zero ? zero : broadcast(1.f) / scale.part[i];
        return r;
    }

    static Lanes code(const Lanes& value, const Lanes& inverse, const Lanes& min) {
        return count_whole((value - min) * inverse, 0.f, 15.f);
    }

    const Lanes (&values_)[kXGroup];
    Range best_{splat(0.f), splat(0.f)};
    Lanes least_ = splat(INFINITY);
};

// What is tried: the parts of half the values' range that codes span below and above its centre; the same table as in
// octavo/kernels/grouped.py.
constexpr float kKept[] = {1.f, 0.95f, 0.9f};

Range best_range(const Lanes (&values)[kXGroup]) {
    Lanes low = values[0], high = values[0];
    for (int i = 1; i < kXGroup; ++i) {
        high = max(high, values[i]);
        low = min(low, values[i]);
    }
    const Lanes centre = splat(0.5f) * (low + high), half = splat(0.5f) * (high - low);
    RangeSearch search(values);
    for (float below : kKept)
        for (float above : kKept)
            search.attempt(half * splat((below + above) / 15.f), centre - half * splat(below));
    search.attempt_fit();
    return search.best();
}

// One register of codes: of four inputs of each output.
void to_bytes(const Lanes* codes, uint32_t* words) {
    OCTAVO_EACH_PART {
        Words word{};
        for (int k = 0; k < 4; ++k)
            word |= bit_cast<Words>(__builtin_convertvector(codes[k].part[i], Ints)) << (8 * k);
        store_vector(words + i * kWidth, word);
    }
}

void quantize_to_int8(const Lanes (&values)[kXGroup], unsigned char* group) {
    Lanes most = splat(0.f);
    for (const Lanes& value : values) most = max(most, max(value, splat(0.f) - value));
    const Lanes scale = as_half(most / splat(127.f));
    store(reinterpret_cast<Float16*>(group), scale);
    for (int v = 0; v < 8; ++v) {
        Lanes codes[4];
        for (int k = 0; k < 4; ++k)
            codes[k] = count_steps(values[4 * v + k], scale, -127.f, 127.f) + splat(128.f);
        uint32_t words[kLanes];
        to_bytes(codes, words);
        std::memcpy(group + kInt8.scale_bytes() + v * kCodeBytes, words, sizeof(words));
    }
}

// One register of codes of 4 bits: of four inputs of each output, and of the four that are half a group further on.
void put_nibbles(const Lanes (&codes)[2][4], unsigned char* to) {
    uint32_t low[kLanes], high[kLanes];
    to_bytes(codes[0], low);
    to_bytes(codes[1], high);
    for (int lane = 0; lane < kLanes; ++lane) low[lane] |= high[lane] << 4;
    std::memcpy(to, low, sizeof(low));
}

void quantize_to_int4(const Lanes (&values)[kXGroup], unsigned char* group) {
    const Range range = best_range(values);
    store(reinterpret_cast<Float16*>(group), range.scale);
    store(reinterpret_cast<Float16*>(group) + kLanes, range.min);
    for (int v = 0; v < 4; ++v) {
        Lanes codes[2][4];
        for (int k = 0; k < 8; ++k)
            codes[k / 4][k % 4] = count_steps(values[4 * v + k / 4 * 16 + k % 4] - range.min, range.scale, 0.f, 15.f);
        put_nibbles(codes, group + kInt4.scale_bytes() + v * kCodeBytes);
    }
}

// Codes of the nearest floats of 4 bits; larger numbers become the largest.
Lanes float4_codes(const Lanes& numbers) {
    const Lanes sizes = min(abs(numbers), splat(6.f));
    Lanes steps, offsets;  // eight codes in three runs of equal steps; a negative number's are 8 more
    OCTAVO_EACH_PART {
        const Floats size = sizes.part[i], two = broadcast(2.f), four = broadcast(4.f), zero = broadcast(0.f);
        steps.part[i] = size < two ? broadcast(0.5f) : size < four ? broadcast(1.f) : two;
        offsets.part[i] = size < two ? zero : size < four ? two : four;
        offsets.part[i] += bit_cast<Ints>(numbers.part[i]) < Ints{} ? broadcast(8.f) : zero;
    }
    return round_to_nearest(sizes / steps) + offsets;
}

// Floats of 4 bits with the scale that brings the largest between 3.5 and 7; as octavo/kernels/float4.py rounds.
void quantize_to_mxfp4(const Lanes (&values)[kXGroup], unsigned char* group) {
    constexpr int kQuarter = 1 << 21;  // of a float32's fraction: from 1.75 on, it carries into the exponent
    Lanes most = splat(0.f), scale;
    for (const Lanes& value : values) most = max(most, abs(value));
    OCTAVO_EACH_PART {
        const Ints exponent = ((bit_cast<Ints>(most.part[i]) + kQuarter) >> 23) - 2, least = Ints{} + 2, last = Ints{} + 254;
        const Ints own = exponent < least ? least : exponent > last ? last : exponent;
        scale.part[i] = bit_cast<Floats>(own << 23);
        for (int lane = 0; lane < kWidth; ++lane) group[i * kWidth + lane] = (unsigned char)own[lane];
    }
    for (int v = 0; v < 4; ++v) {
        Lanes codes[2][4];
        for (int k = 0; k < 8; ++k) codes[k / 4][k % 4] = float4_codes(values[4 * v + k / 4 * 16 + k % 4] / scale);
        put_nibbles(codes, group + kMXFP4.scale_bytes() + v * kCodeBytes);
    }
}

using QuantizeGroup = void (*)(const Lanes (&values)[kXGroup], unsigned char* group);

QuantizeGroup find_quantize(int32_t block) {
    return block == kBlockInt8 ? quantize_to_int8 : block == kBlockInt4 ? quantize_to_int4 : quantize_to_mxfp4;
}

template <class T>
void quantize_panel(const Quantize& quantize, int64_t panel, unsigned char* packed) {
    const BlockSpec& spec = kSpecs[quantize.block];
    const int64_t row_size = quantize.num_inputs;
    const T* rows = reinterpret_cast<const T*>(quantize.from) + panel * kLanes * row_size;
    const int num_rows = (int)std::min<int64_t>(kLanes, quantize.num_outputs - panel * kLanes);
    for (int64_t g = 0; g < row_size / kXGroup; ++g) {
        Lanes values[kXGroup];
        read_group(rows + g * kXGroup, row_size, num_rows, values);
        unsigned char* group = packed + spec.group_place(g);
        find_quantize(quantize.block)(values, group);
    }
}

// A panel's memory, which lasts until the thread asks again.
unsigned char* panel_memory(int64_t bytes) {
    thread_local std::vector<unsigned char> memory;
    memory.assign(bytes, 0);
    return memory.data();
}

}  // namespace

int64_t raw_row_bytes(int32_t block, int64_t num_inputs) {
    constexpr int64_t kBytes[] = {18, 20, 22, 24, 34, 144, 176, 210, 17, 18, 136, 20};
    return num_inputs / (kSpecs[block].super_bytes() > 0 ? kSuper : 32) * kBytes[block];
}

void PackBlocks::run(int64_t panel) const {
    const int64_t bytes = kSpecs[block].panel_bytes(num_inputs), row_bytes = raw_row_bytes(block, num_inputs);
    unsigned char* packed = panel_memory(bytes);
    for (int lane = 0; lane < kLanes && panel * kLanes + lane < num_outputs; ++lane)
        kPackRow[block](from + (panel * kLanes + lane) * row_bytes, num_inputs, packed, lane);
    std::memcpy(to + panel * bytes, packed, bytes);
}

void Quantize::run(int64_t panel) const {
    const int64_t bytes = kSpecs[block].panel_bytes(num_inputs);
    unsigned char* packed = panel_memory(bytes);
    by_type(type, [&](auto value) { quantize_panel<decltype(value)>(*this, panel, packed); });
    std::memcpy(to + panel * bytes, packed, bytes);
}

}  // namespace octavo
