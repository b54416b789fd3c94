#include "rows.h"

#include <algorithm>

#include "gemm.h"

namespace octavo {
namespace {

template <class T>
void add_row(const T* x, const T* y, T* to, int64_t size) {
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store(to + i, load(x + i) + load(y + i));
    if (i < size) store_some(to + i, load_some(x + i, size - i) + load_some(y + i, size - i), size - i);
}

template <class T, class W>
void norm_rows(const RmsNorm& norm, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
        const T* x = static_cast<const T*>(norm.x) + row * norm.size;
        if (norm.residual != nullptr) {
            T* residual = static_cast<T*>(norm.residual) + row * norm.size;
            add_row(residual, x, residual, norm.size);
            x = residual;
        }
        rms_norm_row(x, static_cast<T*>(norm.to) + row * norm.size, static_cast<const W*>(norm.weight), norm.size,
                     norm.eps);
    }
}

template <class T>
void gate_rows(const Gate& gate, int64_t first, int64_t last) {
    const auto activation = static_cast<Activation>(gate.activation);
    for (int64_t row = first; row < last; ++row) {
        const T* x = static_cast<const T*>(gate.x) + row * 2 * gate.size;
        T* to = static_cast<T*>(gate.to) + row * gate.size;
        int64_t i = 0;
        for (; i + kLanes <= gate.size; i += kLanes)
            store(to + i, apply_gate(activation, load(x + i)) * load(x + gate.size + i));
        if (const int64_t left = gate.size - i; left > 0)
            store_some(to + i, apply_gate(activation, load_some(x + i, left)) * load_some(x + gate.size + i, left),
                       left);
    }
}

}  // namespace

void RmsNorm::run(int64_t chunk) const {
    const int64_t first = chunk * kRowsPerChunk, last = std::min(first + kRowsPerChunk, num_rows);
    by_type(type, [&](auto x_value) {
        by_type(weight_type, [&](auto weight_value) {
            norm_rows<decltype(x_value), decltype(weight_value)>(*this, first, last);
        });
    });
}

void Gate::run(int64_t chunk) const {
    const int64_t first = chunk * kRowsPerChunk, last = std::min(first + kRowsPerChunk, num_rows);
    if (type == kFloat32)
        gate_rows<float>(*this, first, last);
    else
        type == kBFloat16 ? gate_rows<BFloat16>(*this, first, last) : gate_rows<Float16>(*this, first, last);
}

void AddValues::run(int64_t chunk) const {
    const int64_t first = chunk * kChunk, size = std::min(kChunk, count - first);
    by_type(type, [&](auto value) {
        using T = decltype(value);
        add_row(static_cast<const T*>(x) + first, static_cast<const T*>(y) + first, static_cast<T*>(to) + first, size);
    });
}

void Gather::run(int64_t chunk) const {
    for (int64_t row = chunk * 64; row < std::min(chunk * 64 + 64, num_rows); ++row)
        std::memcpy(to + row * row_bytes, table + index[row] * row_bytes, row_bytes);
}

}  // namespace octavo
