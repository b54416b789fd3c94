#include "routing.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace octavo {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr float kLeastSum = 1e-20f;

// Values of a token's experts, filled up to a multiple of sixteen.
using Row = std::vector<float>;

// The place of the largest value, the first one of equal ones. Values that were taken are minus infinity; so a row of NaNs
// or of minus infinities needs `is_taken`, which ensures that each place is taken once.
int64_t take_largest(Row& values, std::vector<char>& is_taken, int64_t count) {
    int64_t place = -1;
    for (int64_t i = 0; i < count; ++i)
        if (!is_taken[i] && (place < 0 || values[i] > values[place])) place = i;
    is_taken[place] = 1;
    return place;
}

void softmax(Row& values, int64_t count) {
    const float most = *std::max_element(values.begin(), values.begin() + count);
    Lanes total = splat(0.f);
    for (size_t i = 0; i < values.size(); i += kLanes) {
        const Lanes each = exp(load(&values[i]) - splat(most));
        store(&values[i], each);
        total = total + each;
    }
    const Lanes divisor = splat(sum(total));
    for (size_t i = 0; i < values.size(); i += kLanes) store(&values[i], load(&values[i]) / divisor);
}

void sigmoid(Row& values) {
    const Lanes one = splat(1.f), zero = splat(0.f);
    for (size_t i = 0; i < values.size(); i += kLanes)
        store(&values[i], one / (one + exp(zero - load(&values[i]))));
}

// Evenly distributed scores: a hash of the bits of a token's first logit and of each expert's number.
void draw_scores(Row& values, int64_t count) {
    const uint32_t first = bit_cast<uint32_t>(values[0]) * 0x9E3779B1u;
    for (int64_t i = 0; i < count; ++i) {
        uint32_t bits = first ^ (uint32_t)i * 0x85EBCA6Bu;
        bits = (bits ^ bits >> 16) * 0x7FEB352Du;
        bits = (bits ^ bits >> 15) * 0x846CA68Bu;
        values[i] = (float)((bits ^ bits >> 16) >> 8) * 0x1p-24f;
    }
}

// Gives experts outside the groups that rank highest a rank of minus infinity.
void close_groups(Row& ranking, const ChooseExperts& choice) {
    thread_local std::vector<char> is_taken, is_open;
    thread_local Row ranks;
    const int64_t size = choice.num_experts / choice.num_groups;
    ranks.assign(choice.num_groups, 0.f);
    for (int64_t group = 0; group < choice.num_groups; ++group) {
        is_taken.assign(size, 0);
        Row own(ranking.begin() + group * size, ranking.begin() + (group + 1) * size);
        for (int64_t i = 0; i < choice.num_ranked; ++i) ranks[group] += own[take_largest(own, is_taken, size)];
    }
    is_open.assign(choice.num_groups, 0);
    for (int64_t i = 0; i < choice.num_open_groups; ++i) take_largest(ranks, is_open, choice.num_groups);
    for (int64_t i = 0; i < choice.num_experts; ++i)
        if (!is_open[i / size]) ranking[i] = kLowest;
}

// A softmax over the experts near the best of those that are left, once for each choice.
void mix_sparsely(const ChooseExperts& choice, const Row& logits, int64_t* chosen, float* shares) {
    thread_local std::vector<char> is_taken;
    thread_local Row left;
    left = logits;
    is_taken.assign(choice.num_experts, 0);
    for (int64_t i = 0; i < choice.num_chosen; ++i) {
        chosen[i] = take_largest(left, is_taken, choice.num_experts);
        const float best = left[chosen[i]];
        float total = 0.f;
        for (int64_t expert = 0; expert < choice.num_experts; ++expert) {
            const float logit = logits[expert], size = std::max(logit < 0 ? -logit : logit, best);
            const bool is_far = (best - logit) / size > 2 * choice.jitter;
            if (!is_far && (!is_taken[expert] || expert == chosen[i])) total += exp_of(logit - best);
        }
        shares[i] = choice.scale / total;
    }
}

void choose(const ChooseExperts& choice, int64_t token) {
    thread_local Row scores, ranking;
    thread_local std::vector<char> is_taken;
    const int64_t count = choice.num_experts;
    int64_t* chosen = choice.chosen + token * choice.num_chosen;
    float* shares = choice.shares + token * choice.num_chosen;
    scores.assign((count + kLanes - 1) / kLanes * kLanes, kLowest);
    std::copy_n(choice.logits + token * count, count, scores.begin());
    if (choice.score == kSparseMixer) return mix_sparsely(choice, scores, chosen, shares);
    if (choice.score == kSoftmax)
        softmax(scores, count);
    else
        choice.score == kSigmoid ? sigmoid(scores) : draw_scores(scores, count);
    ranking = scores;
    if (choice.correction != nullptr)
        for (int64_t i = 0; i < count; ++i) ranking[i] += choice.correction[i];
    if (choice.num_open_groups < choice.num_groups) close_groups(ranking, choice);
    is_taken.assign(count, 0);
    float total = 0.f;
    for (int64_t i = 0; i < choice.num_chosen; ++i) {
        chosen[i] = take_largest(ranking, is_taken, count);
        shares[i] = scores[chosen[i]];
        total += shares[i];
    }
    for (int64_t i = 0; i < choice.num_chosen; ++i) {
        if (choice.renormalises) shares[i] /= total + kLeastSum;
        shares[i] *= choice.scale;
    }
}

}  // namespace

void ChooseExperts::run(int64_t chunk) const {
    const int64_t last = std::min<int64_t>((chunk + 1) * kTokens, num_tokens);
    for (int64_t token = chunk * kTokens; token < last; ++token) choose(*this, token);
}

}  // namespace octavo
