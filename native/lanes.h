// Sixteen float32 values at a time, in as many registers as the instruction set needs.
//
// Weights and keys are stored in groups of sixteen outputs (see weights.h, cache.h), so all kernels are written
// once in terms of sixteen lanes; this file is the only one that knows how wide a register is.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace octavo {

constexpr int kLanes = 16;

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
constexpr int kParts = kLanes / kWidth;

using Floats = float __attribute__((vector_size(4 * kWidth)));
using Ints = int32_t __attribute__((vector_size(4 * kWidth)));
using Words = uint32_t __attribute__((vector_size(4 * kWidth)));
using Halves = uint16_t __attribute__((vector_size(2 * kWidth)));

// A bfloat16 and a float16 value in memory; arithmetic is always float32.
struct BFloat16 {
    uint16_t bits;
};
struct Float16 {
    uint16_t bits;
};

inline Floats broadcast(float x) {
#if defined(__AVX512F__)
    return (Floats)_mm512_set1_ps(x);
#elif defined(__AVX2__)
    return (Floats)_mm256_set1_ps(x);
#else
    return Floats{x, x, x, x};
#endif
}

template <class To, class From>
inline To bit_cast(const From& from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

template <class V>
inline V load_vector(const void* from) {
    V v;
    std::memcpy(&v, from, sizeof(v));
    return v;
}

template <class V>
inline void store_vector(void* to, const V& v) {
    std::memcpy(to, &v, sizeof(v));
}

// In one instruction and a shift, where the compiler would widen halves of a register by themselves.
inline Floats widen(Halves bits, BFloat16) {
#if defined(__AVX512F__)
    return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(bit_cast<__m256i>(bits)), 16);
#elif defined(__AVX2__)
    return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(bit_cast<__m128i>(bits)), 16);
#else
    return bit_cast<Floats>(__builtin_convertvector(bits, Words) << 16);
#endif
}

inline Floats widen(Halves bits, Float16) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtph_ps(bit_cast<__m256i>(bits));
#elif defined(__AVX2__)
    return (Floats)_mm256_cvtph_ps(bit_cast<__m128i>(bits));
#elif defined(__aarch64__)
    return (Floats)vcvt_f32_f16(bit_cast<float16x4_t>(bits));
#else
    using Native = _Float16 __attribute__((vector_size(2 * kWidth)));
    return __builtin_convertvector(bit_cast<Native>(bits), Floats);
#endif
}

// Round to nearest, ties to even; a NaN stays a NaN.
inline Halves narrow(Floats x, BFloat16) {
#if defined(__AVX512BF16__)
    return bit_cast<Halves>(_mm512_cvtneps_pbh((__m512)x));  // the only one that rounds denormal values to zero
#else
    const Words bits = bit_cast<Words>(x);
    const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const Words quiet = (bits >> 16) | 0x40;
    const Words is_nan = (Words)(x != x);
    return __builtin_convertvector((is_nan & quiet) | (~is_nan & rounded), Halves);
#endif
}

