// Holds the CPU kernels against scalar arithmetic in double precision, without Python: for processors that only an
// emulator runs here (test_native_neon.py). Prints each check, and returns how many failed.
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <vector>

#include "attention.h"
#include "block_pack.h"
#include "linear.h"
#include "rows.h"

namespace octavo {
namespace {

int g_failures = 0;

// Numbers of about one, the same in every run.
struct Random {
    uint64_t state = 1;
    float operator()() {
        float sum = 0.f;
        for (int i = 0; i < 4; ++i) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            sum += (float)(state >> 40) / (float)(1 << 24) - 0.5f;
        }
        return sum * 1.7f;
    }
};

constexpr Type kTypes[] = {kFloat32, kBFloat16, kFloat16};
const char* name_of(Type type) { return type == kFloat32 ? "float32" : type == kBFloat16 ? "bfloat16" : "float16"; }
double step_of(Type type) { return type == kFloat32 ? 2e-6 : type == kBFloat16 ? 8e-3 : 1e-3; }

// Numbers as a type has them, and their values.
struct Tensor {
    Type type;
    std::vector<unsigned char> bytes;
    std::vector<double> values;

    Tensor(Type type, size_t count) : type(type), bytes(count * (type == kFloat32 ? 4 : 2)), values(count) {}
    size_t element_size() const { return bytes.size() / values.size(); }
    void set(size_t index, float x) {
        by_type(type, [&](auto value) {
            auto* to = reinterpret_cast<decltype(value)*>(bytes.data()) + index;
            store_some(to, splat(x), 1);
            values[index] = to_float(*to);
        });
    }
    double read(size_t index) const {
        double result = 0;
        by_type(type, [&](auto value) {
            result = to_float(reinterpret_cast<const decltype(value)*>(bytes.data())[index]);
        });
        return result;
    }
};

Tensor random_tensor(Type type, size_t count, Random& random, float factor = 1.f) {
    Tensor tensor(type, count);
    for (size_t i = 0; i < count; ++i) tensor.set(i, random() * factor);
    return tensor;
}

void run_one(const Operation& operation) { run(&operation, 1); }

// The root of the mean squared error must be below a part of the values' own.
void check(const std::string& what, const Tensor& actual, const std::vector<double>& expected, double tolerance) {
    double error = 0, size = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
        error += std::pow(actual.read(i) - expected[i], 2);
        size += expected[i] * expected[i];
    }
    const double relative = std::sqrt(error / size);
    const bool is_right = relative < tolerance;
    g_failures += !is_right;
    std::printf("%s %s: %.2g of %.2g\n", is_right ? "ok" : "FAILED", what.c_str(), relative, tolerance);
}

void check_same(const std::string& what, bool is_same) {
    g_failures += !is_same;
    std::printf("%s %s\n", is_same ? "ok" : "FAILED", what.c_str());
}

std::vector<double> multiply(const Tensor& x, const std::vector<double>& weight, int64_t rows, int64_t outputs,
                             int64_t inputs) {
    std::vector<double> y(rows * outputs);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t n = 0; n < outputs; ++n)
            for (int64_t k = 0; k < inputs; ++k) y[r * outputs + n] += x.values[r * inputs + k] * weight[n * inputs + k];
    return y;
}

// The first rows of x times a packed weight of floating-point values.
Tensor run_linear(const Tensor& x, const std::vector<unsigned char>& packed, Type weight, int64_t rows, int64_t outputs,
                  int64_t inputs) {
    Tensor y(x.type, rows * outputs);
    const Staging staging = staging_of(weight);
    const Stage stage{x.bytes.data(), rows,         inputs, (int64_t)x.element_size() * inputs, staging.rows.of(rows),
                      staging.unit,   x.type, staging.type};
    Gemm gemm{};
    gemm.weights = packed.data();
    gemm.y = y.bytes.data();
    gemm.num_rows = (int32_t)rows, gemm.num_outputs = (int32_t)outputs, gemm.num_inputs = (int32_t)inputs;
    gemm.x_stride = stage.row_bytes(), gemm.y_stride = outputs;
    gemm.panel_bytes = packed_bytes(weight, kLanes, inputs);
    gemm.wide_rows = staging.rows.wide;
    gemm.run_block = find_run_block(weight);
    gemm.store_tile = find_store_tile(x.type);
    const Operation operations[] = {make_operation(stage), make_operation(gemm)};
    run(operations, 2);
    return y;
}

