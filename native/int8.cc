#include "int8.h"

#include <algorithm>

namespace octavo {
namespace {

// The scale of a row, NaN if it has an infinity or a NaN.
template <class T>
float scale_of(const T* x, int64_t size) {
    Lanes most = splat(0.f);
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) most = max_size(most, abs(load(x + i)));
    if (i < size) most = max_size(most, abs(load_some(x + i, size - i)));
    if (bits_above(most, std::numeric_limits<float>::max()) != 0) return std::numeric_limits<float>::quiet_NaN();
    return std::max(largest(most) / 127.f, 1e-12f);
}

template <class T>
void stage_row(const T* x, int64_t size, int64_t r, int64_t rows, int32_t* codes) {
    const int64_t quads = int8_quads(size);
    const float scale = scale_of(x, size);
    const bool is_finite = scale == scale;
    const Lanes divisor = splat(scale), magic = splat(12582912.f);  // adding 1.5 * 2^23 rounds to the nearest integer
    Lanes total = splat(0.f);
    for (int64_t i = 0; i < size; i += kLanes) {
        const int64_t count = std::min<int64_t>(kLanes, size - i);
        Lanes rounded = splat(0.f);
        if (is_finite) rounded = ((count == kLanes ? load(x + i) : load_some(x + i, count)) / divisor + magic) - magic;
        total = total + rounded;
        int8_t bytes[kLanes];
        put_bytes(rounded, bytes);
        for (int64_t k = i / 4; k < std::min(i / 4 + kLanes / 4, quads); ++k)
            std::memcpy(codes + k * rows + r, bytes + (k * 4 - i), 4);
    }
    codes[quads * rows + r] = -kInt8Zero * (int32_t)sum(total);
    reinterpret_cast<float*>(codes)[(quads + 1) * rows + r] = scale;
}

}  // namespace

void PackInt8::run(int64_t panel) const {
    const int64_t bytes = int8_panel_bytes(num_inputs), quads = int8_quads(num_inputs);
    unsigned char* packed = to + panel * bytes;
    float* factors = reinterpret_cast<float*>(packed + quads * kCodeBytes);
    std::fill_n(packed, quads * kCodeBytes, (unsigned char)128);
    std::fill_n(factors, kLanes, 0.f);
    for (int64_t lane = 0; lane < kLanes && panel * kLanes + lane < num_outputs; ++lane) {
        const int8_t* row = from + (panel * kLanes + lane) * num_inputs;
        for (int64_t k = 0; k < num_inputs; ++k)
            packed[k / 4 * kCodeBytes + lane * 4 + k % 4] = (unsigned char)(row[k] + 128);
        factors[lane] = scales[panel * kLanes + lane];
    }
}

void StageInt8::run(int64_t tile) const {
    const int64_t first = tile * tile_rows, rows = std::min<int64_t>(tile_rows, num_rows - first);
    auto* codes = reinterpret_cast<int32_t*>(scratch() + first * int8_row_bytes(num_inputs));
    by_type(type, [&](auto value) {
        using T = decltype(value);
        for (int64_t r = 0; r < rows; ++r)
            stage_row(reinterpret_cast<const T*>(x + (first + r) * x_stride), num_inputs, r, rows, codes);
    });
}

decltype(Gemm::run_block) find_run_block_of_int8() { return run_block<Int8Format>; }

}  // namespace octavo