inline Halves narrow(Floats x, Float16) {
#if defined(__AVX512F__)
    return bit_cast<Halves>(_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__AVX2__)
    return bit_cast<Halves>(_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
    return bit_cast<Halves>(vcvt_f16_f32((float32x4_t)x));
#else
    using Native = _Float16 __attribute__((vector_size(2 * kWidth)));
    return bit_cast<Halves>(__builtin_convertvector(x, Native));
#endif
}

struct Lanes {
    Floats part[kParts];
};

// Loops over a tile: its sums stay in registers only if the loops vanish.
#define OCTAVO_UNROLL _Pragma("GCC unroll 16")
#define OCTAVO_EACH_PART _Pragma("GCC unroll 4") for (int i = 0; i < kParts; ++i)

inline Lanes splat(float x) {
    Lanes r;
    const Floats v = broadcast(x);
    OCTAVO_EACH_PART r.part[i] = v;
    return r;
}
inline Lanes operator+(const Lanes& a, const Lanes& b) {
    Lanes r;
    OCTAVO_EACH_PART r.part[i] = a.part[i] + b.part[i];
    return r;
}
inline Lanes operator-(const Lanes& a, const Lanes& b) {
    Lanes r;
    OCTAVO_EACH_PART r.part[i] = a.part[i] - b.part[i];
    return r;
}
inline Lanes operator*(const Lanes& a, const Lanes& b) {
    Lanes r;
    OCTAVO_EACH_PART r.part[i] = a.part[i] * b.part[i];
    return r;
}
inline Lanes operator/(const Lanes& a, const Lanes& b) {
    Lanes r;
    OCTAVO_EACH_PART r.part[i] = a.part[i] / b.part[i];
    return r;
}
inline Floats max(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
}
inline Floats min(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Floats)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return a < b ? a : b;
#endif
}
inline Lanes max(const Lanes& a, const Lanes& b) {
    Lanes r;
    OCTAVO_EACH_PART r.part[i] = max(a.part[i], b.part[i]);
    return r;
}
inline Lanes min(const Lanes& a, const Lanes& b) {
    Lanes r;
    OCTAVO_EACH_PART r.part[i] = min(a.part[i], b.part[i]);
    return r;
}
// Sizes, as numbers or by their bits, in whose order infinity and NaN are the largest.
inline Lanes abs(const Lanes& x) {
    Lanes r;
    OCTAVO_EACH_PART r.part[i] = bit_cast<Floats>(bit_cast<Ints>(x.part[i]) & 0x7fffffff);
    return r;
}
inline Floats max_size(Floats a, Floats b) {
    const Ints x = bit_cast<Ints>(a), y = bit_cast<Ints>(b);
    return bit_cast<Floats>(x > y ? x : y);
}
inline Lanes max_size(const Lanes& a, const Lanes& b) {
    Lanes r;
    OCTAVO_EACH_PART r.part[i] = max_size(a.part[i], b.part[i]);
    return r;
}
// Bit i tells whether lane i is above a limit, or a NaN.
inline uint32_t bits_above(const Lanes& x, float limit) {
    uint32_t bits = 0;
    OCTAVO_EACH_PART {
#if defined(__AVX512F__)
        bits |= (uint32_t)_mm512_cmp_ps_mask((__m512)x.part[i], _mm512_set1_ps(limit), _CMP_NLE_UQ);
#elif defined(__AVX2__)
        const __m256 above = _mm256_cmp_ps((__m256)x.part[i], _mm256_set1_ps(limit), _CMP_NLE_UQ);
        bits |= (uint32_t)_mm256_movemask_ps(above) << (i * kWidth);
#else
        for (int lane = 0; lane < kWidth; ++lane)
            bits |= (x.part[i][lane] <= limit ? 0u : 1u) << (i * kWidth + lane);
#endif
    }
    return bits;
}
// Whole numbers from -128 to 127 as bytes.
inline void put_bytes(const Lanes& numbers, void* to) {
#if defined(__AVX512F__)
    store_vector(to, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32((__m512)numbers.part[0])));
#else
    using Bytes = int8_t __attribute__((vector_size(kWidth)));
    OCTAVO_EACH_PART {
        const auto bytes = __builtin_convertvector(__builtin_convertvector(numbers.part[i], Ints), Bytes);
        store_vector(static_cast<int8_t*>(to) + i * kWidth, bytes);
    }
#endif
}
inline void put_bytes(const Lanes& low, const Lanes& high, void* to) {
#if defined(__AVX512F__)
    const __m512i order = (__m512i)(__attribute__((vector_size(64))) uint16_t){
        0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31};
    const __m512i halves = _mm512_packs_epi32(_mm512_cvtps_epi32((__m512)low.part[0]), _mm512_cvtps_epi32((__m512)high.part[0]));
    store_vector(to, _mm512_cvtepi16_epi8(_mm512_permutexvar_epi16(order, halves)));
#else
    put_bytes(low, to);
    put_bytes(high, static_cast<int8_t*>(to) + kLanes);
#endif
}
inline Lanes round_to_nearest(const Lanes& x) {
    const Lanes magic = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to the nearest integer
    return (x + magic) - magic;
}
// a · b + c, rounded once.
inline Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    Floats r;
    for (int i = 0; i < kWidth; ++i) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return r;
