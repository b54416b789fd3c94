#include "head_linear.h"

#include <vector>

namespace octavo {

void HeadLinear::run(int64_t chunk) const {
    const int64_t part = chunk % chunks_per_block(), block = chunk / chunks_per_block();
    const int64_t head = block / num_row_blocks(), first_row = block % num_row_blocks() * kRows;
    const Staging staging = staging_of(weight_type);
    Gemm gemm{};
    gemm.weights = weights + head * weight_bytes;
    gemm.x = x + head * x_head + first_row * x_stride;
    gemm.x_stride = x_stride;
    gemm.y_stride = y_stride;
    gemm.y = y + head * y_head + first_row * y_stride * (y_type == kFloat32 ? 4 : 2);
    gemm.panel_bytes = packed_bytes(weight_type, kLanes, num_inputs);
    gemm.num_rows = (int32_t)std::min<int64_t>(kRows, num_rows - first_row);
    gemm.num_outputs = num_outputs;
    gemm.num_inputs = num_inputs;
    gemm.wide_rows = staging.rows.wide;
    gemm.run_block = find_run_block(weight_type);
    gemm.store_tile = find_store_tile(y_type);
    thread_local std::vector<unsigned char> staged;
    stage_rows(gemm, staging, x_type, staged);
    const int64_t first = part * units_per_chunk();
    gemm.run_block(gemm, first, std::min(first + units_per_chunk(), num_units()), 0, gemm.num_rows);
    release_tiles();
}

}  // namespace octavo
