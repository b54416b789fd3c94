#include "combine.h"

#include <algorithm>

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
    }
}

}  // namespace

void Combine::run(int64_t chunk) const {
    const int64_t piece = chunk % pieces(), row = chunk / pieces() * rows_per_chunk();
    const int64_t first = piece * kChunk, last = std::min(first + kChunk, sizes[3]);
    by_type(type, [&](auto value) {
        using T = decltype(value);
        for (int64_t i = row; i < std::min(row + rows_per_chunk(), num_rows()); ++i) {
            const int64_t place[3] = {i / sizes[2] / sizes[1], i / sizes[2] % sizes[1], i % sizes[2]};
            const auto at = [&](auto* values, const int64_t* strides) {
                return values + place[0] * strides[0] + place[1] * strides[1] + place[2] * strides[2];
            };
            const T* second = static_cast<const T*>(y);
            combine_row<T>(*this, {at(static_cast<const T*>(x), x_strides), x_strides[3]},
                           {second == nullptr ? nullptr : at(second, y_strides), y_strides[3]},
                           {at(static_cast<T*>(to), to_strides), to_strides[3]}, first, last);
        }
    });
}

}  // namespace octavo