#endif
}
inline Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
    Lanes r;
    OCTAVO_EACH_PART r.part[i] = fma(a.part[i], b.part[i], c.part[i]);
    return r;
}

inline Lanes load(const float* from) {
    Lanes r;
    OCTAVO_EACH_PART r.part[i] = load_vector<Floats>(from + i * kWidth);
    return r;
}
template <class T>
inline Lanes load(const T* from) {
    Lanes r;
    OCTAVO_EACH_PART r.part[i] = widen(load_vector<Halves>(from + i * kWidth), T{});
    return r;
}
inline void store(float* to, const Lanes& x) {
    OCTAVO_EACH_PART store_vector(to + i * kWidth, x.part[i]);
}
template <class T>
inline void store(T* to, const Lanes& x) {
    OCTAVO_EACH_PART store_vector(to + i * kWidth, narrow(x.part[i], T{}));
}
// The first `count` lanes; others are zero, or not written.
template <class T>
inline Lanes load_some(const T* from, int64_t count) {
    T full[kLanes] = {};
    std::memcpy(full, from, count * sizeof(T));
    return load(full);
}
template <class T>
inline void store_some(T* to, const Lanes& x, int64_t count) {
    T full[kLanes];
    store(full, x);
    std::memcpy(to, full, count * sizeof(T));
}
inline float to_float(float x) { return x; }
inline float to_float(BFloat16 x) { return bit_cast<float>((uint32_t)x.bits << 16); }
inline float to_float(Float16 x) {
#if defined(__AVX2__)
    return _cvtsh_ss(x.bits);
#elif defined(__aarch64__)
    return (float)bit_cast<__fp16>(x.bits);
#else
    return (float)bit_cast<_Float16>(x.bits);
#endif
}

#if defined(__AVX512BF16__)
// Pairs of bfloat16 in the lanes of a register.
using Pairs = __m512bh;

// The products with a pair that all lanes have are added one after the other.
inline Lanes add_products(const Lanes& sum, const Pairs& pairs, int32_t pair) {
    Lanes r;
    r.part[0] = (Floats)_mm512_dpbf16_ps((__m512)sum.part[0], pairs, bit_cast<Pairs>(_mm512_set1_epi32(pair)));
    return r;
}

