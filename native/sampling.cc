#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "lanes.h"

namespace octavo {
namespace {

constexpr double kGreedyTemperature = 1e-5;
constexpr int64_t kNanToken = -1;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Whether any of sixteen values is a NaN: its bits without the sign are above those of infinity.
Ints nan_bits(const Lanes& x) {
    Ints found{};
    OCTAVO_EACH_PART found |= (bit_cast<Ints>(x.part[i]) & 0x7fffffff) > 0x7f800000;
    return found;
}

bool has_any(const Ints& bits) {
    for (int i = 0; i < kWidth; ++i)
        if (bits[i] != 0) return true;
    return false;
}

// The largest of some values, of which there may be any number, and whether there is a NaN among them.
template <class T>
float largest_of(const T* x, int64_t count, Ints& nans) {
    Lanes most = splat(-kInfinity);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        const Lanes values = load(x + i);
        most = max(values, most);
        nans |= nan_bits(values);
    }
    float found = largest(most);
    for (; i < count; ++i) {
        const float value = to_float(x[i]);
        if (value != value) nans[0] = 1;
        found = value > found ? value : found;
    }
    return found;
}

template <class T>
void find_largest(const Argmax& arguments, int64_t row) {
    const T* x = reinterpret_cast<const T*>(arguments.x + row * arguments.stride);
    const int64_t size = arguments.size;
    float best = -kInfinity;
    int64_t best_group = 0;
    Ints nans{};
    for (int64_t start = 0; start < size; start += kGroupTokens) {
        const float here = largest_of(x + start, std::min(kGroupTokens, size - start), nans);
        if (here > best) {
            best = here;
            best_group = start;
        }
    }
    const bool is_nan = has_any(nans);
    int64_t place = is_nan ? 0 : best_group;
    const auto is_it = [&](float value) { return is_nan ? value != value : value == best; };
    while (place < size && !is_it(to_float(x[place]))) ++place;
    arguments.places[row] = place < size ? place : 0;
    arguments.values[row] = is_nan ? std::numeric_limits<float>::quiet_NaN() : best;
}

// e^((x - origin) * scale) of some logits.
template <class T>
void weigh(const T* x, int64_t count, float origin, float scale, float* weights) {
    const Lanes from = splat(origin), factor = splat(scale);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store(weights + i, exp((load(x + i) - from) * factor));
    if (i < count) store_some(weights + i, exp((load_some(x + i, count - i) - from) * factor), count - i);
}

float sum_of(const float* weights, int64_t count) {
    Lanes total = splat(0.f);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) total = total + load(weights + i);
    if (i < count) total = total + load_some(weights + i, count - i);
    return sum(total);
}

// The counter's number of a stream in [0, 1): SplitMix64, as octavo/sampling/random.py has it.
double uniform(int64_t key, int64_t counter) {
    uint64_t z = (uint64_t)counter * 0x9E3779B97F4A7C15u + (uint64_t)key;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (double)((z ^ (z >> 31)) >> 12) * 0x1p-52;
}

struct Candidate {
    float weight;
    int32_t token;
};

// One row that draws; weights are relative to the likeliest token's.
template <class T>
struct Draw {
    const SamplingRows& rows;
    const T* x;
    const float *largest, *masses;
    float best, scale;  // the likeliest token's logit; one over the temperature
    double share;  // of the mass, at which the drawn token lies
    std::vector<float> weights, sorted;
    std::vector<Candidate> candidates;

    Draw(const SamplingRows& rows, int64_t row, float best)
        : rows(rows),
          x(rows.logits_of<T>(row)),
          largest(rows.largest + row * rows.num_groups()),
          masses(rows.masses + row * rows.num_groups()),
          best(best),
          scale(rows.scale_of(row)) {
        const int64_t place = rows.parameters_of(row);
        share = uniform(rows.stream_key[place], rows.lengths[row] - rows.prompt_len[place]);
        weights.resize(kGroupTokens);
    }

    int64_t group_size(int64_t group) const {
        return std::min(kGroupTokens, rows.vocab_size - group * kGroupTokens);
    }
    float weight_of(float logit) const { return exp_of((logit - best) * scale); }
    double mass_of(int64_t group) const { return (double)masses[group] * weight_of(largest[group]); }
    double mass_of_all() const {
        double total = 0;
        for (int64_t group = 0; group < rows.num_groups(); ++group) total += mass_of(group);
        return total;
    }

    // Among all tokens.
    int64_t draw_any() {
        const double goal = share * mass_of_all();
        double before = 0, here = 0;
        int64_t group = 0, last = 0;
        for (; group < rows.num_groups(); ++group) {
            here = mass_of(group);
            if (here > 0) last = group;
            if (here > 0 && before + here > goal) break;
            before += here;
        }
        group = std::min(group, last);
        const int64_t count = group_size(group);
        weigh(x + group * kGroupTokens, count, largest[group], scale, weights.data());
        // The group's sum was rounded differently from this one: stay strictly below its end.
        double end = 0;
        for (int64_t i = 0; i < count; ++i) end += weights[i];
        const double rest = std::min((goal - before) / weight_of(largest[group]), end * (1 - 0x1p-52));
        double running = 0;
        int64_t chosen = 0;
        for (int64_t i = 0; i < count; ++i) {
            running += weights[i];
            if (weights[i] == 0) continue;
            chosen = i;
            if (running > rest) break;
        }
        return group * kGroupTokens + chosen;
    }

