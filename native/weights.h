// Formats of packed weights with floating-point values.
#pragma once

#include "lanes.h"

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

// One value per output at a time: [inputs][16].
template <class T>
struct ValueFormat {
    static constexpr int kWideRows = kMaxWideRows, kTallRows = kMaxTallRows;
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
struct PairFormat {
    static constexpr int kWideRows = kMaxWideRows, kTallRows = kMaxTallRows;
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

}  // namespace octavo