// Sixteen values from one row and from another, side by side.
inline Pairs load_pairs(const BFloat16* first, const BFloat16* second) {
    const __m512i order = (__m512i)(__attribute__((vector_size(64))) uint16_t){
        0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    return bit_cast<Pairs>(_mm512_permutex2var_epi16(_mm512_castsi256_si512(load_vector<__m256i>(first)), order,
                                                     _mm512_castsi256_si512(load_vector<__m256i>(second))));
}
#endif

inline float sum(const Lanes& x) {
    float lanes[kLanes];
    store(lanes, x);
    // In pairs, the same for every width of registers.
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return lanes[0];
}
struct Add {
    Floats operator()(Floats a, Floats b) const { return a + b; }
};
struct Largest {
    Floats operator()(Floats a, Floats b) const { return a > b ? a : b; }
};

struct LargestSize {
    Floats operator()(Floats a, Floats b) const { return max_size(a, b); }
};

// Neighbouring groups of kGroup numbers of a, then of b, reduced by half: each number and the one half a group further
// on.
template <class Reduce, int kGroup, int... kIndex>
inline Floats reduce_halves(Floats a, Floats b, std::integer_sequence<int, kIndex...>) {
    constexpr int kHalf = kGroup / 2;
#if defined(__clang__)
    return Reduce{}(__builtin_shufflevector(a, b, (kIndex / kHalf * kGroup + kIndex % kHalf)...),
                    __builtin_shufflevector(a, b, (kIndex / kHalf * kGroup + kIndex % kHalf + kHalf)...));
#else  // GCC has the other name since version 12 only
    return Reduce{}(__builtin_shuffle(a, b, Ints{(kIndex / kHalf * kGroup + kIndex % kHalf)...}),
                    __builtin_shuffle(a, b, Ints{(kIndex / kHalf * kGroup + kIndex % kHalf + kHalf)...}));
#endif
}

// Reduces kCount registers, of groups of kGroup numbers, to registers of single ones.
template <class Reduce, int kGroup, int kCount>
inline void reduce_groups(Floats (&x)[kLanes]) {
    if constexpr (kGroup > 1) {
        OCTAVO_UNROLL for (int i = 0; i < kCount / 2; ++i)
            x[i] = reduce_halves<Reduce, kGroup>(x[2 * i], x[2 * i + 1], std::make_integer_sequence<int, kWidth>{});
        reduce_groups<Reduce, kGroup / 2, kCount / 2>(x);
    }
}

// Sixteen at once, each with the bits of sum() or largest().
template <class Reduce>
inline Lanes reduce(const Lanes (&x)[kLanes]) {
    constexpr Reduce both;
    Floats parts[kLanes];
    OCTAVO_UNROLL for (int i = 0; i < kLanes; ++i) {
        if constexpr (kParts == 1) parts[i] = x[i].part[0];
        if constexpr (kParts == 2) parts[i] = both(x[i].part[0], x[i].part[1]);
        if constexpr (kParts == 4) parts[i] = both(both(x[i].part[0], x[i].part[2]), both(x[i].part[1], x[i].part[3]));
    }
    reduce_groups<Reduce, kWidth, kLanes>(parts);
    Lanes r;
    OCTAVO_EACH_PART r.part[i] = parts[i];
    return r;
}
inline Lanes sums(const Lanes (&x)[kLanes]) { return reduce<Add>(x); }
inline float largest(const Lanes& x) {
    float lanes[kLanes];
    store(lanes, x);
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
    return lanes[0];
}

// e to the x, within 2 units in the last place; 0 below -87.3, and for minus infinity. (Cody and Waite's reduction; the
// polynomial is the Taylor series of 2^f to the sixth power around 0 on [-1/2, 1/2].)
inline Floats exp(Floats x) {
    const Floats log2e = broadcast(1.44269504088896341f);
    const Floats least = broadcast(-87.3f), most = broadcast(88.7f);
    const Floats clamped = x < least ? least : (x > most ? most : x);
    const Floats magic = broadcast(12582912.f);  // 1.5 * 2^23: adding it rounds to the nearest integer
    const Floats n = fma(clamped, log2e, magic) - magic;
    Floats f = fma(n, broadcast(-0.693359375f), clamped);
    f = fma(n, broadcast(2.12194440e-4f), f);
    Floats p = broadcast(1.f / 5040);
    p = fma(p, f, broadcast(1.f / 720));
    p = fma(p, f, broadcast(1.f / 120));
    p = fma(p, f, broadcast(1.f / 24));
    p = fma(p, f, broadcast(1.f / 6));
    p = fma(p, f, broadcast(0.5f));
    p = fma(p, f, broadcast(1.f));
    p = fma(p, f, broadcast(1.f));
    const Ints exponent = (__builtin_convertvector(n, Ints) + 127) << 23;
    const Floats r = p * bit_cast<Floats>(exponent);
    return x < least ? broadcast(0.f) : (x == x ? r : x);
}
inline Lanes exp(const Lanes& x) {
    Lanes r;
    OCTAVO_EACH_PART r.part[i] = exp(x.part[i]);
    return r;
}
inline float exp_of(float x) {
    float lanes[kLanes];
    store(lanes, exp(splat(x)));
    return lanes[0];
}
inline Lanes tanh(const Lanes& x) {
    // 1 - 2 / (e^2x + 1): exact at both ends, since e^2x becomes 0 or infinity.
    const Lanes one = splat(1.f), two = splat(2.f);
    return one - two / (exp(two * x) + one);
}

template <int kRows, int kColumns>
inline void clear(Lanes (&sums)[kRows][kColumns]) {
    for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < kColumns; ++c) sums[r][c] = splat(0.f);
}

template <int kRows, int kColumns>
inline void keep(const Lanes (&from)[kRows][kColumns], Lanes (&to)[kRows][kColumns]) {
    for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < kColumns; ++c) to[r][c] = from[r][c];
}

}  // namespace octavo
