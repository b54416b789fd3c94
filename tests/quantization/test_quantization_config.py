"""What a checkpoint's quantization_config says, layer by layer, and what is rejected in which words."""

from typing import Any, get_args

import pytest
import torch
from float8_checkpoints import compressed_tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from test_torchao_models import INT8

from octavo.config import EngineConfig
from octavo.config.values import REJECTED_VALUES, Quantization
from octavo.errors import ConfigError, UnsupportedModelError
from octavo.hub import ModelConfig
from octavo.hub.config_file import parse_config
from octavo.layers.build import Build
from octavo.models.registry import build_model
from octavo.quantization.config import QuantizationConfig, SchemeOptions
from octavo.quantization.float8 import Float8Scheme
from octavo.quantization.resolve import resolve_quantization, stored_quantization
from octavo.quantization.scheme import PlainScheme
from octavo.quantization.stored import StoredScheme

SIZES = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 100,
}
# vLLM 0.33
VLLM_NAMES = (
    "awq auto_awq fp8 fbgemm_fp8 fp_quant modelopt modelopt_fp4 modelopt_mxfp8 modelopt_mixed auto_gptq gptq "
    "gptq_marlin awq_marlin humming compressed-tensors experts_int8 quark moe_wna16 torchao inc mxfp4 gpt_oss_mxfp4 "
    "deepseek_v4_fp8 online fp8_per_tensor fp8_per_block fp8_per_channel int8_per_channel_weight_only nvfp4_per_token "
    "mxfp8"
)
LAYER = "model.layers.0.mlp.down_proj"
NVFP4 = {"quant_algo": "NVFP4"}


def _model(quantization: Any, key: str = "quantization_config") -> ModelConfig:
    return parse_config(SIZES | {key: quantization})


def _stored(quantization: Any) -> QuantizationConfig:
    return stored_quantization(_model(quantization), SchemeOptions())


def _group(target: str, strategy: str) -> dict[str, Any]:
    config = compressed_tensors(targets=[target], weights={"strategy": strategy})
    group: dict[str, Any] = config["config_groups"]["group_0"]
    return group


def test_the_older_key_is_read_as_well() -> None:
    config = _model(compressed_tensors(), "compression_config")
    assert stored_quantization(config, SchemeOptions()).scheme(LAYER) == Float8Scheme("channel")


def test_names_go_before_patterns_and_patterns_before_classes() -> None:
    config = compressed_tensors(ignore=[])
    config["config_groups"] = {
        "all": _group("Linear", "channel"),
        "patterns": _group(r"re:.*\.mlp\..*", "tensor"),
        "one": _group("model.layers.1.mlp.up_proj", "channel"),
    }
    found = _stored(config)
    assert found.scheme("model.layers.0.self_attn.q_proj") == Float8Scheme("channel")
    assert found.scheme("model.layers.1.mlp.down_proj") == Float8Scheme("tensor")
    assert found.scheme("model.layers.1.mlp.up_proj") == Float8Scheme("channel")
    assert found.head_scheme("lm_head") == Float8Scheme("channel")


def test_layers_outside_all_groups_are_plain() -> None:
    found = _stored(compressed_tensors(targets=["re:.*self_attn.*"]))
    assert found.scheme(LAYER) == found.head_scheme("lm_head") == PlainScheme()
    assert _stored(compressed_tensors(ignore=["Linear"])).scheme(LAYER) == PlainScheme()


def test_heads_are_ignored_by_their_names_in_checkpoints() -> None:
    """GPT-NeoX calls its head ``embed_out``."""
    raw = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
    raw |= {"architectures": ["GPTNeoXForCausalLM"], "rotary_pct": 0.25, "tie_word_embeddings": False}
    config = parse_config(raw | {"quantization_config": compressed_tensors(ignore=["embed_out"])})
    with torch.device("meta"):
        model = build_model(config, Build(stored_quantization(config, SchemeOptions())), 64)
    assert isinstance(model.get_submodule("lm_head").scheme, PlainScheme)