    // Tokens of at least a logit and a weight, in their order.
    void gather(float least_logit, float least_weight) {
        candidates.clear();
        for (int64_t group = 0; group < rows.num_groups(); ++group) {
            if (largest[group] < least_logit || weight_of(largest[group]) < least_weight) continue;
            const T* from = x + group * kGroupTokens;
            const int64_t count = group_size(group);
            weigh(from, count, best, scale, weights.data());
            for (int64_t i = 0; i < count; ++i)
                if (weights[i] >= least_weight && weights[i] > 0 && to_float(from[i]) >= least_logit)
                    candidates.push_back({weights[i], (int32_t)(group * kGroupTokens + i)});
        }
    }

    void drop_below(float least) {
        candidates.erase(std::remove_if(candidates.begin(), candidates.end(),
                                        [&](const Candidate& each) { return each.weight < least; }),
                         candidates.end());
    }

    void list_weights() {
        sorted.clear();
        for (const Candidate& each : candidates) sorted.push_back(each.weight);
    }

    // The k-th largest of what is listed.
    float find_kth(int64_t k) {
        std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<float>());
        return sorted[k - 1];
    }

    // A logit that at least k tokens reach.
    float reached_by(int64_t k) {
        if (k > rows.num_groups()) return -kInfinity;
        sorted.assign(largest, largest + rows.num_groups());
        return find_kth(k);
    }

    // Keeps the smallest set of the likeliest candidates that has a mass, and those that tie with its last; false if
    // all of them together have less.
    bool keep_mass(double target) {
        list_weights();
        std::sort(sorted.begin(), sorted.end(), std::greater<float>());
        double running = 0;
        for (const float weight : sorted) {
            running += weight;
            if (running < target) continue;
            drop_below(weight);
            return true;
        }
        return false;
    }

    double mass_of_candidates() const {
        double total = 0;
        for (const Candidate& each : candidates) total += each.weight;
        return total;
    }

    int64_t draw_candidate() const {
        const double goal = share * mass_of_candidates();
        double running = 0;
        for (const Candidate& each : candidates) {
            running += each.weight;
            if (running > goal) return each.token;
        }
        return candidates.back().token;
    }

    int64_t draw(int64_t place) {
        const int64_t k = rows.top_k[place];
        const double p = rows.top_p[place], min_p = rows.min_p[place];
        const bool has_k = k > 0 && k < rows.vocab_size;
        if (!has_k && !(p < 1) && !(min_p > 0)) return draw_any();
        if (has_k) {
            gather(reached_by(k), (float)min_p);
            if ((int64_t)candidates.size() > k) {
                list_weights();
                drop_below(find_kth(k));
            }
        } else if (min_p > 0) {
            gather(-kInfinity, (float)min_p);
        } else {
            draw_nucleus(p);
            return draw_candidate();
        }
        if (p < 1) keep_mass(p * mass_of_candidates());
        return draw_candidate();
    }

    // The candidates of top-p alone. Weights below a cut of half of (1 - p) of the mass, shared by all tokens, cannot
    // matter; mostly far fewer tokens do, so higher cuts are tried first.
    void draw_nucleus(double p) {
        const double mass = mass_of_all();
        const double least = (1 - p) * mass * 0.5 / (double)rows.vocab_size;
        for (const double part : {1e-3, 3e-5, 0.}) {
            gather(-kInfinity, (float)std::max(least, part * mass));
            if (!candidates.empty() && keep_mass(p * mass)) return;
        }
        gather(-kInfinity, 0.f);
    }
};

template <class T>
void survey(const SamplingRows& rows, int64_t row, int64_t first, int64_t last) {
    const T* x = rows.logits_of<T>(row);
    float weights[kGroupTokens];
    const bool is_random = rows.is_random(row);
    const float scale = is_random ? rows.scale_of(row) : 0.f;
    for (int64_t start = first; start < last; start += kGroupTokens) {
        const int64_t place = row * rows.num_groups() + start / kGroupTokens;
        const int64_t count = std::min(kGroupTokens, last - start);
        Ints nans{};
        const float most = largest_of(x + start, count, nans);
        rows.largest[place] = has_any(nans) ? kInfinity : most;
        if (!is_random) continue;
        rows.masses[place] = 0.f;
        if (!(most > -kInfinity)) continue;
        weigh(x + start, count, most, scale, weights);
        rows.masses[place] = sum_of(weights, count);
    }
}

template <class T>
int64_t choose(const SamplingRows& rows, int64_t row) {
    const float* largest = rows.largest + row * rows.num_groups();
    int64_t group = 0;
    for (int64_t i = 1; i < rows.num_groups(); ++i)
        if (largest[i] > largest[group]) group = i;
    const float best = largest[group];
    if (!(std::fabs(best) < kInfinity)) return kNanToken;
    if (rows.is_random(row)) return Draw<T>(rows, row, best).draw(rows.parameters_of(row));
    const T* x = rows.logits_of<T>(row);
    int64_t token = group * kGroupTokens;
    while (to_float(x[token]) != best) ++token;
    return token;
}

}  // namespace

bool SamplingRows::is_random(int64_t row) const {
    const int64_t place = parameters_of(row);
    return temperature[place] >= kGreedyTemperature && top_k[place] != 1;
}

void Argmax::run(int64_t row) const {
    by_type(type, [&](auto value) { find_largest<decltype(value)>(*this, row); });
}

void SurveyLogits::run(int64_t chunk) const {
    const int64_t row = chunk / chunks_per_row(), first = chunk % chunks_per_row() * kSurveyTokens;
    by_type(rows.type, [&](auto value) {
        survey<decltype(value)>(rows, row, first, std::min(first + kSurveyTokens, rows.vocab_size));
    });
}

void DrawTokens::run(int64_t row) const {
    by_type(rows.type, [&](auto value) { tokens[row] = choose<decltype(value)>(rows, row); });
}

}  // namespace octavo
