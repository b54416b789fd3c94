// Keys and values of 8 bits: what the cache holds, and how vectors are rounded to it. Names and meanings are those of
// octavo/kernels/cache_scales.py, which has the same in PyTorch.
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "blocks.h"
#include "lanes.h"

namespace octavo {

enum CacheType : int32_t { kAsComputed = 0, kE4M3 = 1, kE5M2 = 2, kSignedByte = 3 };

struct E4M3 {
    uint8_t bits;
    static constexpr float kLargest = 448.f;
    static constexpr int kMantissa = 3, kBias = 7;
};
struct E5M2 {
    uint8_t bits;
    static constexpr float kLargest = 57344.f;
    static constexpr int kMantissa = 2, kBias = 15;
};
struct SignedByte {
    uint8_t bits;
    static constexpr float kLargest = 127.f;
};

// Where the factors of a layer's cache are, in float32; strides in elements, 0 where one factor counts for all.
struct CacheFactors {
    float* first;  // null: the cache has values of the computation's type
    int64_t half, block;  // from keys to values, from a block to the next
    int32_t head, token;
    int32_t are_given;  // whether they are read only; others are stored with the tokens
};

// Calls `work` with a value of the cache's type, or of T where that is the type of the computation.
template <class T, class Work>
inline void by_cache_type(CacheType type, const Work& work) {
    switch (type) {
        case kE4M3: return work(E4M3{});
        case kE5M2: return work(E5M2{});
        case kSignedByte: return work(SignedByte{});
        default: return work(T{});
    }
}

inline Halves widen_bytes(const void* from) {
#if defined(__AVX512F__)
    return (Halves)_mm256_cvtepu8_epi16(load_vector<__m128i>(from));
#elif defined(__AVX2__)
    return (Halves)_mm_cvtepu8_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(from)));
#else
    using Bytes = uint8_t __attribute__((vector_size(kWidth)));
    return __builtin_convertvector(load_vector<Bytes>(from), Halves);
#endif
}

// All values are exact in float32, and in bfloat16 as well. Those of e5m2 are the upper halves of float16; those of e4m3
// have the same bits further right and another bias, and no infinity.
inline Lanes load(const E5M2* from) {
    Lanes r;
    OCTAVO_EACH_PART r.part[i] = widen(widen_bytes(from + i * kWidth) << 8, Float16{});
    return r;
}
inline Lanes load(const E4M3* from) {
    const Floats bias = broadcast(256.f), largest = broadcast(E4M3::kLargest), least = broadcast(-E4M3::kLargest);
    const Floats nan = broadcast(std::numeric_limits<float>::quiet_NaN());
    Lanes r;
    OCTAVO_EACH_PART {
        const Halves bytes = widen_bytes(from + i * kWidth);
        const Floats value = widen(((bytes << 8) & 0x8000) | ((bytes << 7) & 0x3f80), Float16{}) * bias;
        const Floats above = value > largest ? nan : value;
        r.part[i] = value < least ? nan : above;
    }
    return r;
}
inline Lanes load(const SignedByte* from) { return load_bytes<true>(&from->bits); }

template <class C>
constexpr bool kIsQuantized = std::is_same_v<C, E4M3> || std::is_same_v<C, E5M2> || std::is_same_v<C, SignedByte>;

// The scale that makes a vector's largest magnitude the type's; a NaN in it makes the scale one.
template <class C, class T>
inline float vector_scale(const T* x, int64_t size) {
    float largest = 0.f;
    for (int64_t i = 0; i < size; ++i) {
        const float magnitude = std::fabs(to_float(x[i]));
        largest = magnitude > largest || magnitude != magnitude ? magnitude : largest;
    }
    const float scale = largest / C::kLargest;
    return scale < 1e-12f ? 1e-12f : scale;
}

// To the nearest value, ties to even; x is not beyond the largest, or a NaN.
inline uint8_t round_to(float x, SignedByte) { return x == x ? (uint8_t)(int8_t)std::nearbyint(x) : 0; }
template <class C>
inline uint8_t round_to(float x, C) {
    const uint32_t bits = bit_cast<uint32_t>(x), size = bits & 0x7fffffffu;
    const uint8_t sign = (uint8_t)(bits >> 31 << 7);
    if (x != x) return sign | 0x7f;
    constexpr int kShift = 23 - C::kMantissa;
    constexpr uint32_t kFirstNormal = (uint32_t)(128 - C::kBias) << 23;
    if (size < kFirstNormal) {  // adding so much leaves steps of the smallest value
        const float steps = bit_cast<float>((uint32_t)(128 - C::kBias + 23 - C::kMantissa) << 23);
        return sign | (uint8_t)(bit_cast<uint32_t>(bit_cast<float>(size) + steps) - bit_cast<uint32_t>(steps));
    }
    const uint32_t rounded = size + ((1u << (kShift - 1)) - 1) + ((size >> kShift) & 1);
    return sign | (uint8_t)((rounded >> kShift) - ((uint32_t)(127 - C::kBias) << C::kMantissa));
}

// Rounds a vector divided by a scale; its values go `stride` apart.
template <class C, class T>
inline void round_vector(const T* x, int64_t size, float scale, C* to, int64_t stride) {
    for (int64_t i = 0; i < size; ++i) {
        const float wide = to_float(x[i]) / scale;
        const float above = wide < -C::kLargest ? -C::kLargest : wide;
        to[i * stride].bits = round_to(above > C::kLargest ? C::kLargest : above, C{});
    }
}

}  // namespace octavo