@pytest.mark.parametrize("key", ["ignored_layers", "modules_to_not_convert"])
@pytest.mark.parametrize("name", [LAYER, "model.layers.0", "mlp", "down_proj"])
def test_fp8_leaves_named_modules_out(key: str, name: str) -> None:
    found = _stored({"quant_method": "fp8", key: [name]})
    assert found.scheme(LAYER) == PlainScheme()
    assert found.scheme("model.layers.10.self_attn.q_proj") == Float8Scheme("tensor")
    assert found.head_scheme("lm_head") == PlainScheme()


@pytest.mark.parametrize(
    ("setting", "method", "own"),
    [
        ("modelopt_fp4", "modelopt", {"quant_algo": "NVFP4"}),
        ("modelopt", "modelopt_mixed", {"quant_algo": "MIXED_PRECISION", "quantized_layers": {LAYER: NVFP4}}),
        ("gptq_marlin", "gptq", {"bits": 4, "group_size": 32}),
        ("awq_marlin", "awq", {"bits": 4, "group_size": 32}),
        ("awq", "awq_marlin", {"bits": 4, "group_size": 32}),
        ("inc", "auto-round", {"bits": 4, "group_size": 32}),
        ("inc", "auto_round", {"bits": 3, "group_size": 32}),
        ("moe_wna16", "gptq", {"bits": 4, "group_size": 32}),
        ("moe_wna16", "awq_marlin", {"bits": 4, "group_size": 32}),
        ("mxfp8", "modelopt", {"quant_algo": "MXFP8"}),
        ("modelopt", "modelopt_mxfp8", {"quant_algo": "MXFP8"}),
        ("modelopt_mxfp8", "modelopt", {"quantization": {"quant_algo": "mxfp8"}}),
        ("modelopt", "modelopt", {"quant_algo": "FP8_PB_WO"}),
    ],
)
def test_other_names_of_methods_mean_the_same(setting: str, method: str, own: dict[str, Any]) -> None:
    model, chosen = _model({"quant_method": method, **own}), EngineConfig.from_kwargs(model="m", quantization=setting)
    found = resolve_quantization(chosen, model, has_float8=True)
    assert isinstance(found.scheme(LAYER), StoredScheme)
    with pytest.raises(ConfigError, match=r"'quark'.*quantised by"):
        resolve_quantization(EngineConfig.from_kwargs(model="m", quantization="quark"), model, has_float8=True)


@pytest.mark.parametrize("setting", ["moe_wna16", "mxfp8", "inc", "fbgemm_fp8", "gptq_marlin", "bitsandbytes"])
def test_names_of_checkpoints_methods_need_such_a_checkpoint(setting: str) -> None:
    chosen = EngineConfig.from_kwargs(model="m", quantization=setting)
    with pytest.raises(ConfigError, match=f"'{setting}', but the checkpoint is not quantised"):
        resolve_quantization(chosen, parse_config(SIZES), has_float8=True)
    other = _model({"quant_method": "torchao", "quant_type": {"default": INT8}})
    with pytest.raises(ConfigError, match=f"'{setting}', but the checkpoint is quantised by 'torchao'"):
        resolve_quantization(chosen, other, has_float8=True)


@pytest.mark.parametrize(
    ("setting", "algorithm"),
    [("modelopt_fp4", "FP8"), ("modelopt_mixed", "NVFP4"), ("modelopt_mxfp8", "FP8_PB_WO"), ("mxfp8", "NVFP4")],
)
def test_names_of_modelopts_algorithms_must_be_the_checkpoints(setting: str, algorithm: str) -> None:
    chosen = EngineConfig.from_kwargs(model="m", quantization=setting)
    with pytest.raises(
        ConfigError, match=f"'{setting}', but the checkpoint's weights have the quant_algo {algorithm};"
    ):
        resolve_quantization(chosen, _model({"quant_method": "modelopt", "quant_algo": algorithm}), has_float8=True)


