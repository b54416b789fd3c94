#include "experts.h"

#include <algorithm>
#include <vector>

#include "block_pack.h"
#include "linear.h"

namespace octavo {
namespace {

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
int64_t size_of(Type type) { return type == kFloat32 ? 4 : 2; }
int64_t padded(int64_t size) { return round_up(size, kLanes); }

// The order of the pairs, and what is computed between the operations.
struct Workspace {
    int32_t* most;         // pairs of the expert that has most
    int32_t* num_active;   // experts with pairs
    int32_t* active;       // [num_active], their numbers
    int32_t* starts;       // [num_active + 1], the places of their pairs
    int32_t* tile_starts;  // [num_active + 1], of tiles of staged rows
    int32_t* chunk_starts; // [num_active + 1], of chunks of a GEMM
    int32_t* counts;       // [num_experts], and where an expert's next pair goes
    int32_t* pairs;        // [num_pairs], token · num_chosen + place of choice, by their places
    int32_t* places;       // [num_pairs], the inverse
    unsigned char* inner;  // [num_pairs, size] of x's type
    float* results;        // [num_pairs, hidden_size]
    int64_t num_bytes;

    Workspace(const ExpertLayer& layer) {
        const int64_t pairs_total = layer.num_pairs(), experts = std::min<int64_t>(layer.num_experts, pairs_total) + 1;
        auto* next = reinterpret_cast<int32_t*>(layer.workspace);
        const auto take = [&](int64_t count) {
            int32_t* from = next;
            next += count;
            return from;
        };
        most = take(1), num_active = take(1);
        active = take(experts), starts = take(experts), tile_starts = take(experts), chunk_starts = take(experts);
        counts = take(layer.num_experts);
        pairs = take(pairs_total), places = take(pairs_total);
        const int64_t num_integers = next - reinterpret_cast<int32_t*>(layer.workspace);
        const int64_t inner_start = round_up(num_integers * (int64_t)sizeof(int32_t), 64);
        inner = layer.workspace + inner_start;
        const int64_t results_start = inner_start + round_up(pairs_total * layer.size * size_of(layer.type), 64);
        results = reinterpret_cast<float*>(layer.workspace + results_start);
        num_bytes = results_start + pairs_total * layer.hidden_size * (int64_t)sizeof(float);
    }

    // Which expert has the item of a list, of which each has consecutive ones.
    int64_t find(const int32_t* item_starts, int64_t item) const {
        return std::upper_bound(item_starts, item_starts + *num_active + 1, (int32_t)item) - item_starts - 1;
    }
};

// How a weight's GEMM reads x.
struct Format {
    TileRows rows;
    int64_t row_bytes, panel_bytes;
    decltype(Gemm::run_block) run_block;
    bool reads_single_rows;  // where they are, since one row is a tile as it is

    Format(Type weight, Type x, int64_t num_inputs) {
        if (weight >= kFirstBlock) {
            const int32_t block = weight - kFirstBlock;
            rows = kBlockTileRows;
            row_bytes = x_row_bytes(num_inputs);
            panel_bytes = kSpecs[block].panel_bytes(num_inputs);
            run_block = find_run_block_of(block);
            reads_single_rows = false;
        } else {
            const Staging staging = staging_of(weight);
            rows = staging.rows;
            row_bytes = Stage{nullptr, 0, num_inputs, 0, 1, staging.unit, x, staging.type}.row_bytes();
            panel_bytes = packed_bytes(weight, kLanes, num_inputs);
            run_block = find_run_block(weight);
            reads_single_rows = x == staging.type && num_inputs % staging.unit == 0;
        }
    }
};

// One of the two GEMMs of a layer.
struct Multiplication {
    const ExpertLayer& layer;
    const ExpertWeights& weights;
    int64_t num_inputs;
    Workspace workspace;
    Format format;

    Multiplication(const ExpertLayer& layer, bool is_first)
        : layer(layer),
          weights(is_first ? layer.gate_up : layer.down),
          num_inputs(is_first ? layer.hidden_size : layer.size),
          workspace(layer),
          format(weights.type, layer.type, num_inputs) {}

