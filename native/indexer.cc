#include "indexer.h"

#include <algorithm>

#include "linear.h"

namespace octavo {
namespace {

constexpr int64_t kUnitTokens = 4;   // tokens that share a tile of staged keys
constexpr int64_t kFewTokens = 16;   // of a step whose keys are divided over threads
constexpr int64_t kTileRowsOfKeys = 192;  // keys that are staged together: a multiple of the rows of all formats' tiles
constexpr int64_t kPartKeys = 4 * kTileRowsOfKeys;  // of a chunk

int64_t num_keys(const AttentionUnit& unit) { return unit.first_position + unit.num_tokens; }

int64_t round_up(int64_t size) { return (size + kLanes - 1) / kLanes * kLanes; }

// Where the scores of a step of few tokens are, and how far apart those of two tokens are.
int64_t score_stride(const AttentionPlan& plan) {
    int64_t longest = 0;
    for (const AttentionUnit& unit : plan.units) longest = std::max(longest, num_keys(unit));
    return round_up(longest);
}

bool are_few(const AttentionPlan& plan) { return plan.num_tokens <= kFewTokens; }

// Adds the part above 0 of a tile's sums, times the heads' weights, to the sixteen parts of its keys' scores. The GEMM's
// bias is the weights, in whole panels.
void add_heads(const Gemm& gemm, const Columns& columns, int64_t first_row, int num_rows, int num_panels,
               const Lanes* sums) {
    const Lanes zero = splat(0.f);
    for (int r = 0; r < num_rows; ++r, sums += num_panels) {
        Lanes& score = static_cast<Lanes*>(gemm.y)[first_row + r];
        for (int p = 0; p < num_panels; ++p)
            if (columns.is_inside[p])
                score = fma(max(zero, sums[p]), load(static_cast<const float*>(gemm.bias) + columns.panel[p] * kLanes),
                            score);
    }
}

// A unit's queries in panels, and keys as tiles read them.
class Scorer {
   public:
    Scorer(const IndexLayer& layer, const AttentionRows& rows, const AttentionUnit& unit)
        : layer_(layer), rows_(rows), unit_(unit), staging_(staging_of(layer.type)) {
        const int64_t panels = (layer.num_heads + kLanes - 1) / kLanes;
        weight_size_ = panels * kLanes;
        query_bytes_ = packed_bytes(layer.type, layer.num_heads, layer.head_dim);
        queries_.resize(unit.num_tokens * query_bytes_);
        weights_.assign(unit.num_tokens * weight_size_, 0.f);
        keys_.resize(kTileRowsOfKeys * layer.key_bytes());
        parts_.resize(kTileRowsOfKeys);
        for (int64_t token = 0; token < unit.num_tokens; ++token) {
            const int64_t of_step = unit.first_token + token;
            const Pack pack{layer.q + of_step * layer.num_heads * layer.key_bytes(), &queries_[token * query_bytes_],
                            layer.num_heads, layer.head_dim, layer.type};
            for (int64_t panel = 0; panel < panels; ++panel) pack.run(panel);
            std::copy_n(layer.weights + of_step * layer.num_heads, layer.num_heads, &weights_[token * weight_size_]);
        }
    }

    // Scores of the keys from `first` on, for all of the unit's tokens, whose scores are `stride` apart. Those of keys
    // behind a token are computed as well.
    void run(int64_t first, int64_t last, float* scores, int64_t stride) {
        for (int64_t start = first; start < last; start += kTileRowsOfKeys)
            tile(start, std::min(kTileRowsOfKeys, last - start), scores, stride);
    }

   private:
    void tile(int64_t start, int64_t count, float* scores, int64_t stride) {
        const int32_t* table = rows_.block_tables + (int64_t)rows_.slots[unit_.row] * rows_.table_stride;
        const int64_t bytes = layer_.key_bytes();
        for (int64_t i = 0; i < count;) {  // keys of a block lie together
            const int64_t block = (start + i) / rows_.block_size, place = (start + i) % rows_.block_size;
            const int64_t together = std::min(count - i, rows_.block_size - place);
            std::memcpy(&keys_[i * bytes], layer_.cache + table[block] * layer_.block_stride + place * bytes,
                        together * bytes);
            i += together;
        }
        Gemm gemm{};
        gemm.x = keys_.data();
        gemm.x_stride = bytes;
        gemm.y = parts_.data();
        gemm.panel_bytes = packed_bytes(layer_.type, kLanes, layer_.head_dim);
        gemm.num_rows = (int32_t)count;
        gemm.num_outputs = layer_.num_heads;
        gemm.num_inputs = layer_.head_dim;
        gemm.wide_rows = staging_.rows.wide;
        gemm.run_block = find_run_block(layer_.type);
        gemm.store_tile = add_heads;
        stage_rows(gemm, staging_, layer_.type, staged_);
        for (int64_t token = 0; token < unit_.num_tokens; ++token) {
            gemm.weights = &queries_[token * query_bytes_];
            gemm.bias = &weights_[token * weight_size_];
            std::fill(parts_.begin(), parts_.end(), splat(0.f));
            gemm.run_block(gemm, 0, gemm.num_units(), 0, count);
            for (int64_t i = 0; i < count; i += kLanes) {
                const Lanes whole = sums(*reinterpret_cast<const Lanes(*)[kLanes]>(&parts_[i]));
                float* to = scores + token * stride + start + i;
                i + kLanes <= count ? store(to, whole) : store_some(to, whole, count - i);
            }
        }
        release_tiles();
    }