def test_every_name_of_vllm_is_known() -> None:
    """It is a value of the setting, or rejected with a reason."""
    known = set(get_args(Quantization)) | set(REJECTED_VALUES["quantization"])
    assert set(VLLM_NAMES.split()) <= known


@pytest.mark.parametrize("setting", ["humming", "fp8_per_block", "experts_int8", "fp_quant"])
def test_methods_that_are_missing_are_rejected_with_a_reason(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"; {setting} (names|has|rounds|is)"):
        EngineConfig.from_kwargs(model="m", quantization=setting)


REJECTED: dict[str, tuple[Any, str]] = {
    "method": (
        {"quant_method": "quip", "bits": 4},
        r"'quip'.*not supported; supported are auto-round, awq, bitsandbytes",
    ),
    "no-method": ({"bits": 4}, "None"),
    "odd-method": ({"quant_method": ["fp8"]}, "not supported"),
    "blocks": (
        {"quant_method": "fp8", "weight_block_size": [128, 0]},
        r"weight_block_size = \[128, 0\]; it must be two whole numbers above 0",
    ),
    "bitsandbytes-none": ({"quant_method": "bitsandbytes"}, "neither 4 nor 8 bits"),
    "bitsandbytes-kind": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "int4"},
        "type 'int4'; supported are nf4 and fp4",
    ),
    "compressed-blocks": (
        compressed_tensors(weights={"strategy": "block", "block_structure": 128}),
        "strategy 'block'",
    ),
    "odd-names": ({"quant_method": "fp8", "ignored_layers": 5}, "ignored_layers = 5; it must be a list of names"),
    "one-bit": (
        compressed_tensors(format="pack-quantized", weights={"num_bits": 1, "type": "int"}),
        r"group_0 .*num_bits 1.*supported are",
    ),
    "group-of-none": (
        compressed_tensors(format="pack-quantized", weights={"num_bits": 4, "type": "int", "strategy": "group"}),
        r"strategy 'group'",
    ),
    "order": (
        compressed_tensors(format="pack-quantized", weights={"num_bits": 4, "type": "int", "actorder": "odd"}),
        r"group_0 .*num_bits 4",
    ),
    "awq-version": ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version 'gemv'; supported is gemm"),
    "awq-format": (
        {"quant_method": "awq", "bits": 4, "checkpoint_format": "gemv"},
        "version 'gemv'; supported is gemm",
    ),
    "awq-rules": ({"quant_method": "awq", "bits": 4, "dynamic": {"+:a": {"bits": 8}}}, "AWQ weights have 8 bits"),
    "no-weights": (compressed_tensors(weights=None), "weights not quantised, activations num_bits 8"),
    "awq-bits": ({"quant_method": "awq", "bits": 8}, "AWQ weights have 8 bits; supported are 4"),
    "awq-names": ({"quant_method": "awq", "w_bit": 4, "modules_to_not_convert": "a"}, "must be a list of names"),
    "format": (compressed_tensors(format="pack-quantized"), "format 'pack-quantized'"),
    "grouped": (compressed_tensors(weights={"strategy": "group", "group_size": 128}), "strategy 'group'"),
    "dynamic-weights": (compressed_tensors(weights={"dynamic": True}), "dynamic True"),
    "grouped-activations": (compressed_tensors(input_activations={"strategy": "group"}), "strategy 'group'"),
    "half-rounded": (compressed_tensors(input_activations={"num_bits": 4}), "activations num_bits 4"),
    "output": (compressed_tensors(output_activations={"num_bits": 8}), "not supported"),
    "output-of-integers": (
        compressed_tensors(
            format="pack-quantized",
            weights={"num_bits": 2, "type": "int"},
            input_activations=None,
            output_activations={"num_bits": 4, "type": "int"},
        ),
        "activations not quantised, outputs num_bits 4",
    ),
    "sparse": (compressed_tensors(sparsity_config={"format": "sparse-24-bitmask"}), "sparse-24-bitmask"),
    "transforms": (compressed_tensors(transform_config={"config_groups": {"a": 1}}), "transform_config"),
    "no-groups": (compressed_tensors(config_groups={}), "no config_groups"),
    "odd-groups": (compressed_tensors(config_groups=[1]), "no config_groups"),
    "odd-targets": (compressed_tensors(targets="Linear"), "no list of names"),
    "odd-ignore": (compressed_tensors(ignore=[3]), "no list of names"),
    "pattern": (compressed_tensors(ignore=["re:("]), "no regular expression"),
    "no-object": ("fp8", "quantization_config"),
    "auto-round-bits": (
        {"quant_method": "auto-round", "bits": 4, "group_size": 32, "extra_config": {"a.b": {"bits": 9}}},
        "AutoRound weights of a.b have 9 bits",
    ),
    "auto-round-kind": (
        {"quant_method": "auto-round", "bits": 4, "group_size": 32, "data_type": "mx_int"},
        "data_type 'mx_int'",
    ),
    "auto-round-packing": (
        {"quant_method": "auto-round", "bits": 4, "group_size": 32, "packing_format": "auto_round:llm_compressor"},
        "packing_format 'auto_round:llm_compressor'; supported are",
    ),
    "auto-round-changes": ({"quant_method": "auto-round", "bits": 4, "extra_config": {"a": 4}}, "extra_config = 4"),
    "bitsandbytes-storage": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_storage": "int64"},
        "bnb_4bit_quant_storage = 'int64'; it must be one of uint8",
    ),
    "gptq-bits": ({"quant_method": "gptq", "bits": 5}, "GPTQ weights have 5 bits; supported are 2, 3, 4 and 8"),
    "gptq-no-bits": ({"quant_method": "gptq"}, "lacks 'bits'"),
    "gptq-group": ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size = 0; it must be a whole number"),
    "gptq-format": ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "format 'marlin'.*supported"),
    "gptq-dynamic": ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:(": {}}}, "no regular expression"),
    "gptq-override": ({"quant_method": "gptq", "bits": 4, "dynamic": {"a": 1}}, "dynamic = 1; it must be an object"),
    "gptq-modules": (
        {"quant_method": "gptq", "bits": 4, "modules_in_block_to_quantize": "all"},
        "modules_in_block_to_quantize = 'all'; it must be lists of names",
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_what_is_not_supported_is_named(name: str) -> None:
    quantization, sentence = REJECTED[name]
    with pytest.raises(UnsupportedModelError, match=sentence) as caught:
        _stored(quantization)
    assert len(str(caught.value)) < 500


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["fp8", "re:(", "channel"]),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=4,
)