    int64_t count_of(int64_t index) const { return workspace.starts[index + 1] - workspace.starts[index]; }
    int64_t token_of(int64_t place) const { return workspace.pairs[place] / layer.num_chosen; }
    bool has_single_rows() const { return *workspace.most == 1; }
    // Whether each row is read where it is.
    bool reads_rows() const { return has_single_rows() && format.reads_single_rows; }
};

// Whether the first GEMM's tiles are tokens: experts with a single row each share them.
bool shares_tokens(const Multiplication& gemm) { return gemm.has_single_rows() && !gemm.layer.weighs_inputs; }

// Orders the pairs by their experts; those of an expert stay in order.
void order(const ExpertLayer& layer) {
    const Workspace work(layer);
    const int64_t num_pairs = layer.num_pairs();
    std::fill_n(work.counts, layer.num_experts, 0);
    for (int64_t pair = 0; pair < num_pairs; ++pair) ++work.counts[layer.chosen[pair]];
    *work.most = 0;
    int32_t num_active = 0, start = 0;
    for (int32_t expert = 0; expert < layer.num_experts; ++expert) {
        const int32_t count = work.counts[expert];
        work.counts[expert] = start;
        if (count == 0) continue;
        *work.most = std::max(*work.most, count);
        work.active[num_active] = expert;
        work.starts[num_active++] = start;
        start += count;
    }
    work.starts[num_active] = start;
    *work.num_active = num_active;
    for (int64_t pair = 0; pair < num_pairs; ++pair) {
        const int32_t place = work.counts[layer.chosen[pair]]++;
        work.pairs[place] = (int32_t)pair;
        work.places[pair] = place;
    }
}

// Stages a tile of consecutive rows, `first` rows into the scratch memory.
void stage(const Multiplication& gemm, const unsigned char* x, int64_t stride, int64_t num_rows, int64_t tile,
           int64_t first) {
    const int32_t tile_rows = gemm.format.rows.of(num_rows);
    const Type weight = gemm.weights.type, type = gemm.layer.type;
    if (weight >= kFirstBlock) {
        const BlockSpec& spec = kSpecs[weight - kFirstBlock];
        StageBlocks{x, num_rows, gemm.num_inputs, stride, tile_rows, type, spec.group, zero_of(spec), first}.run(tile);
    } else {
        const Staging staging = staging_of(weight);
        Stage{x, num_rows, gemm.num_inputs, stride, tile_rows, staging.unit, type, staging.type, first}.run(tile);
    }
}

// Copies a row; times the pair's share if that is wanted.
void gather(const ExpertLayer& layer, int64_t pair, unsigned char* to) {
    const unsigned char* from = layer.x + pair / layer.num_chosen * layer.x_stride;
    if (!layer.weighs_inputs) {
        std::memcpy(to, from, layer.hidden_size * size_of(layer.type));
        return;
    }
    by_type(layer.type, [&](auto value) {
        using T = decltype(value);
        const T* x = reinterpret_cast<const T*>(from);
        const Lanes share = splat(layer.shares[pair]);
        for (int64_t i = 0; i < layer.hidden_size; i += kLanes) {
            const int64_t count = std::min<int64_t>(kLanes, layer.hidden_size - i);
            store_some(reinterpret_cast<T*>(to) + i, load_some(x + i, count) * share, count);
        }
    });
}

struct ExpertGemm : Gemm {
    const ExpertLayer* layer;
};

Lanes at_most(const Lanes& x, float limit) {  // NaN stays
    const Lanes zero = splat(0.f);
    return zero - max(splat(-limit), zero - x);
}

Lanes activate(const ExpertLayer& layer, Lanes gate, Lanes up) {
    if (layer.activation == kGateSilu) return apply_gate(kSilu, gate) * up;
    if (layer.activation == kGateGeluTanh) return apply_gate(kGeluTanh, gate) * up;
    const Lanes one = splat(1.f), zero = splat(0.f);
    up = max(splat(-layer.limit), at_most(up, layer.limit));
    if (layer.activation == kGateSwigluStep) return at_most(apply_gate(kSilu, gate), layer.limit) * up;
    gate = at_most(gate, layer.limit);
    if (layer.activation == kGateClampedSilu) return apply_gate(kSilu, gate) * up;
    return gate / (one + exp(zero - splat(layer.alpha) * gate)) * (up + one);
}

// Some of an expert's biases.
template <class T>
Lanes bias_of(const Gemm& gemm, int64_t first, int64_t count) {
    return gemm.bias == nullptr ? splat(0.f) : load_some(static_cast<const T*>(gemm.bias) + first, count);
}

template <class T>
void store_activations(const Gemm& base, const Columns& columns, int64_t first_row, int num_rows, int num_panels,
                       const Lanes* sums) {
    const ExpertLayer& layer = *static_cast<const ExpertGemm&>(base).layer;
    for (int p = 0; p + 1 < num_panels; p += 2) {
        if (!columns.is_inside[p + 1]) continue;
        const int64_t first = columns.panel[p] * kLanes, count = std::min<int64_t>(kLanes, layer.size - first);
        const Lanes gate_bias = bias_of<T>(base, first, count), up_bias = bias_of<T>(base, layer.size + first, count);
        for (int r = 0; r < num_rows; ++r) {
            T* to = static_cast<T*>(base.y) + (first_row + r) * base.y_stride + first;
            const Lanes* row = sums + r * num_panels + p;
            const Lanes inner = activate(layer, row[0] + gate_bias, row[1] + up_bias);
            if (count == kLanes)
                store(to, inner);
            else
                store_some(to, inner, count);
        }
    }
}

template <class T>
void store_results(const Gemm& gemm, const Columns& columns, int64_t first_row, int num_rows, int num_panels,
                   const Lanes* sums) {
    for (int p = 0; p < num_panels; ++p) {
        if (!columns.is_inside[p]) continue;
        const int64_t first = columns.panel[p] * kLanes, count = std::min<int64_t>(kLanes, gemm.num_outputs - first);
        const Lanes bias = bias_of<T>(gemm, first, count);
        for (int r = 0; r < num_rows; ++r) {
            float* to = static_cast<float*>(gemm.y) + (first_row + r) * gemm.y_stride + first;
            const Lanes result = sums[r * num_panels + p] + bias;
            if (count == kLanes)
                store(to, result);
            else
                store_some(to, result, count);
        }
    }
}

// An expert's GEMM, over all of its rows.
ExpertGemm gemm_of(const Multiplication& own, bool is_first, int64_t index) {
    const ExpertLayer& layer = own.layer;
    const Workspace& work = own.workspace;
    const int64_t start = work.starts[index], expert = work.active[index];
    const int64_t num_outputs = is_first ? 2 * layer.size : layer.hidden_size;
    ExpertGemm gemm{};
    gemm.layer = &layer;
    gemm.weights = own.weights.packed + expert * own.weights.expert_bytes;
    if (own.weights.bias != nullptr)
        gemm.bias = static_cast<const unsigned char*>(own.weights.bias) + expert * num_outputs * size_of(layer.type);
    gemm.x_stride = own.format.row_bytes;
    const int64_t row = is_first && shares_tokens(own) ? own.token_of(start) : start;
    gemm.x = scratch() + row * gemm.x_stride;
    gemm.is_staged = true;
    if (own.reads_rows() && !is_first) gemm.x = work.inner + start * layer.size * size_of(layer.type);
    if (own.reads_rows() && is_first && shares_tokens(own)) gemm.x = layer.x + row * layer.x_stride;
    gemm.panel_bytes = own.format.panel_bytes;
    gemm.num_rows = (int32_t)own.count_of(index);
    gemm.num_inputs = (int32_t)own.num_inputs;
    gemm.wide_rows = own.format.rows.wide;
    gemm.run_block = own.format.run_block;
    if (is_first) {
        gemm.y = work.inner + start * layer.size * size_of(layer.type);
        gemm.y_stride = layer.size;
        gemm.num_outputs = (int32_t)(2 * padded(layer.size));
        gemm.gate = kSilu;  // any: panels go in pairs, and store_activations() knows the activation
        by_type(layer.type, [&](auto value) { gemm.store_tile = store_activations<decltype(value)>; });
    } else {
        gemm.y = work.results + start * layer.hidden_size;
        gemm.y_stride = layer.hidden_size;
        gemm.num_outputs = layer.hidden_size;
        by_type(layer.type, [&](auto value) { gemm.store_tile = store_results<decltype(value)>; });
    }
    return gemm;
}

// Units of a chunk, such that all experts together have enough chunks for all threads.
int64_t units_per_chunk(const Multiplication& own, const Gemm& gemm) {
    const int64_t total = *own.workspace.num_active * gemm.num_units();
    const int64_t least = gemm.num_rows <= gemm.wide_rows ? 2 : 1;  // what a tile of few rows has
    return std::clamp<int64_t>(total / (8 * num_threads()), least, 16);
}

}  // namespace

int64_t experts_workspace_bytes(const ExpertLayer& layer) { return Workspace(layer).num_bytes; }

template <bool kIsFirst>
int64_t StageExperts<kIsFirst>::count_chunks() const {
    if (layer.num_tokens == 0) return 0;
    if (kIsFirst) order(layer);
    const Multiplication own(layer, kIsFirst);
    const bool is_shared = kIsFirst && shares_tokens(own);
    if (own.reads_rows() && (is_shared || !kIsFirst)) return 0;
    reserve_scratch((is_shared ? layer.num_tokens : layer.num_pairs()) * own.format.row_bytes);
    if (is_shared) return layer.num_tokens;
    int32_t* tile_starts = own.workspace.tile_starts;
    tile_starts[0] = 0;
    for (int64_t i = 0; i < *own.workspace.num_active; ++i) {
        const int64_t count = own.count_of(i), tile_rows = own.format.rows.of(count);
        tile_starts[i + 1] = tile_starts[i] + (int32_t)((count + tile_rows - 1) / tile_rows);
    }
    return tile_starts[*own.workspace.num_active];
}

template <bool kIsFirst>
void StageExperts<kIsFirst>::run(int64_t tile) const {
    const Multiplication own(layer, kIsFirst);
    const Workspace& work = own.workspace;
    if (kIsFirst && shares_tokens(own)) {
        stage(own, layer.x + tile * layer.x_stride, layer.x_stride, 1, 0, tile);
        return;
    }
    const int64_t index = work.find(work.tile_starts, tile), start = work.starts[index], count = own.count_of(index);
    const int64_t row_bytes = own.num_inputs * size_of(layer.type), own_tile = tile - work.tile_starts[index];
    if (!kIsFirst) {
        stage(own, work.inner + start * row_bytes, row_bytes, count, own_tile, start);
        return;
    }
    thread_local std::vector<unsigned char> rows;
    const int64_t tile_rows = own.format.rows.of(count), first = own_tile * tile_rows;
    const int64_t num_rows = std::min(tile_rows, count - first);
    rows.resize(num_rows * row_bytes);
    for (int64_t r = 0; r < num_rows; ++r) gather(layer, work.pairs[start + first + r], &rows[r * row_bytes]);
    // The tile's first row is where the others of the expert would lie before it.
    stage(own, rows.data() - first * row_bytes, row_bytes, count, own_tile, start);
}

template <bool kIsFirst>
int64_t MultiplyExperts<kIsFirst>::count_chunks() const {
    if (layer.num_tokens == 0) return 0;
    const Multiplication own(layer, kIsFirst);
    int32_t* chunk_starts = own.workspace.chunk_starts;
    chunk_starts[0] = 0;
    for (int64_t i = 0; i < *own.workspace.num_active; ++i) {
        const ExpertGemm gemm = gemm_of(own, kIsFirst, i);
        const int64_t per_chunk = units_per_chunk(own, gemm);
        const int64_t chunks = (gemm.num_units() + per_chunk - 1) / per_chunk * gemm.num_row_blocks();
        chunk_starts[i + 1] = chunk_starts[i] + (int32_t)chunks;
    }
    return chunk_starts[*own.workspace.num_active];
}

template <bool kIsFirst>
void MultiplyExperts<kIsFirst>::run(int64_t chunk) const {
    const Multiplication own(layer, kIsFirst);
    const int64_t index = own.workspace.find(own.workspace.chunk_starts, chunk);
    const ExpertGemm gemm = gemm_of(own, kIsFirst, index);
    const int64_t per_chunk = units_per_chunk(own, gemm), num_units = gemm.num_units();
    const int64_t chunks_per_block = (num_units + per_chunk - 1) / per_chunk;
    chunk -= own.workspace.chunk_starts[index];
    const int64_t first_unit = chunk % chunks_per_block * per_chunk;
    const int64_t first_row = chunk / chunks_per_block * gemm.rows_per_block();
    gemm.run_block(gemm, first_unit, std::min(first_unit + per_chunk, num_units), first_row,
                   std::min<int64_t>(first_row + gemm.rows_per_block(), gemm.num_rows));
    release_tiles();
}

void AddExperts::run(int64_t chunk) const {
    const Workspace work(layer);
    const int64_t size = layer.hidden_size, last = std::min<int64_t>((chunk + 1) * kTokens, layer.num_tokens);
    by_type(layer.type, [&](auto value) {
        using T = decltype(value);
        for (int64_t token = chunk * kTokens; token < last; ++token) {
            const int32_t* places = work.places + token * layer.num_chosen;
            T* to = static_cast<T*>(layer.y) + token * size;
            for (int64_t i = 0; i < size; i += kLanes) {
                const int64_t count = std::min<int64_t>(kLanes, size - i);
                Lanes total = splat(0.f);
                for (int64_t k = 0; k < layer.num_chosen; ++k) {
                    const float* from = work.results + places[k] * size + i;
                    const float share = layer.weighs_inputs ? 1.f : layer.shares[token * layer.num_chosen + k];
                    total = fma(count == kLanes ? load(from) : load_some(from, count), splat(share), total);
                }
                if (count == kLanes)
                    store(to + i, total);
                else
                    store_some(to + i, total, count);
            }
        }
    });
}

void make_expert_operations(const ExpertLayer& layer, Operation* operations) {
    operations[0] = make_operation(StageExperts<true>{layer});
    operations[1] = make_operation(MultiplyExperts<true>{layer});
    operations[2] = make_operation(StageExperts<false>{layer});
    operations[3] = make_operation(MultiplyExperts<false>{layer});
    operations[4] = make_operation(AddExperts{layer});
}

}  // namespace octavo
