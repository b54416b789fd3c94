#include "linear.h"

namespace octavo {
namespace {

int64_t panel_bytes(Type type, int64_t num_inputs) {
    if (type == kFloat32) return ValueFormat<float>::panel_bytes(num_inputs);
    return type == kFloat16 ? ValueFormat<Float16>::panel_bytes(num_inputs) : PairFormat::panel_bytes(num_inputs);
}

// Where a weight is in its panel, in elements.
int64_t place(Type type, int64_t lane, int64_t input) {
    return type == kBFloat16 ? (input / 2 * kLanes + lane) * 2 + input % 2 : input * kLanes + lane;
}

// Inputs that lie side by side for each output are copied together.
template <class T, int kTogether>
void pack_panel(const Pack& pack, int64_t panel) {
    const int64_t width = panel_bytes(pack.type, pack.num_inputs) / (kLanes * (int64_t)sizeof(T));
    thread_local std::vector<T> packed;
    packed.assign(kLanes * width, T{});
    const T* rows = reinterpret_cast<const T*>(pack.from);
    for (int64_t lane = 0; lane < kLanes && panel * kLanes + lane < pack.num_outputs; ++lane) {
        const T* row = rows + (panel * kLanes + lane) * pack.num_inputs;
        int64_t k = 0;
        for (; k + kTogether <= pack.num_inputs; k += kTogether)
            std::memcpy(&packed[place(pack.type, lane, k)], row + k, kTogether * sizeof(T));
        for (; k < pack.num_inputs; ++k) packed[place(pack.type, lane, k)] = row[k];
    }
    std::memcpy(reinterpret_cast<T*>(pack.to) + panel * kLanes * width, packed.data(), packed.size() * sizeof(T));
}

template <class T>
void gather_row(const GatherPacked& gather, int64_t row) {
    const int64_t output = gather.index[row];
    const int64_t bytes = panel_bytes(gather.type, gather.num_inputs);
    const T* panel = reinterpret_cast<const T*>(gather.weights + output / kLanes * bytes);
    T* to = reinterpret_cast<T*>(gather.to) + row * gather.num_inputs;
    for (int64_t k = 0; k < gather.num_inputs; ++k) to[k] = panel[place(gather.type, output % kLanes, k)];
}

// Some inputs of all rows are read before they are written, so that both go through memory in its order. Those behind the
// last are zeros.
template <class From, class To, int kInputs>
void stage_tile(const Stage& stage, int64_t first_row) {
    constexpr int kAtOnce = std::max(kInputs, kLanes);
    const int64_t rows = std::min<int64_t>(stage.tile_rows, stage.num_rows - first_row);
    const int64_t num_inputs = (stage.num_inputs + kInputs - 1) / kInputs * kInputs;
    unsigned char* rows_to = stage.to == nullptr ? scratch() : stage.to;
    To* to = reinterpret_cast<To*>(rows_to + (stage.first + first_row) * stage.row_bytes());
    To values[PairFormat::kTallRows > kMaxTallRows ? PairFormat::kTallRows : kMaxTallRows][kAtOnce];
    for (int64_t start = 0; start < num_inputs; start += kAtOnce) {
        for (int64_t r = 0; r < rows; ++r) {
            const From* from = reinterpret_cast<const From*>(stage.x + (first_row + r) * stage.x_stride) + start;
            for (int64_t i = 0; i < kAtOnce; i += kLanes) {
                const int64_t count = std::clamp<int64_t>(stage.num_inputs - start - i, 0, kLanes);
                if (count < kLanes) std::memset(&values[r][i], 0, kLanes * sizeof(To));
                if constexpr (std::is_same_v<From, To>)
                    std::memcpy(&values[r][i], from + i, count * sizeof(To));
                else
                    store(&values[r][i], count == kLanes ? load(from + i) : load_some(from + i, count));
            }
        }
        for (int64_t i = 0; i < std::min<int64_t>(kAtOnce, num_inputs - start); i += kInputs)
            for (int64_t r = 0; r < rows; ++r, to += kInputs) std::memcpy(to, &values[r][i], kInputs * sizeof(To));
    }
}

}  // namespace

int64_t packed_bytes(Type type, int64_t num_outputs, int64_t num_inputs) {
    return (num_outputs + kLanes - 1) / kLanes * panel_bytes(type, num_inputs);
}

void Pack::run(int64_t panel) const {
    if (type == kFloat32)
        pack_panel<uint32_t, 1>(*this, panel);
    else
        type == kFloat16 ? pack_panel<uint16_t, 1>(*this, panel) : pack_panel<uint16_t, 2>(*this, panel);
}

void GatherPacked::run(int64_t chunk) const {
    for (int64_t row = chunk * 8; row < std::min(chunk * 8 + 8, num_rows); ++row) {
        if (type == kFloat32)
            gather_row<uint32_t>(*this, row);
        else
            gather_row<uint16_t>(*this, row);
    }
}

int64_t Stage::count_chunks() const {
    reserve_scratch(num_rows * row_bytes());
    return num_tiles();
}

void Stage::run(int64_t tile) const {
    const int64_t row = tile * tile_rows;
    by_type(from, [&](auto value) {
        if (into == kBFloat16)
            stage_tile<decltype(value), BFloat16, PairFormat::kUnit>(*this, row);
        else if (unit == 2)
            stage_tile<decltype(value), float, 2>(*this, row);
        else
            stage_tile<decltype(value), float, 1>(*this, row);
    });
}

Staging staging_of(Type weight) {
    const auto of = [](auto format, Type type, bool reads_rows) {
        using Format = decltype(format);
        return Staging{type, Format::kUnit, {Format::kWideRows, Format::kTallRows}, reads_rows};
    };
    if (weight == kFloat32) return of(ValueFormat<float>{}, kFloat32, false);
    if (weight == kFloat16) return of(ValueFormat<Float16>{}, kFloat32, false);
    constexpr bool is_narrow = std::is_same_v<PairFormat::X, BFloat16>;
    return of(PairFormat{}, is_narrow ? kBFloat16 : kFloat32, PairFormat::kTallInTiles);
}

void stage_rows(Gemm& gemm, const Staging& staging, Type type, std::vector<unsigned char>& memory) {
    if (!staging.is_needed(type, gemm.num_rows, gemm.num_inputs)) return;
    Stage stage{gemm.x, gemm.num_rows, gemm.num_inputs, gemm.x_stride, staging.rows.of(gemm.num_rows),
                staging.unit, type, staging.type};
    memory.resize(gemm.num_rows * stage.row_bytes());
    stage.to = memory.data();
    for (int64_t tile = 0; tile < stage.num_tiles(); ++tile) stage.run(tile);
    gemm.x = memory.data();
    gemm.x_stride = stage.row_bytes();
    gemm.is_staged = true;
}

decltype(Gemm::run_block) find_run_block(Type weight) {
    if (weight == kFloat32) return run_block<ValueFormat<float>>;
    return weight == kFloat16 ? run_block<ValueFormat<Float16>> : run_block<PairFormat>;
}

decltype(Gemm::store_tile) find_store_tile(Type y) {
    if (y == kFloat32) return store_tile<float>;
    return y == kBFloat16 ? store_tile<BFloat16> : store_tile<Float16>;
}

}  // namespace octavo