@given(
    st.sampled_from(["compressed-tensors", "fp8", "gptq", "awq", "auto-round", "bitsandbytes", "modelopt", "quark"]),
    st.data(),
)
@settings(max_examples=200)
def test_whatever_it_says_it_is_read_or_rejected(method: str, data: st.DataObject) -> None:
    own = {
        "bits": 4,
        "group_size": 32,
        "desc_act": False,
        "dynamic": {},
        "version": "gemm",
        "load_in_8bit": True,
        "quant_algo": "FP8",
    }
    config = compressed_tensors() | own | {"activation_scheme": "dynamic", "modules_to_not_convert": []}
    config |= {"extra_config": {}, "block_name_to_quantize": "model", "export": {}, "layer_quant_config": {}}
    group = config["config_groups"]["group_0"]
    config["config_groups"] = {"group_0": {key: data.draw(st.just(group[key]) | _VALUES) for key in group}}
    config |= {key: data.draw(st.just(config[key]) | _VALUES) for key in config}
    try:
        found = _stored(config | {"quant_method": method})
    except UnsupportedModelError:
        return
    assert isinstance(found.scheme(LAYER), Float8Scheme | PlainScheme | StoredScheme)


@pytest.mark.parametrize(
    ("has_float8", "deterministic", "is_native"),
    [(False, False, False), (True, False, True), (True, True, False)],
)
def test_values_are_multiplied_as_the_device_can(has_float8: bool, deterministic: bool, is_native: bool) -> None:
    config = EngineConfig.from_kwargs(model="m", quantization="fp8", deterministic=deterministic)
    found = resolve_quantization(config, parse_config(SIZES), has_float8=has_float8)
    assert found.scheme(LAYER) == Float8Scheme("plain", is_native, deterministic)
    assert found.plain == PlainScheme(deterministic)