Tensor run_blocks(const Tensor& x, const std::vector<unsigned char>& packed, int32_t block, int64_t rows,
                  int64_t outputs, int64_t inputs) {
    const BlockSpec& spec = kSpecs[block];
    Tensor y(x.type, rows * outputs);
    Gemm gemm{};
    gemm.weights = packed.data();
    gemm.y = y.bytes.data();
    gemm.num_rows = (int32_t)rows, gemm.num_outputs = (int32_t)outputs, gemm.num_inputs = (int32_t)inputs;
    gemm.x_stride = x_row_bytes(inputs), gemm.y_stride = outputs;
    gemm.panel_bytes = spec.panel_bytes(inputs);
    gemm.wide_rows = kBlockTileRows.wide;
    gemm.run_block = find_run_block_of(block);
    gemm.store_tile = find_store_tile(x.type);
    const Operation operations[] = {
        make_operation(StageBlocks{x.bytes.data(), rows, inputs, (int64_t)x.element_size() * inputs,
                                   kBlockTileRows.of(rows), x.type, spec.group, zero_of(spec)}),
        make_operation(gemm),
    };
    run(operations, 2);
    return y;
}

// Results are right, and each row has the same bits by itself.
template <class Run>
void check_rows(const std::string& what, const Run& run_rows, Type type, const std::vector<double>& expected,
                double tolerance, int64_t rows, int64_t outputs) {
    const Tensor all = run_rows(0, rows);
    check(what, all, expected, tolerance);
    bool is_same = true;
    for (int64_t r = 0; r < rows; ++r) {
        const Tensor one = run_rows(r, 1);
        is_same &= std::memcmp(one.bytes.data(), all.bytes.data() + r * one.bytes.size(), one.bytes.size()) == 0;
    }
    check_same(what + ", rows alone", is_same);
}

Tensor some_rows(const Tensor& x, int64_t first, int64_t rows, int64_t inputs) {
    Tensor some(x.type, rows * inputs);
    const size_t bytes = inputs * x.element_size();
    std::memcpy(some.bytes.data(), x.bytes.data() + first * bytes, rows * bytes);
    return some;
}

void check_linear() {
    Random random;
    constexpr int64_t kRows = 13, kOutputs = 40, kInputs = 77;
    for (Type weight_type : kTypes) {
        const Tensor weight = random_tensor(weight_type, kOutputs * kInputs, random, 0.1f);
        std::vector<unsigned char> packed(packed_bytes(weight_type, kOutputs, kInputs));
        run_one(make_operation(Pack{weight.bytes.data(), packed.data(), kOutputs, kInputs, weight_type}));
        for (Type type : kTypes) {
            const Tensor x = random_tensor(type, kRows * kInputs, random);
            const auto rows = [&](int64_t first, int64_t count) {
                return run_linear(some_rows(x, first, count, kInputs), packed, weight_type, count, kOutputs, kInputs);
            };
            check_rows(std::string("weights ") + name_of(weight_type) + ", inputs " + name_of(type), rows, type,
                       multiply(x, weight.values, kRows, kOutputs, kInputs), step_of(type), kRows, kOutputs);
        }
    }
}

