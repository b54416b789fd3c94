// The Python module. Tensors come as addresses: the Python side checks shapes and types, keeps tensors alive, and
// allocates all results. Between start_tape() and end_tape(), operations are also put on a tape.
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "attention.h"
#include "block_pack.h"
#include "combine.h"
#include "experts.h"
#include "head_linear.h"
#include "indexer.h"
#include "int8.h"
#include "latent_attention.h"
#include "latent_inputs.h"
#include "linear.h"
#include "packed_attention.h"
#include "routing.h"
#include "rows.h"
#include "sampling.h"
#include "state_space.h"
#include "step.h"
#include "tiles.h"

#define OCTAVO_CONCAT_(a, b) a##b
#define OCTAVO_CONCAT(a, b) OCTAVO_CONCAT_(a, b)
#define OCTAVO_STRING_(a) #a
#define OCTAVO_STRING(a) OCTAVO_STRING_(a)

namespace octavo {
namespace {

Tape* g_recording = nullptr;
PyObject* g_owners = nullptr;  // the list of objects that the tape's operations use, while one is recorded

// Operations that take longer than this let other Python threads run meanwhile.
constexpr double kLongFlops = 2e7;

void execute(const Operation* operations, size_t count, bool is_long) {
    if (g_recording != nullptr) g_recording->insert(g_recording->end(), operations, operations + count);
    if (is_long) {
        Py_BEGIN_ALLOW_THREADS run(operations, count);
        Py_END_ALLOW_THREADS
    } else {
        run(operations, count);
    }
}

// A short operation; what its Python function returns.
PyObject* execute_one(const Operation& operation) {
    execute(&operation, 1, false);
    Py_RETURN_NONE;
}

// Preparation of weights, which no tape repeats.
void run_long(const Operation& operation) {
    Py_BEGIN_ALLOW_THREADS run(&operation, 1);
    Py_END_ALLOW_THREADS
}

// The same on the calling thread alone: loaders prepare several weights at a time.
template <class Arguments>
PyObject* run_here(const Arguments& arguments) {
    Py_BEGIN_ALLOW_THREADS for (int64_t chunk = 0; chunk < arguments.count_chunks(); ++chunk) arguments.run(chunk);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

// The arguments of a call, in order.
class Arguments {
   public:
    Arguments(PyObject* const* values, Py_ssize_t count) : values_(values), count_(count) {}
    int64_t integer() { return next() ? PyLong_AsLongLong(values_[index_ - 1]) : 0; }
    double number() { return next() ? PyFloat_AsDouble(values_[index_ - 1]) : 0; }
    Type type() { return (Type)integer(); }
    template <class T>
    T* address() {
        return reinterpret_cast<T*>(integer());
    }
    template <class T>
    T* object(const char* name) {
        if (!next()) return nullptr;
        if (PyCapsule_IsValid(values_[index_ - 1], name))
            return static_cast<T*>(PyCapsule_GetPointer(values_[index_ - 1], name));
        PyErr_Format(PyExc_TypeError, "argument %zd is no %s", index_, name);
        return nullptr;
    }
    // Whether all arguments were there and of the right types, and no others.
    bool are_right() {
        if (PyErr_Occurred() != nullptr) return false;
        if (index_ == count_) return true;
        PyErr_Format(PyExc_TypeError, "%zd arguments were given, %zd are needed", count_, index_);
        return false;
    }

   private:
    bool next() { return index_++ < count_; }
    PyObject* const* values_;
    Py_ssize_t count_, index_ = 0;
};

constexpr char kTape[] = "octavo.tape", kPlan[] = "octavo.attention_plan";

template <class T>
PyObject* capsule(T* object, const char* name) {
    return PyCapsule_New(object, name, [](PyObject* self) {
        delete static_cast<T*>(PyCapsule_GetPointer(self, PyCapsule_GetName(self)));
    });
}

PyObject* py_set_num_threads(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    const auto threads = (int)arguments.integer();
    if (!arguments.are_right()) return nullptr;
    set_num_threads(threads < 1 ? 1 : threads);
    Py_RETURN_NONE;
}

PyObject* py_bind_threads(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    const auto* cpus = arguments.address<const int32_t>();
    const int64_t num_cpus = arguments.integer();
    const bool one_each = arguments.integer() != 0;
    if (!arguments.are_right()) return nullptr;
    bind_threads(std::vector<int>(cpus, cpus + num_cpus), one_each);
    Py_RETURN_NONE;
}

PyObject* py_num_threads(PyObject*, PyObject* const* values, Py_ssize_t count) {
    return Arguments(values, count).are_right() ? PyLong_FromLong(num_threads()) : nullptr;
}

PyObject* py_start_tape(PyObject*, PyObject* const* values, Py_ssize_t count) {
    if (count != 1 || !PyList_Check(values[0])) {
        PyErr_SetString(PyExc_TypeError, "one list is needed");
        return nullptr;
    }
    delete g_recording;
    g_recording = new Tape;
    Py_XDECREF(g_owners);
    g_owners = values[0];
    Py_INCREF(g_owners);
    Py_RETURN_NONE;
}

PyObject* py_end_tape(PyObject*, PyObject* const* values, Py_ssize_t count) {
    if (!Arguments(values, count).are_right()) return nullptr;
    Tape* tape = g_recording == nullptr ? new Tape : g_recording;
    g_recording = nullptr;
    Py_XDECREF(g_owners);
    g_owners = nullptr;
    return capsule(tape, kTape);
}

PyObject* py_replay(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    const Tape* tape = arguments.object<Tape>(kTape);
    if (!arguments.are_right()) return nullptr;
    Py_BEGIN_ALLOW_THREADS run(tape->data(), tape->size(), true);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

PyObject* py_packed_bytes(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    const Type type = arguments.type();
    const int64_t outputs = arguments.integer(), inputs = arguments.integer();
    if (!arguments.are_right()) return nullptr;
    const int64_t panels = (outputs + kLanes - 1) / kLanes;
    if ((int32_t)type == kInt8Weight) return PyLong_FromLongLong(panels * int8_panel_bytes(inputs));
    if (type < kFirstBlock) return PyLong_FromLongLong(packed_bytes(type, outputs, inputs));
    return PyLong_FromLongLong(panels * kSpecs[type - kFirstBlock].panel_bytes(inputs));
}

PyObject* py_pack(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    Pack pack{};
    pack.from = arguments.address<unsigned char>();
    pack.to = arguments.address<unsigned char>();
    pack.num_outputs = arguments.integer();
    pack.num_inputs = arguments.integer();
    pack.type = arguments.type();
    if (!arguments.are_right()) return nullptr;
    if (pack.type >= kFirstBlock)
        return run_here(PackBlocks{pack.from, pack.to, pack.num_outputs, pack.num_inputs, pack.type - kFirstBlock});
    run_long(make_operation(pack));
    Py_RETURN_NONE;
}

PyObject* py_pack_int8(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    PackInt8 pack{};
    pack.from = arguments.address<int8_t>();
    pack.scales = arguments.address<float>();
    pack.to = arguments.address<unsigned char>();
    pack.num_outputs = arguments.integer();
    pack.num_inputs = arguments.integer();
    if (!arguments.are_right()) return nullptr;
    run_long(make_operation(pack));
    Py_RETURN_NONE;
}

PyObject* py_quantize(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    Quantize quantize{};
    quantize.from = arguments.address<unsigned char>();
    quantize.to = arguments.address<unsigned char>();
    quantize.num_outputs = arguments.integer();
    quantize.num_inputs = arguments.integer();
    quantize.block = (int32_t)arguments.integer() - kFirstBlock;
    quantize.type = arguments.type();
    if (!arguments.are_right()) return nullptr;
    return run_here(quantize);
}

PyObject* py_gather_packed(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    GatherPacked gather{};
    gather.weights = arguments.address<unsigned char>();
    gather.index = arguments.address<int64_t>();
    gather.to = arguments.address<unsigned char>();
    gather.num_rows = arguments.integer();
    gather.num_inputs = arguments.integer();
    const Type weight = arguments.type();
    gather.type = arguments.type();
    if (!arguments.are_right()) return nullptr;
    const Operation operation =
        weight < kFirstBlock ? make_operation(gather)
                             : make_operation(GatherBlocks{gather.weights, gather.index, gather.to, gather.num_rows,
                                                           gather.num_inputs, weight - kFirstBlock, gather.type});
    return execute_one(operation);
}

PyObject* py_linear(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    Gemm gemm{};
    gemm.weights = arguments.address<unsigned char>();
    gemm.x = arguments.address<unsigned char>();
    gemm.y = arguments.address<void>();
    gemm.bias = arguments.address<void>();
    gemm.num_rows = (int32_t)arguments.integer();
    gemm.num_outputs = (int32_t)arguments.integer();
    gemm.num_inputs = (int32_t)arguments.integer();
    gemm.x_stride = arguments.integer();
    gemm.y_stride = arguments.integer();
    const Type weight = arguments.type(), type = arguments.type(), y_type = arguments.type();
    gemm.gate = (Activation)arguments.integer();
    if (!arguments.are_right()) return nullptr;
    gemm.store_tile = find_store_tile(y_type);
    const bool is_long = 2. * gemm.num_rows * gemm.num_outputs * gemm.num_inputs > kLongFlops;
    if ((int32_t)weight == kInt8Weight) {
        const StageInt8 stage{gemm.x, gemm.num_rows, gemm.num_inputs, gemm.x_stride, kInt8TileRows.of(gemm.num_rows), type};
        gemm.x = nullptr;
        gemm.x_stride = int8_row_bytes(gemm.num_inputs);
        gemm.panel_bytes = int8_panel_bytes(gemm.num_inputs);
        gemm.run_block = find_run_block_of_int8();
        const Operation operations[] = {make_operation(stage), make_operation(gemm)};
        execute(operations, 2, is_long);
        Py_RETURN_NONE;
    }
    if (weight >= kFirstBlock) {
        const int32_t block = weight - kFirstBlock;
        const StageBlocks stage{gemm.x,        gemm.num_rows, gemm.num_inputs,
                                gemm.x_stride, kBlockTileRows.of(gemm.num_rows), type,
                                kSpecs[block].group, zero_of(kSpecs[block])};
        gemm.x = nullptr;
        gemm.x_stride = x_row_bytes(gemm.num_inputs);
        gemm.panel_bytes = kSpecs[block].panel_bytes(gemm.num_inputs);
        gemm.run_block = find_run_block_of(block);
        gemm.wide_rows = kBlockTileRows.wide;
        const Operation operations[] = {make_operation(stage), make_operation(gemm)};
        execute(operations, 2, is_long);
        Py_RETURN_NONE;
    }
    gemm.panel_bytes = packed_bytes(weight, kLanes, gemm.num_inputs);
    gemm.run_block = find_run_block(weight);
    Operation operations[2];
    size_t num_operations = 0;
    const Staging staging = staging_of(weight);
    gemm.wide_rows = staging.rows.wide;
    if (staging.is_needed(type, gemm.num_rows, gemm.num_inputs)) {
        const Stage stage{gemm.x, gemm.num_rows, gemm.num_inputs, gemm.x_stride, staging.rows.of(gemm.num_rows),
                          staging.unit, type, staging.type};
        operations[num_operations++] = make_operation(stage);
        gemm.x = nullptr;
        gemm.x_stride = stage.row_bytes();
    }
    operations[num_operations++] = make_operation(gemm);
    execute(operations, num_operations, is_long);
    Py_RETURN_NONE;
}

PyObject* py_head_linear(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    HeadLinear linear{};
    linear.weights = arguments.address<unsigned char>();
    linear.x = arguments.address<unsigned char>();
    linear.y = arguments.address<unsigned char>();
    linear.weight_bytes = arguments.integer();
    linear.x_stride = arguments.integer();
    linear.x_head = arguments.integer();
    linear.y_stride = arguments.integer();
    linear.y_head = arguments.integer();
    linear.num_rows = (int32_t)arguments.integer();
    linear.num_outputs = (int32_t)arguments.integer();
    linear.num_inputs = (int32_t)arguments.integer();
    linear.num_heads = (int32_t)arguments.integer();
    linear.weight_type = arguments.type();
    linear.x_type = arguments.type();
    linear.y_type = arguments.type();
    if (!arguments.are_right()) return nullptr;
    const Operation operation = make_operation(linear);
    execute(&operation, 1,
            2. * linear.num_heads * linear.num_rows * linear.num_outputs * linear.num_inputs > kLongFlops);
    Py_RETURN_NONE;
}

PyObject* py_rms_norm(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    RmsNorm norm{};
    norm.x = arguments.address<void>();
    norm.residual = arguments.address<void>();
    norm.to = arguments.address<void>();
    norm.weight = arguments.address<void>();
    norm.num_rows = arguments.integer();
    norm.size = arguments.integer();
    norm.eps = (float)arguments.number();
    norm.type = arguments.type();
    norm.weight_type = arguments.type();
    if (!arguments.are_right()) return nullptr;
    return execute_one(make_operation(norm));
}

PyObject* py_layer_norm(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    LayerNorm norm{};
    norm.x = arguments.address<void>();
    norm.residual = arguments.address<void>();
    norm.to = arguments.address<void>();
    norm.weight = arguments.address<void>();
    norm.bias = arguments.address<void>();
    norm.num_rows = arguments.integer();
    norm.size = arguments.integer();
    norm.eps = (float)arguments.number();
    norm.type = arguments.type();
    if (!arguments.are_right()) return nullptr;
    return execute_one(make_operation(norm));
}

PyObject* py_activate(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    Activate activate{};
    activate.x = arguments.address<void>();
    activate.times = arguments.address<void>();
    activate.to = arguments.address<void>();
    activate.num_rows = arguments.integer();
    activate.size = arguments.integer();
    activate.x_stride = arguments.integer();
    activate.times_stride = arguments.integer();
    activate.to_stride = arguments.integer();
    activate.activation = (int32_t)arguments.integer();
    activate.type = arguments.type();
    if (!arguments.are_right()) return nullptr;
    return execute_one(make_operation(activate));
}

PyObject* py_combine(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    Combine combine{};
    combine.x = arguments.address<void>();
    combine.y = arguments.address<void>();
    combine.to = arguments.address<void>();
    combine.number = (float)arguments.number();
    combine.upper = (float)arguments.number();
    for (auto* four : {combine.sizes, combine.x_strides, combine.y_strides, combine.to_strides})
        for (int i = 0; i < 4; ++i) four[i] = arguments.integer();
    combine.kind = (Combination)arguments.integer();
    combine.type = arguments.type();
    combine.to_type = arguments.type();
    if (!arguments.are_right()) return nullptr;
    return execute_one(make_operation(combine));
}

PyObject* py_split_identities(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    SplitIdentities split{};
    split.chosen = arguments.address<int64_t>();
    split.shares = arguments.address<float>();
    split.real = arguments.address<int64_t>();
    split.real_shares = arguments.address<float>();
    split.kept = arguments.address<float>();
    split.num_rows = arguments.integer();
    split.num_chosen = arguments.integer();
    split.first = arguments.integer();
    if (!arguments.are_right()) return nullptr;
    return execute_one(make_operation(split));
}

PyObject* py_xielu(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    Xielu xielu{};
    xielu.x = arguments.address<void>();
    xielu.to = arguments.address<void>();
    xielu.slopes = arguments.address<float>();
    xielu.size = arguments.integer();
    xielu.type = arguments.type();
    if (!arguments.are_right()) return nullptr;
    return execute_one(make_operation(xielu));
}

PyObject* py_gather(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    Gather gather{};
    gather.table = arguments.address<unsigned char>();
    gather.index = arguments.address<int64_t>();
    gather.to = arguments.address<unsigned char>();
    gather.num_rows = arguments.integer();
    gather.row_bytes = arguments.integer();
    if (!arguments.are_right()) return nullptr;
    return execute_one(make_operation(gather));
}

BatchState read_state(Arguments& arguments) {
    BatchState state{};
    state.header = arguments.address<int32_t>();
    state.row_slots = arguments.address<int32_t>();
    state.row_num_new = arguments.address<int32_t>();
    state.row_num_drawn = arguments.address<int32_t>();
    state.num_computed = arguments.address<int32_t>();
    state.recent_tokens = arguments.address<int32_t>();
    state.step_tokens = arguments.address<int32_t>();
    state.block_tables = arguments.address<int32_t>();
    state.block_sizes = arguments.address<int32_t>();
    state.num_slots = arguments.integer();
    state.num_recent = arguments.integer();
    state.num_groups = arguments.integer();
    state.max_blocks = arguments.integer();
    return state;
}

PyObject* py_prepare_inputs(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    PrepareInputs prepare{};
    prepare.state = read_state(arguments);
    prepare.token_ids = arguments.address<int64_t>();
    prepare.positions = arguments.address<int64_t>();
    prepare.slot_mapping = arguments.address<int64_t>();
    prepare.last_tokens = arguments.address<int64_t>();
    prepare.query_starts = arguments.address<int32_t>();
    prepare.seq_lens = arguments.address<int32_t>();
    prepare.mapping_stride = arguments.integer();
    prepare.num_rows = arguments.integer();
    prepare.num_tokens = arguments.integer();
    if (!arguments.are_right()) return nullptr;
    return execute_one(make_operation(prepare));
}

PyObject* py_append_tokens(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    AppendTokens append{};
    append.state = read_state(arguments);
    append.drawn = arguments.address<int64_t>();
    append.new_tokens = arguments.address<int32_t>();
    if (!arguments.are_right()) return nullptr;
    return execute_one(make_operation(append));
}

PyObject* py_argmax(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    Argmax argmax{};
    argmax.x = arguments.address<unsigned char>();
    argmax.values = arguments.address<float>();
    argmax.places = arguments.address<int64_t>();
    argmax.num_rows = arguments.integer();
    argmax.size = arguments.integer();
    argmax.stride = arguments.integer();
    argmax.type = arguments.type();
    if (!arguments.are_right()) return nullptr;
    return execute_one(make_operation(argmax));
}

PyObject* py_sample(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    SamplingRows rows{};
    rows.logits = arguments.address<unsigned char>();
    rows.slots = arguments.address<int32_t>();
    rows.counts = arguments.address<int32_t>();
    rows.lengths = arguments.address<int32_t>();
    rows.temperature = arguments.address<double>();
    rows.top_p = arguments.address<double>();
    rows.min_p = arguments.address<double>();
    rows.top_k = arguments.address<int64_t>();
    rows.stream_key = arguments.address<int64_t>();
    rows.prompt_len = arguments.address<int64_t>();
    rows.largest = arguments.address<float>();
    rows.masses = arguments.address<float>();
    auto* tokens = arguments.address<int64_t>();
    rows.num_rows = arguments.integer();
    rows.vocab_size = arguments.integer();
    rows.stride = arguments.integer();
    rows.parameter_stride = arguments.integer();
    rows.type = arguments.type();
    if (!arguments.are_right()) return nullptr;
    const Operation operations[] = {make_operation(SurveyLogits{rows}), make_operation(DrawTokens{rows, tokens})};
    execute(operations, 2, rows.num_rows > 4);
    Py_RETURN_NONE;
}

PyObject* py_new_plan(PyObject*, PyObject* const* values, Py_ssize_t count) {
    return Arguments(values, count).are_right() ? capsule(new AttentionPlan, kPlan) : nullptr;
}

AttentionRows rows_of(Arguments& arguments) {
    AttentionRows rows{};
    rows.counts = arguments.address<int32_t>();
    rows.query_starts = arguments.address<int32_t>();
    rows.seq_lens = arguments.address<int32_t>();
    rows.block_tables = arguments.address<int32_t>();
    rows.slots = arguments.address<int32_t>();
    rows.slot_mapping = arguments.address<int64_t>();
    rows.table_stride = arguments.integer();
    rows.block_size = (int32_t)arguments.integer();
    rows.window = (int32_t)arguments.integer();
    return rows;
}

PyObject* py_plan_attention(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    PlanAttention plan{};
    plan.plan = arguments.object<AttentionPlan>(kPlan);
    plan.rows = rows_of(arguments);
    plan.group_size = (int32_t)arguments.integer();
    if (!arguments.are_right()) return nullptr;
    if (g_owners != nullptr && PyList_Append(g_owners, values[0]) != 0) return nullptr;
    return execute_one(make_operation(plan));
}

CacheFactors factors_of(Arguments& arguments) {
    CacheFactors factors{};
    factors.first = arguments.address<float>();
    factors.half = arguments.integer();
    factors.block = arguments.integer();
    factors.head = (int32_t)arguments.integer();
    factors.token = (int32_t)arguments.integer();
    factors.are_given = (int32_t)arguments.integer();
    return factors;
}

PyObject* py_attention(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    AttentionPlan* plan = arguments.object<AttentionPlan>(kPlan);
    const AttentionRows rows = rows_of(arguments);
    AttentionLayer layer{};
    layer.qkv = arguments.address<void>();
    layer.cache = arguments.address<unsigned char>();
    layer.value_offset = arguments.integer();
    layer.block_stride = arguments.integer();
    layer.num_heads = (int32_t)arguments.integer();
    layer.num_kv_heads = (int32_t)arguments.integer();
    layer.head_dim = (int32_t)arguments.integer();
    layer.type = arguments.type();
    layer.cache_type = (CacheType)arguments.integer();
    layer.factors = factors_of(arguments);
    layer.sinks = arguments.address<float>();
    layer.slopes = arguments.address<float>();
    RotateAndStore rotate{};
    rotate.layer = layer;
    rotate.rows = rows;
    rotate.query_norm = arguments.address<void>();
    rotate.key_norm = arguments.address<void>();
    rotate.eps = (float)arguments.number();
    rotate.norm_type = arguments.type();
    rotate.cos = arguments.address<void>();
    rotate.sin = arguments.address<void>();
    rotate.rotary = (int32_t)arguments.integer();
    void* to = arguments.address<void>();
    const auto scale = (float)arguments.number(), softcap = (float)arguments.number();
    if (!arguments.are_right()) return nullptr;
    const Operation operations[] = {
        make_operation(rotate),
        make_operation(Attend{plan, layer, rows, to, scale, softcap}),
        make_operation(MergeSplits{plan, layer, to}),
    };
    execute(operations, 3, plan->units.size() > 4);
    Py_RETURN_NONE;
}

PyObject* py_packed_attention(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    PackedLayer layer{};
    void* qkv = arguments.address<void>();
    layer.qkv = qkv;
    layer.to = arguments.address<void>();
    layer.tiles = arguments.address<PackedTile>();
    layer.num_tiles = (int32_t)arguments.integer();
    layer.num_places = (int32_t)arguments.integer();
    layer.num_heads = (int32_t)arguments.integer();
    layer.num_kv_heads = (int32_t)arguments.integer();
    layer.head_dim = (int32_t)arguments.integer();
    layer.window = (int32_t)arguments.integer();
    layer.scale = (float)arguments.number();
    layer.softcap = (float)arguments.number();
    layer.type = arguments.type();
    RotateAndStore rotate{};
    rotate.layer.qkv = qkv;
    rotate.layer.num_heads = layer.num_heads;
    rotate.layer.num_kv_heads = layer.num_kv_heads;
    rotate.layer.head_dim = layer.head_dim;
    rotate.layer.type = layer.type;
    rotate.rows.counts = arguments.address<int32_t>();
    rotate.query_norm = arguments.address<void>();
    rotate.key_norm = arguments.address<void>();
    rotate.eps = (float)arguments.number();
    rotate.norm_type = arguments.type();
    rotate.cos = arguments.address<void>();
    rotate.sin = arguments.address<void>();
    rotate.rotary = (int32_t)arguments.integer();
    if (!arguments.are_right()) return nullptr;
    Operation operations[3];
    size_t num_operations = 0;
    if (rotate.rotary > 0 || rotate.query_norm != nullptr) operations[num_operations++] = make_operation(rotate);
    operations[num_operations++] = make_operation(StagePacked{layer});
    operations[num_operations++] = make_operation(AttendPacked{layer});
    execute(operations, num_operations, layer.num_tiles > 4);
    Py_RETURN_NONE;
}

Rotation rotation_of(Arguments& arguments) {
    Rotation rotation{};
    rotation.cos = arguments.address<void>();
    rotation.sin = arguments.address<void>();
    rotation.size = (int32_t)arguments.integer();
    rotation.is_interleaved = (int32_t)arguments.integer();
    return rotation;
}

PyObject* py_rotate_heads(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    RotateHeads rotate{};
    rotate.x = arguments.address<void>();
    rotate.to = arguments.address<void>();
    rotate.rotation = rotation_of(arguments);
    rotate.is_last = (int32_t)arguments.integer();
    rotate.num_tokens = arguments.integer();
    rotate.num_heads = (int32_t)arguments.integer();
    rotate.head_dim = (int32_t)arguments.integer();
    rotate.x_stride = arguments.integer();
    rotate.x_head = arguments.integer();
    rotate.to_stride = arguments.integer();
    rotate.to_head = arguments.integer();
    rotate.type = arguments.type();
    if (!arguments.are_right()) return nullptr;
    return execute_one(make_operation(rotate));
}

PyObject* py_store_latent(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    StoreLatent store{};
    store.latent = arguments.address<unsigned char>();
    store.cache = arguments.address<unsigned char>();
    store.slot_mapping = arguments.address<int64_t>();
    store.num_tokens = arguments.integer();
    store.row_bytes = arguments.integer();
    store.row_stride = arguments.integer();
    store.block_stride = arguments.integer();
    store.block_size = arguments.integer();
    store.type = arguments.type();
    store.cache_type = (CacheType)arguments.integer();
    store.factors = factors_of(arguments);
    store.norm = arguments.address<void>();
    store.norm_type = arguments.type();
    store.eps = (float)arguments.number();
    store.rotation = rotation_of(arguments);
    if (!arguments.are_right()) return nullptr;
    return execute_one(make_operation(store));
}

PyObject* py_latent_attention(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    AttentionPlan* plan = arguments.object<AttentionPlan>(kPlan);
    const AttentionRows rows = rows_of(arguments);
    LatentLayer layer{};
    layer.q = arguments.address<void>();
    layer.cache = arguments.address<void>();
    layer.to = arguments.address<void>();
    layer.block_stride = arguments.integer();
    layer.num_tokens = (int32_t)arguments.integer();
    layer.num_heads = (int32_t)arguments.integer();
    layer.group_size = (int32_t)arguments.integer();
    layer.rank = (int32_t)arguments.integer();
    layer.size = (int32_t)arguments.integer();
    layer.scale = (float)arguments.number();
    layer.type = arguments.type();
    layer.cache_type = (CacheType)arguments.integer();
    layer.factors = factors_of(arguments);
    layer.sinks = arguments.address<float>();
    layer.chosen = arguments.address<int32_t>();
    layer.num_chosen = (int32_t)arguments.integer();
    if (!arguments.are_right()) return nullptr;
    if (g_owners != nullptr && PyList_Append(g_owners, values[0]) != 0) return nullptr;
    const Operation operations[] = {
        layer.chosen == nullptr ? make_operation(PlanAttention{plan, rows, layer.group_size})
                                : make_operation(PlanChosen{plan, rows, layer.chosen, layer.num_chosen}),
        make_operation(AttendLatent{plan, layer, rows}),
        make_operation(MergeLatent{plan, layer, rows}),
    };
    execute(operations, 3, true);
    Py_RETURN_NONE;
}

PyObject* py_choose_tokens(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    AttentionPlan* plan = arguments.object<AttentionPlan>(kPlan);
    const AttentionRows rows = rows_of(arguments);
    IndexLayer layer{};
    layer.q = arguments.address<unsigned char>();
    layer.weights = arguments.address<float>();
    layer.cache = arguments.address<unsigned char>();
    layer.chosen = arguments.address<int32_t>();
    layer.block_stride = arguments.integer();
    layer.num_tokens = (int32_t)arguments.integer();
    layer.num_heads = (int32_t)arguments.integer();
    layer.head_dim = (int32_t)arguments.integer();
    layer.num_chosen = (int32_t)arguments.integer();
    layer.type = arguments.type();
    if (!arguments.are_right()) return nullptr;
    if (g_owners != nullptr && PyList_Append(g_owners, values[0]) != 0) return nullptr;
    const Operation operations[] = {
        make_operation(PlanIndex{plan, rows}),
        make_operation(ScoreKeys{plan, layer, rows}),
        make_operation(ChooseKeys{plan, layer, rows}),
    };
    execute(operations, 3, true);
    Py_RETURN_NONE;
}

StateRows state_rows_of(Arguments& arguments) {
    StateRows rows{};
    rows.counts = arguments.address<int32_t>();
    rows.query_starts = arguments.address<int32_t>();
    rows.seq_lens = arguments.address<int32_t>();
    rows.block_tables = arguments.address<int32_t>();
    rows.slots = arguments.address<int32_t>();
    rows.table_stride = arguments.integer();
    rows.num_columns = (int32_t)arguments.integer();
    rows.page_size = (int32_t)arguments.integer();
    rows.num_places = (int32_t)arguments.integer();
    return rows;
}

StatePages state_pages_of(Arguments& arguments) {
    StatePages states{};
    states.memory = arguments.address<void>();
    states.block_stride = arguments.integer();
    states.place_stride = arguments.integer();
    return states;
}

// Steps of more tokens let other Python threads run meanwhile.
constexpr int64_t kShortStep = 16;

PyObject* py_causal_conv(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    CausalConv conv{};
    conv.rows = state_rows_of(arguments);
    conv.states = state_pages_of(arguments);
    conv.x = arguments.address<void>();
    conv.weight = arguments.address<void>();
    conv.bias = arguments.address<void>();
    conv.to = arguments.address<void>();
    conv.x_stride = arguments.integer();
    conv.num_tokens = arguments.integer();
    conv.channels = (int32_t)arguments.integer();
    conv.width = (int32_t)arguments.integer();
    conv.type = arguments.type();
    if (!arguments.are_right()) return nullptr;
    const Operation operation = make_operation(conv);
    execute(&operation, 1, conv.num_tokens > kShortStep);
    Py_RETURN_NONE;
}

PyObject* py_state_space_scan(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    StateSpaceScan scan{};
    scan.rows = state_rows_of(arguments);
    scan.states = state_pages_of(arguments);
    scan.x = arguments.address<void>();
    scan.dt = arguments.address<void>();
    scan.b = arguments.address<void>();
    scan.c = arguments.address<void>();
    scan.a_log = arguments.address<float>();
    scan.d = arguments.address<float>();
    scan.dt_bias = arguments.address<float>();
    scan.to = arguments.address<void>();
    scan.x_stride = (int32_t)arguments.integer();
    scan.dt_stride = (int32_t)arguments.integer();
    scan.b_stride = (int32_t)arguments.integer();
    scan.c_stride = (int32_t)arguments.integer();
    scan.num_tokens = (int32_t)arguments.integer();
    scan.num_heads = (int32_t)arguments.integer();
    scan.head_dim = (int32_t)arguments.integer();
    scan.num_groups = (int32_t)arguments.integer();
    scan.state_size = (int32_t)arguments.integer();
    scan.least_step = (float)arguments.number();
    scan.most_step = (float)arguments.number();
    scan.type = arguments.type();
    if (!arguments.are_right()) return nullptr;
    const Operation operation = make_operation(scan);
    execute(&operation, 1, scan.num_tokens > kShortStep);
    Py_RETURN_NONE;
}

PyObject* py_gated_norm(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    GatedNorm norm{};
    norm.x = arguments.address<void>();
    norm.gate = arguments.address<void>();
    norm.weight = arguments.address<void>();
    norm.to = arguments.address<void>();
    norm.num_rows = arguments.integer();
    norm.size = arguments.integer();
    norm.group_size = arguments.integer();
    norm.x_stride = arguments.integer();
    norm.gate_stride = arguments.integer();
    norm.eps = (float)arguments.number();
    norm.type = arguments.type();
    norm.weight_type = arguments.type();
    if (!arguments.are_right()) return nullptr;
    return execute_one(make_operation(norm));
}

PyObject* py_choose_experts(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    ChooseExperts choice{};
    choice.logits = arguments.address<float>();
    choice.correction = arguments.address<float>();
    choice.chosen = arguments.address<int64_t>();
    choice.shares = arguments.address<float>();
    choice.num_tokens = (int32_t)arguments.integer();
    choice.num_experts = (int32_t)arguments.integer();
    choice.num_chosen = (int32_t)arguments.integer();
    choice.score = (Score)arguments.integer();
    choice.num_groups = (int32_t)arguments.integer();
    choice.num_open_groups = (int32_t)arguments.integer();
    choice.num_ranked = (int32_t)arguments.integer();
    choice.scale = (float)arguments.number();
    choice.jitter = (float)arguments.number();
    choice.renormalises = arguments.integer() != 0;
    if (!arguments.are_right()) return nullptr;
    return execute_one(make_operation(choice));
}

PyObject* py_experts_workspace(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    ExpertLayer layer{};
    layer.num_tokens = (int32_t)arguments.integer();
    layer.num_chosen = (int32_t)arguments.integer();
    layer.num_experts = (int32_t)arguments.integer();
    layer.hidden_size = (int32_t)arguments.integer();
    layer.size = (int32_t)arguments.integer();
    layer.type = arguments.type();
    if (!arguments.are_right()) return nullptr;
    return PyLong_FromLongLong(experts_workspace_bytes(layer));
}

PyObject* py_experts(PyObject*, PyObject* const* values, Py_ssize_t count) {
    Arguments arguments(values, count);
    ExpertLayer layer{};
    layer.x = arguments.address<unsigned char>();
    layer.chosen = arguments.address<int64_t>();
    layer.shares = arguments.address<float>();
    layer.y = arguments.address<void>();
    layer.workspace = arguments.address<unsigned char>();
    for (ExpertWeights* weights : {&layer.gate_up, &layer.down}) {
        weights->packed = arguments.address<unsigned char>();
        weights->bias = arguments.address<void>();
        weights->expert_bytes = arguments.integer();
        weights->type = arguments.type();
    }
    layer.x_stride = arguments.integer();
    layer.num_tokens = (int32_t)arguments.integer();
    layer.num_chosen = (int32_t)arguments.integer();
    layer.num_experts = (int32_t)arguments.integer();
    layer.hidden_size = (int32_t)arguments.integer();
    layer.size = (int32_t)arguments.integer();
    layer.type = arguments.type();
    layer.activation = (ExpertActivation)arguments.integer();
    layer.alpha = (float)arguments.number();
    layer.limit = (float)arguments.number();
    layer.weighs_inputs = arguments.integer() != 0;
    if (!arguments.are_right()) return nullptr;
    Operation operations[kNumExpertOperations];
    make_expert_operations(layer, operations);
    execute(operations, kNumExpertOperations, 6. * layer.num_pairs() * layer.hidden_size * layer.size > kLongFlops);
    Py_RETURN_NONE;
}

#define OCTAVO_METHOD(name) {#name, reinterpret_cast<PyCFunction>(py_##name), METH_FASTCALL, nullptr}

PyMethodDef g_methods[] = {
    OCTAVO_METHOD(set_num_threads), OCTAVO_METHOD(num_threads), OCTAVO_METHOD(bind_threads), OCTAVO_METHOD(start_tape),
    OCTAVO_METHOD(end_tape), OCTAVO_METHOD(replay), OCTAVO_METHOD(packed_bytes), OCTAVO_METHOD(quantize),
    OCTAVO_METHOD(pack), OCTAVO_METHOD(gather_packed), OCTAVO_METHOD(linear), OCTAVO_METHOD(combine), OCTAVO_METHOD(xielu),
    OCTAVO_METHOD(split_identities),
    OCTAVO_METHOD(rms_norm), OCTAVO_METHOD(head_linear), OCTAVO_METHOD(gather), OCTAVO_METHOD(pack_int8),
    OCTAVO_METHOD(layer_norm), OCTAVO_METHOD(activate), OCTAVO_METHOD(prepare_inputs), OCTAVO_METHOD(append_tokens),
    OCTAVO_METHOD(argmax), OCTAVO_METHOD(sample), OCTAVO_METHOD(new_plan), OCTAVO_METHOD(plan_attention),
    OCTAVO_METHOD(attention), OCTAVO_METHOD(packed_attention), OCTAVO_METHOD(rotate_heads), OCTAVO_METHOD(store_latent),
    OCTAVO_METHOD(latent_attention), OCTAVO_METHOD(choose_tokens), OCTAVO_METHOD(causal_conv),
    OCTAVO_METHOD(state_space_scan), OCTAVO_METHOD(gated_norm), OCTAVO_METHOD(choose_experts),
    OCTAVO_METHOD(experts_workspace), OCTAVO_METHOD(experts),
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef g_module = {PyModuleDef_HEAD_INIT, OCTAVO_STRING(OCTAVO_MODULE), nullptr, -1, g_methods,
                        nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace octavo

PyMODINIT_FUNC OCTAVO_CONCAT(PyInit_, OCTAVO_MODULE)() {
    if (const char* reason = octavo::why_no_tiles()) {
        PyErr_SetString(PyExc_ImportError, reason);
        return nullptr;
    }
    return PyModule_Create(&octavo::g_module);
}