@pytest.mark.parametrize(
    ("settings", "stored"),
    [({}, "Q4_0"), ({"dtype": "float32"}, ""), ({"dtype": "float32", "quantization": "gguf"}, "Q4_0")],
)
def test_gguf_files_stay_as_they_are_unless_float32_is_asked_for(settings: dict[str, Any], stored: str) -> None:
    model = parse_config({**SIZES, "quantization_config": {"quant_method": "gguf", "types": {LAYER: "Q4_0"}}})
    config = EngineConfig.from_kwargs(model="m", **settings)
    assert resolve_quantization(config, model, has_float8=False, has_blocks=True).description == stored
    assert resolve_quantization(config, model, has_float8=False).description == "", "the device has no such kernels"


@pytest.mark.parametrize(
    ("quantization", "on_a_cpu", "on_a_gpu"),
    [
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128},
            "GPTQ: 4-bit integers, a scale per output and 128 inputs; kept as Q4_0, activations in 8 bits",
            "GPTQ: 4-bit integers, a scale per output and 128 inputs; unpacked in each GEMM",
        ),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 64},
            "AWQ: 4-bit integers, a scale per output and 64 inputs; kept as Q4_1, activations in 8 bits",
            "AWQ: 4-bit integers, a scale per output and 64 inputs; unpacked in each GEMM",
        ),
        (
            compressed_tensors(
                format="int-quantized", weights={"type": "int"}, input_activations={"type": "int", "num_bits": 8}
            ),
            "compressed-tensors: 8-bit integers, a scale per output; multiplied as int8, activations by token",
            "compressed-tensors: 8-bit integers, a scale per output; multiplied as int8, activations by token",
        ),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 128]},
            "float8, a scale per block of 128 × 128; rounded to int8, activations in 8 bits",
            "float8, a scale per block of 128 × 128; unpacked in each GEMM",
        ),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            "bitsandbytes: nf4, a scale per output and 64 inputs; expanded at load",
            "bitsandbytes: nf4, a scale per output and 64 inputs; unpacked in each GEMM",
        ),
    ],
    ids=["gptq", "awq", "int8", "blocks", "nf4"],
)
def test_what_the_plan_says(quantization: dict[str, Any], on_a_cpu: str, on_a_gpu: str) -> None:
    settings, model = EngineConfig.from_kwargs(model="m"), _model(quantization)
    cpu = resolve_quantization(settings, model, has_float8=False, has_blocks=True)
    gpu = resolve_quantization(settings, model, has_float8=True, has_groups=True)
    assert (cpu.description, gpu.description) == (on_a_cpu, on_a_gpu)
    in_float32 = EngineConfig.from_kwargs(model="m", dtype="float32")
    for has in ({"has_float8": False, "has_blocks": True}, {"has_float8": True, "has_groups": True}):
        assert resolve_quantization(in_float32, model, **has).description.endswith("; expanded at load")


def test_gguf_confirms_what_is_there() -> None:
    config = EngineConfig.from_kwargs(model="m", quantization="gguf")
    assert config.model.quantization == "gguf"
    assert resolve_quantization(config, parse_config(SIZES), has_float8=True).description == ""