    const IndexLayer& layer_;
    const AttentionRows& rows_;
    const AttentionUnit& unit_;
    const Staging staging_;
    int64_t weight_size_, query_bytes_;
    std::vector<unsigned char> queries_, keys_, staged_;
    std::vector<float> weights_;
    std::vector<Lanes> parts_;
};

// Numbers in the order of scores; the highest are of NaN, and both zeros are one.
uint32_t rank_of(float score) {
    if (score != score) return ~0u;
    const uint32_t bits = bit_cast<uint32_t>(score + 0.f);
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// The positions of the `num_chosen` highest scores in rising order; of equal ones the first.
void choose_highest(const float* scores, int64_t count, int64_t num_chosen, int32_t* chosen) {
    thread_local std::vector<uint32_t> ranks;
    ranks.resize(count);
    for (int64_t i = 0; i < count; ++i) ranks[i] = rank_of(scores[i]);
    // The lowest rank that is chosen, some of its bits at a time, from the top: `left` are to be found among those that
    // have its bits so far.
    uint32_t least = 0;
    int64_t left = num_chosen;
    for (int shift : {21, 10, 0}) {
        const int bits = shift == 0 ? 10 : 11;
        const uint32_t known = shift == 21 ? 0u : ~0u << (shift + bits);
        uint32_t counts[1 << 11] = {};
        for (int64_t i = 0; i < count; ++i)
            if ((ranks[i] & known) == least) ++counts[ranks[i] >> shift & ((1u << bits) - 1)];
        uint32_t digit = (1u << bits) - 1;
        for (; counts[digit] < left; --digit) left -= counts[digit];
        least |= digit << shift;
    }
    for (int64_t i = 0; i < count; ++i) {
        if (ranks[i] < least || (ranks[i] == least && left == 0)) continue;
        left -= ranks[i] == least;
        *chosen++ = (int32_t)i;
    }
}

}  // namespace

void PlanIndex::run(int64_t) const {
    plan->units.clear();
    plan->num_tokens = rows.counts[2];
    for (int32_t row = 0; row < rows.counts[0]; ++row) {
        const int32_t start = rows.query_starts[row], stop = rows.query_starts[row + 1];
        for (int32_t token = start; token < stop; token += (int32_t)kUnitTokens) {
            AttentionUnit unit{};
            unit.row = row;
            unit.first_token = token;
            unit.num_tokens = std::min<int32_t>(kUnitTokens, stop - token);
            unit.first_position = rows.seq_lens[row] - (stop - token);
            plan->units.push_back(unit);
        }
    }
}

int64_t ScoreKeys::count_chunks() const {
    if (!are_few(*plan)) return 0;
    const int64_t stride = score_stride(*plan);
    if (stride <= layer.num_chosen) return 0;
    const size_t needed = plan->num_tokens * stride;
    if (plan->partials.size() < needed) plan->partials.resize(needed);
    return (int64_t)plan->units.size() * ((stride + kPartKeys - 1) / kPartKeys);
}

void ScoreKeys::run(int64_t chunk) const {
    const int64_t num_units = (int64_t)plan->units.size(), stride = score_stride(*plan);
    const AttentionUnit& unit = plan->units[chunk % num_units];
    const int64_t first = chunk / num_units * kPartKeys, last = std::min(first + kPartKeys, num_keys(unit));
    if (first >= last || num_keys(unit) <= layer.num_chosen) return;
    Scorer(layer, rows, unit).run(first, last, plan->partials.data() + unit.first_token * stride, stride);
}

void ChooseKeys::run(int64_t chunk) const {
    const int64_t last_unit = (int64_t)plan->units.size() - 1;
    if (chunk > last_unit) {  // padding
        std::fill(layer.chosen + plan->num_tokens * layer.num_chosen,
                  layer.chosen + (int64_t)layer.num_tokens * layer.num_chosen, -1);
        return;
    }
    // Later units have more keys; they go first, so that no thread begins the longest one last.
    const AttentionUnit& unit = plan->units[last_unit - chunk];
    thread_local std::vector<float> own;
    const float* scores = nullptr;
    int64_t stride = 0;
    if (num_keys(unit) > layer.num_chosen) {
        if (are_few(*plan)) {
            stride = score_stride(*plan);
            scores = plan->partials.data() + unit.first_token * stride;
        } else {
            stride = round_up(num_keys(unit));
            own.resize(unit.num_tokens * stride);
            Scorer(layer, rows, unit).run(0, num_keys(unit), own.data(), stride);
            scores = own.data();
        }
    }
    for (int64_t token = 0; token < unit.num_tokens; ++token) {
        const int64_t count = unit.first_position + token + 1;
        int32_t* chosen = layer.chosen + (unit.first_token + token) * layer.num_chosen;
        if (count <= layer.num_chosen) {
            for (int64_t i = 0; i < layer.num_chosen; ++i) chosen[i] = i < count ? (int32_t)i : -1;
        } else {
            choose_highest(scores + token * stride, count, layer.num_chosen, chosen);
        }
    }
}

}  // namespace octavo