// Integers in groups: a file's formats with random contents, int8 and int4 from floating-point weights, and codes of four
// bits with a scale for each output or each group (Arm's W4A8, channelwise and groupwise).
void check_blocks() {
    Random random;
    constexpr int64_t kRows = 7, kOutputs = 40, kInputs = 512;
    constexpr int32_t kQ4_1Number = 1, kNumFormats = 10;
    const char* names[] = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "int8", "int4"};
    const auto check_format = [&](const std::string& name, int32_t block, const std::vector<unsigned char>& packed) {
        std::vector<int64_t> index(kOutputs);
        for (int64_t n = 0; n < kOutputs; ++n) index[n] = n;
        Tensor weight(kFloat32, kOutputs * kInputs);
        run_one(make_operation(
            GatherBlocks{packed.data(), index.data(), weight.bytes.data(), kOutputs, kInputs, block, kFloat32}));
        for (size_t i = 0; i < weight.values.size(); ++i) weight.values[i] = weight.read(i);
        for (Type type : kTypes) {
            Tensor x = random_tensor(type, kRows * kInputs, random);
            for (int64_t r = 0; r < kRows; r += 3) x.set(r * kInputs + 40, 30.f);  // rows with second codes
            const auto rows = [&](int64_t first, int64_t count) {
                return run_blocks(some_rows(x, first, count, kInputs), packed, block, count, kOutputs, kInputs);
            };
            check_rows(name + ", inputs " + name_of(type), rows, type,
                       multiply(x, weight.values, kRows, kOutputs, kInputs), 0.01, kRows, kOutputs);
        }
    };
    for (int32_t block = 0; block < kNumFormats; ++block) {
        std::vector<unsigned char> packed((kOutputs + kLanes - 1) / kLanes * kSpecs[block].panel_bytes(kInputs));
        if (block >= kBlockInt8) {
            const Tensor weight = random_tensor(kBFloat16, kOutputs * kInputs, random, 0.1f);
            run_one(make_operation(
                Quantize{weight.bytes.data(), packed.data(), kOutputs, kInputs, block, kBFloat16}));
        } else {
            std::vector<unsigned char> rows(kOutputs * raw_row_bytes(block, kInputs));
            for (unsigned char& byte : rows) byte = (unsigned char)(random() * 40.f) & 0xbb;  // finite as float16
            run_one(make_operation(PackBlocks{rows.data(), packed.data(), kOutputs, kInputs, block}));
        }
        check_format(names[block], block, packed);
    }
    for (const bool is_channelwise : {true, false}) {
        std::vector<unsigned char> rows(kOutputs * raw_row_bytes(kQ4_1Number, kInputs));
        unsigned char* block = rows.data();
        for (int64_t g = 0; g < kOutputs * kInputs / 32; ++g, block += 20) {
            const auto scale = (float)((is_channelwise ? g / (kInputs / 32) : g) % 7 + 1) / 64.f;
            store_some(reinterpret_cast<Float16*>(block), splat(scale), 1);
            store_some(reinterpret_cast<Float16*>(block) + 1, splat(-8.f * scale), 1);
            for (int i = 4; i < 20; ++i) block[i] = (unsigned char)(random() * 100.f);
        }
        std::vector<unsigned char> packed((kOutputs + kLanes - 1) / kLanes * kSpecs[kQ4_1Number].panel_bytes(kInputs));
        run_one(make_operation(PackBlocks{rows.data(), packed.data(), kOutputs, kInputs, kQ4_1Number}));
        check_format(is_channelwise ? "W4A8 channelwise" : "W4A8 groupwise", kQ4_1Number, packed);
    }
}

void check_row_operations() {
    Random random;
    constexpr int64_t kRows = 11, kSize = 75;
    for (Type type : kTypes) {
        const Tensor x = random_tensor(type, kRows * 2 * kSize, random), weight = random_tensor(kFloat32, 2 * kSize, random);
        Tensor normed(type, x.values.size()), gated(type, kRows * kSize);
        RmsNorm norm{};
        norm.x = x.bytes.data(), norm.to = normed.bytes.data(), norm.weight = weight.bytes.data();
        norm.num_rows = kRows, norm.size = 2 * kSize, norm.eps = 1e-5f, norm.type = type, norm.weight_type = kFloat32;
        run_one(make_operation(norm));
        Activate gate{};
        gate.x = x.bytes.data(), gate.to = gated.bytes.data();
        gate.times = x.bytes.data() + kSize * x.bytes.size() / x.values.size();
        gate.x_stride = gate.times_stride = 2 * kSize, gate.to_stride = kSize;
        gate.num_rows = kRows, gate.size = kSize, gate.activation = kSilu, gate.type = type;
        run_one(make_operation(gate));
        std::vector<double> expected_norm(x.values.size()), expected_gate(kRows * kSize);
        for (int64_t r = 0; r < kRows; ++r) {
            const double* row = x.values.data() + r * 2 * kSize;
            double squares = 0;
            for (int64_t i = 0; i < 2 * kSize; ++i) squares += row[i] * row[i];
            for (int64_t i = 0; i < 2 * kSize; ++i)
                expected_norm[r * 2 * kSize + i] = row[i] / std::sqrt(squares / (2 * kSize) + 1e-5) * weight.values[i];
            for (int64_t i = 0; i < kSize; ++i)
                expected_gate[r * kSize + i] = row[i] / (1 + std::exp(-row[i])) * row[kSize + i];
        }
        check(std::string("norm ") + name_of(type), normed, expected_norm, step_of(type));
        check(std::string("gate ") + name_of(type), gated, expected_gate, step_of(type));
    }
}

