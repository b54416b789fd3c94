"""What a checkpoint's quantization_config says, layer by layer, and what is rejected in which words."""

from typing import Any

import pytest
from float8_checkpoints import compressed_tensors
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.config import EngineConfig
from octavo.errors import UnsupportedModelError
from octavo.hub import ModelConfig
from octavo.hub.config_file import parse_config
from octavo.quantization.config import QuantizationConfig, SchemeOptions
from octavo.quantization.float8 import Float8Scheme
from octavo.quantization.resolve import resolve_quantization, stored_quantization
from octavo.quantization.scheme import PlainScheme

SIZES = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 100,
}
LAYER = "model.layers.0.mlp.down_proj"


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


@pytest.mark.parametrize("key", ["ignored_layers", "modules_to_not_convert"])
@pytest.mark.parametrize("name", [LAYER, "model.layers.0", "mlp", "down_proj"])
def test_fp8_leaves_named_modules_out(key: str, name: str) -> None:
    found = _stored({"quant_method": "fp8", key: [name]})
    assert found.scheme(LAYER) == PlainScheme()
    assert found.scheme("model.layers.10.self_attn.q_proj") == Float8Scheme("tensor")
    assert found.head_scheme("lm_head") == PlainScheme()


REJECTED: dict[str, tuple[Any, str]] = {
    "method": ({"quant_method": "awq", "bits": 4}, r"'awq'.*not supported; supported are compressed-tensors and fp8"),
    "no-method": ({"bits": 4}, "None"),
    "odd-method": ({"quant_method": ["fp8"]}, "not supported"),
    "blocks": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "scales per block"),
    "odd-names": ({"quant_method": "fp8", "ignored_layers": 5}, "ignored_layers = 5; it must be a list of names"),
    "four-bits": (compressed_tensors(weights={"num_bits": 4, "type": "int"}), r"group_0 .*num_bits 4.*supported are"),
    "format": (compressed_tensors(format="pack-quantized"), "format 'pack-quantized'"),
    "grouped": (compressed_tensors(weights={"strategy": "group", "group_size": 128}), "strategy 'group'"),
    "dynamic-weights": (compressed_tensors(weights={"dynamic": True}), "dynamic True"),
    "grouped-activations": (compressed_tensors(input_activations={"strategy": "group"}), "strategy 'group'"),
    "weights-only": (compressed_tensors(input_activations=None), "activations not quantised"),
    "output": (compressed_tensors(output_activations={"num_bits": 8}), "not supported"),
    "sparse": (compressed_tensors(sparsity_config={"format": "sparse-24-bitmask"}), "sparse-24-bitmask"),
    "transforms": (compressed_tensors(transform_config={"config_groups": {"a": 1}}), "transform_config"),
    "no-groups": (compressed_tensors(config_groups={}), "no config_groups"),
    "odd-groups": (compressed_tensors(config_groups=[1]), "no config_groups"),
    "odd-targets": (compressed_tensors(targets="Linear"), "no list of names"),
    "odd-ignore": (compressed_tensors(ignore=[3]), "no list of names"),
    "pattern": (compressed_tensors(ignore=["re:("]), "no regular expression"),
    "no-object": ("fp8", "quantization_config"),
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


@given(st.sampled_from(["compressed-tensors", "fp8"]), st.data())
@settings(max_examples=200)
def test_whatever_it_says_it_is_read_or_rejected(method: str, data: st.DataObject) -> None:
    config = compressed_tensors() | {"activation_scheme": "dynamic", "modules_to_not_convert": []}
    group = config["config_groups"]["group_0"]
    config["config_groups"] = {"group_0": {key: data.draw(st.just(group[key]) | _VALUES) for key in group}}
    config |= {key: data.draw(st.just(config[key]) | _VALUES) for key in config}
    try:
        found = _stored(config | {"quant_method": method})
    except UnsupportedModelError:
        return
    assert isinstance(found.scheme(LAYER), Float8Scheme | PlainScheme)


@pytest.mark.parametrize(
    ("has_float8", "deterministic", "is_native"),
    [(False, False, False), (True, False, True), (True, True, False)],
)
def test_values_are_multiplied_as_the_device_can(has_float8: bool, deterministic: bool, is_native: bool) -> None:
    config = EngineConfig.from_kwargs(model="m", quantization="fp8", deterministic=deterministic)
    found = resolve_quantization(config, parse_config(SIZES), has_float8=has_float8)
    assert found.scheme(LAYER) == Float8Scheme("plain", is_native, deterministic)
    assert found.plain == PlainScheme(deterministic)


def test_gguf_files_stay_as_they_are_if_that_is_wanted() -> None:
    model = parse_config({**SIZES, "quantization_config": {"quant_method": "gguf", "types": {LAYER: "Q4_0"}}})
    default = EngineConfig.from_kwargs(model="m")
    assert resolve_quantization(default, model, has_float8=False, has_blocks=True).description == ""
    config = EngineConfig.from_kwargs(model="m", quantization="gguf")
    assert resolve_quantization(config, model, has_float8=False, has_blocks=True).description == "Q4_0"
    assert resolve_quantization(config, model, has_float8=False).description == "", "the device has no such kernels"


def test_gguf_confirms_what_is_there() -> None:
    config = EngineConfig.from_kwargs(model="m", quantization="gguf")
    assert config.model.quantization == "gguf"
    assert resolve_quantization(config, parse_config(SIZES), has_float8=True).description == ""
