#include "combine.h"

#include <algorithm>
#include <cmath>

namespace octavo {
namespace {

template <class T>
struct Values {
    T* first;
    int64_t stride;
};

template <class T>
inline Lanes load_at(const Values<const T>& from, int64_t i, int64_t count) {
    if (from.stride == 0) return splat(to_float(*from.first));
    const T* start = from.first + i * from.stride;
    if (from.stride == 1) return count == kLanes ? load(start) : load_some(start, count);
    T values[kLanes] = {};
    for (int64_t j = 0; j < count; ++j) values[j] = start[j * from.stride];
    return load(values);
}

template <class T>
inline void store_at(const Values<T>& to, int64_t i, const Lanes& x, int64_t count) {
    T* start = to.first + i * to.stride;
    if (to.stride == 1) return count == kLanes ? store(start, x) : store_some(start, x, count);
    T values[kLanes];
    store(values, x);
    for (int64_t j = 0; j < count; ++j) start[j * to.stride] = values[j];
}

template <class Work>
inline Lanes map(const Lanes& x, const Work& work) {
    float values[kLanes];
    store(values, x);
    for (float& value : values) value = work(value);
    return load(values);
}

inline Lanes sigmoid(const Lanes& x) { return splat(1.f) / (splat(1.f) + exp(splat(0.f) - x)); }

// log(1 + e^x) = max(x, 0) + log(1 + y) with y = e^-|x|. With s = y / (2 + y), log(1 + y) is 2 atanh(s); the series up
// to s^13 is within 1.3e-8 of it, relatively.
inline Lanes softplus(const Lanes& x) {
    const Lanes zero = splat(0.f), y = exp(min(zero - x, x)), s = y / (splat(2.f) + y), square = s * s;
    Lanes series = splat(1.f / 13);
    for (int n = 11; n > 0; n -= 2) series = fma(series, square, splat(1.f / (float)n));
    return fma(s + s, series, max(zero, x));
}

// e^x - 1 - x for x <= 0: the Taylor series near 0, where the difference would lose digits.
inline Lanes exp_above_tangent(const Lanes& x) {
    Lanes series = splat(1.f / 40320);
    for (const float divisor : {5040.f, 720.f, 120.f, 24.f, 6.f, 2.f}) series = fma(series, x, splat(1.f / divisor));
    const Lanes near = series * x * x, far = exp(x) - splat(1.f) - x;
    Lanes r;
    OCTAVO_EACH_PART r.part[i] = x.part[i] > broadcast(-0.5f) ? near.part[i] : far.part[i];
    return r;
}

inline Lanes xielu(const Lanes& x, const float* slopes) {
    const Lanes beta = splat(slopes[2]), least = min(splat(slopes[3]), x);
    const Lanes above = splat(slopes[0]) * x * x;
    const Lanes below = splat(slopes[1]) * (exp_above_tangent(least) + (least - x));
    Lanes r;
    OCTAVO_EACH_PART r.part[i] = x.part[i] > broadcast(0.f) ? above.part[i] : below.part[i];
    return fma(beta, x, r);
}

template <class T, class Work>
void in_lanes(const Combine& of, const Values<const T>& x, const Values<const T>& y, const Values<T>& to, int64_t first,
              int64_t last, const Work& work) {
    const Lanes number = splat(of.number);
    for (int64_t i = first; i < last; i += kLanes) {
        const int64_t count = std::min<int64_t>(kLanes, last - i);
        const Lanes second = y.first == nullptr ? number : load_at(y, i, count);
        store_at(to, i, work(load_at(x, i, count), second), count);
    }
}

template <class T>
void combine_row(const Combine& of, const Values<const T>& x, const Values<const T>& y, const Values<T>& to,
                 int64_t first, int64_t last) {
    const Lanes upper = splat(of.upper), inverse = splat(1.0f / of.number);
    switch (of.kind) {
        case kAdd:
            return in_lanes(of, x, y, to, first, last, [](const Lanes& a, const Lanes& b) { return a + b; });
        case kMultiply:
            return in_lanes(of, x, y, to, first, last, [](const Lanes& a, const Lanes& b) { return a * b; });
        // What is no number stays so.
        case kClamp:
            return in_lanes(of, x, y, to, first, last,
                            [&](const Lanes& a, const Lanes& lower) { return min(upper, max(lower, a)); });
        case kCopy:
            for (int64_t i = first; i < last; ++i) to.first[i * to.stride] = x.first[i * x.stride];
            return;
        case kSoftCap:
            return in_lanes(of, x, y, to, first, last,
                            [&](const Lanes& a, const Lanes& cap) { return cap * tanh(a * inverse); });
        case kSubtract:
            return in_lanes(of, x, y, to, first, last, [](const Lanes& a, const Lanes& b) { return a - b; });
        case kDivide:
            return in_lanes(of, x, y, to, first, last, [](const Lanes& a, const Lanes& b) { return a / b; });
        case kSquareRoot:
            return in_lanes(of, x, y, to, first, last, [](const Lanes& a, const Lanes&) {
                return map(a, [](float value) { return std::sqrt(value); });
            });
        case kLogistic:
            return in_lanes(of, x, y, to, first, last, [](const Lanes& a, const Lanes&) { return sigmoid(a); });
        case kSoftplus:
            return in_lanes(of, x, y, to, first, last, [](const Lanes& a, const Lanes&) { return softplus(a); });
    }
}

// A copy to another type.
template <class From, class To>
void convert_row(const Values<const From>& x, const Values<To>& to, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i += kLanes) {
        const int64_t count = std::min<int64_t>(kLanes, last - i);
        store_at(to, i, load_at(x, i, count), count);
    }
}

}  // namespace

void Combine::run(int64_t chunk) const {
    const int64_t piece = chunk % pieces(), row = chunk / pieces() * rows_per_chunk();
    const int64_t first = piece * kChunk, last = std::min(first + kChunk, sizes[3]);
    const auto at_row = [&](int64_t i, auto* values, const int64_t* strides) {
        return values + i / sizes[2] / sizes[1] * strides[0] + i / sizes[2] % sizes[1] * strides[1] +
               i % sizes[2] * strides[2];
    };
    const int64_t last_row = std::min(row + rows_per_chunk(), num_rows());
    by_type(type, [&](auto value) {
        using T = decltype(value);
        const T *values = static_cast<const T*>(x), *second = static_cast<const T*>(y);
        if (to_type != type)
            return by_type(to_type, [&](auto converted) {
                using To = decltype(converted);
                for (int64_t i = row; i < last_row; ++i)
                    convert_row<T, To>({at_row(i, values, x_strides), x_strides[3]},
                                       {at_row(i, static_cast<To*>(to), to_strides), to_strides[3]}, first, last);
            });
        for (int64_t i = row; i < last_row; ++i)
            combine_row<T>(*this, {at_row(i, values, x_strides), x_strides[3]},
                           {second == nullptr ? nullptr : at_row(i, second, y_strides), y_strides[3]},
                           {at_row(i, static_cast<T*>(to), to_strides), to_strides[3]}, first, last);
    });
}

void Xielu::run(int64_t chunk) const {
    by_type(type, [&](auto value) {
        using T = decltype(value);
        const Values<const T> from{static_cast<const T*>(x), 1};
        const Values<T> results{static_cast<T*>(to), 1};
        const int64_t last = std::min((chunk + 1) * kChunk, size);
        for (int64_t i = chunk * kChunk; i < last; i += kLanes) {
            const int64_t count = std::min<int64_t>(kLanes, last - i);
            store_at(results, i, xielu(load_at(from, i, count), slopes), count);
        }
    });
}

}  // namespace octavo
