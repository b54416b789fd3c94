// From logits to tokens, by sampling parameters that lie in tables by slot. Names and meanings are those of
// octavo/sampling, whose PyTorch code rounds sums differently: one draw in many thousands gives a neighbouring token.
#pragma once

#include "team.h"
#include "weights.h"

namespace octavo {

// The largest value of each row and the first place that has it; a NaN counts as the largest.
struct Argmax {
    const unsigned char* x;
    float* values;
    int64_t* places;
    int64_t num_rows, size, stride;  // stride in bytes
    Type type;
    int64_t count_chunks() const { return num_rows; }
    void run(int64_t row) const;
};

constexpr int64_t kGroupTokens = 256;      // of which the largest logit and the mass are kept
constexpr int64_t kSurveyTokens = 1 << 14;  // that a chunk of work reads

struct SamplingRows {
    const unsigned char* logits;
    const int32_t *slots, *counts, *lengths;  // counts[0] rows are real
    const double *temperature, *top_p, *min_p;
    const int64_t *top_k, *stream_key, *prompt_len;
    float *largest, *masses;  // [rows][groups]: each group's largest logit, and its sum of weights relative to that
    int64_t num_rows, vocab_size, stride;  // of logits, in bytes
    int64_t parameter_stride;
    Type type;

    int64_t num_groups() const { return (vocab_size + kGroupTokens - 1) / kGroupTokens; }
    int64_t num_real() const { return counts[0] < num_rows ? counts[0] : num_rows; }
    int64_t parameters_of(int64_t row) const { return slots[row] * parameter_stride; }
    bool is_random(int64_t row) const;
    float scale_of(int64_t row) const { return (float)(1. / temperature[parameters_of(row)]); }
    template <class T>
    const T* logits_of(int64_t row) const {
        return reinterpret_cast<const T*>(logits + row * stride);
    }
};

// Reads all logits once. A group that has a NaN has infinity as its largest.
struct SurveyLogits {
    SamplingRows rows;
    int64_t chunks_per_row() const { return (rows.vocab_size + kSurveyTokens - 1) / kSurveyTokens; }
    int64_t count_chunks() const { return rows.num_real() * chunks_per_row(); }
    void run(int64_t chunk) const;
};

// One token per row; -1 where the largest logit is no finite number.
struct DrawTokens {
    SamplingRows rows;
    int64_t* tokens;
    int64_t count_chunks() const { return rows.num_real(); }
    void run(int64_t row) const;
};

}  // namespace octavo