// Two requests, one with more keys than a partition has: a prompt, and its last token decoded again.
void check_attention() {
    Random random;
    constexpr int64_t kLengths[] = {290, 21}, kTokens = 311, kHeads = 4, kKeyHeads = 2, kSize = 24, kBlock = 16;
    constexpr int64_t kRowSize = (kHeads + 2 * kKeyHeads) * kSize, kBlocks = 32;
    for (Type type : kTypes) {
        Tensor qkv = random_tensor(type, kTokens * kRowSize, random);
        Tensor cache(type, kBlocks * 2 * kKeyHeads * kBlock * kSize), out(type, kTokens * kHeads * kSize);
        std::vector<int32_t> tables(2 * kBlocks), lengths, starts{0}, slots{0, 1};
        std::vector<int64_t> mapping;
        int32_t block = kBlocks - 1;
        for (int64_t row = 0; row < 2; ++row) {
            for (int64_t i = 0; i < (kLengths[row] + kBlock - 1) / kBlock; ++i) tables[row * kBlocks + i] = block--;
            for (int64_t i = 0; i < kLengths[row]; ++i)
                mapping.push_back(tables[row * kBlocks + i / kBlock] * kBlock + i % kBlock);
            lengths.push_back((int32_t)kLengths[row]);
            starts.push_back(starts.back() + (int32_t)kLengths[row]);
        }
        std::vector<int32_t> counts{2, 0, kTokens, 0};
        AttentionPlan plan;
        AttentionRows rows{};
        rows.counts = counts.data(), rows.query_starts = starts.data(), rows.seq_lens = lengths.data();
        rows.block_tables = tables.data(), rows.slots = slots.data(), rows.slot_mapping = mapping.data();
        rows.table_stride = kBlocks, rows.block_size = kBlock;
        AttentionLayer layer{};
        layer.qkv = qkv.bytes.data(), layer.cache = cache.bytes.data();
        layer.value_offset = kKeyHeads * kBlock * kSize, layer.block_stride = 2 * layer.value_offset;
        layer.num_heads = kHeads, layer.num_kv_heads = kKeyHeads, layer.head_dim = kSize, layer.type = type;
        RotateAndStore rotate{};
        rotate.layer = layer, rotate.rows = rows;
        const float scale = 0.3f;
        const auto attend = [&] {
            run_one(make_operation(PlanAttention{&plan, rows, kHeads / kKeyHeads}));
            const Operation operations[] = {
                make_operation(rotate),
                make_operation(Attend{&plan, rotate.layer, rows, out.bytes.data(), scale, 0.f}),
                make_operation(MergeSplits{&plan, rotate.layer, out.bytes.data()}),
            };
            run(operations, 3);
        };
        attend();
        std::vector<double> expected(out.values.size());
        for (int64_t row = 0, first = 0; row < 2; first += kLengths[row++]) {
            for (int64_t i = 0; i < kLengths[row]; ++i) {
                for (int64_t head = 0; head < kHeads; ++head) {
                    const auto at = [&](int64_t token, int64_t place) {
                        return &qkv.values[(first + token) * kRowSize + place * kSize];
                    };
                    const int64_t key_head = kHeads + head / (kHeads / kKeyHeads);
                    double* to = &expected[((first + i) * kHeads + head) * kSize];
                    double total = 0;
                    for (int64_t j = 0; j <= i; ++j) {
                        double score = 0;
                        for (int64_t d = 0; d < kSize; ++d) score += at(i, head)[d] * at(j, key_head)[d];
                        const double weight = std::exp(score * scale);
                        total += weight;
                        for (int64_t d = 0; d < kSize; ++d) to[d] += weight * at(j, key_head + kKeyHeads)[d];
                    }
                    for (int64_t d = 0; d < kSize; ++d) to[d] /= total;
                }
            }
        }
        check(std::string("attention ") + name_of(type), out, expected, 2 * step_of(type));
        const size_t bytes = kHeads * kSize * out.element_size();
        const std::vector<unsigned char> last(out.bytes.begin() + (kLengths[0] - 1) * bytes,
                                              out.bytes.begin() + kLengths[0] * bytes);
        counts = {1, 1, 1, 0};
        starts = {0, 1};
        mapping = {mapping[kLengths[0] - 1]};
        rows.slot_mapping = rotate.rows.slot_mapping = mapping.data();
        rotate.layer.qkv = qkv.bytes.data() + (kLengths[0] - 1) * kRowSize * qkv.element_size();
        attend();
        check_same(std::string("attention ") + name_of(type) + ", decoded",
                   std::memcmp(last.data(), out.bytes.data(), bytes) == 0);
    }
}

}  // namespace
}  // namespace octavo

int main() {
    octavo::set_num_threads(2);
    octavo::check_linear();
    octavo::check_blocks();
    octavo::check_row_operations();
    octavo::check_attention();
    return octavo::g_failures;
}
