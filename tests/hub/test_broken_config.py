"""Configurations that lie or are broken: each is refused in a sentence that names what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import OctavoError, UnsupportedModelError
from octavo.hub import load_generation_config, load_model_config, resolve
from octavo.hub.config_file import parse_config

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
}
GOOD = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16, **SIZES}
UNKNOWN = {"architectures": ["NewForCausalLM"], **SIZES}


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("value", [0, -1, 10**12, 10**400, 2.5, "64", True, [64], {}, float("nan")])
def test_sizes_that_cannot_be(key: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=key) as caught:
        parse_config({**GOOD, key: value})
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("key", [key for key in SIZES if key != "num_key_value_heads"])
def test_sizes_that_are_missing(key: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"lacks '{key}'"):
        parse_config({name: value for name, value in UNKNOWN.items() if name != key})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": None}, "architectures"),
        ({"architectures": [3]}, "architectures"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_key_value_heads": 8}, "num_key_value_heads"),
        ({"head_dim": None, "hidden_size": 66}, "hidden_size"),
        ({"head_dim": 15}, "head_dim"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_theta": "10000"}, "rope_theta"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": 7}}, "rope_type"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        ({"layer_types": ["full_attention", ["nested"]]}, "nested"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"use_sliding_window": True, "sliding_window": -3}, "sliding_window"),
        ({"use_sliding_window": True, "max_window_layers": "all"}, "max_window_layers"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"attention_bias": 1}, "attention_bias"),
        ({"hidden_act": None}, "hidden_act"),
        ({"dtype": "int8"}, "dtype"),
        ({"torch_dtype": 16}, "dtype"),
        ({"max_position_embeddings": 10**12}, "max_position_embeddings"),
        ({"architectures": ["Gemma3ForCausalLM"], "final_logit_softcapping": 0}, "final_logit_softcapping"),
        ({"use_bidirectional_attention": "vision"}, "use_bidirectional_attention"),
    ],
)
def test_values_that_cannot_be(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        parse_config({**GOOD, **changes})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe{}",
        b'{"a": 1} trailing',
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"vocab_size": ' + b"9" * 10_000 + b"}",
        b'{"hidden_size": 64, "hidden_size": 128}',
    ],
    ids=["empty", "cut", "list", "null", "not-utf8", "trailing", "deep-lists", "deep-objects", "digits", "twice"],
)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_files_that_are_no_json_object(content: bytes, name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GOOD))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnsupportedModelError, match=name):
        load_model_config(resolve(str(tmp_path)))


def test_a_file_of_absurd_length_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UnsupportedModelError, match="larger than"):
        load_model_config(resolve(str(tmp_path)))


def test_no_generation_config_is_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GOOD))
    assert load_generation_config(resolve(str(tmp_path))) == {}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from(
    [
        *GOOD,
        "rope_parameters",
        "rope_scaling",
        "layer_types",
        "sliding_window",
        "use_sliding_window",
        "max_window_layers",
        "sliding_window_pattern",
        "rope_local_base_freq",
        "partial_rotary_factor",
        "hidden_activation",
        "query_pre_attn_scalar",
        "eos_token_id",
        "bos_token_id",
        "dtype",
        "text_config",
    ]
)


@given(st.sampled_from(["Qwen3ForCausalLM", "Gemma3ForCausalLM", "OtherLM"]), st.dictionaries(keys, json_values))
@settings(max_examples=300)
def test_whatever_it_says_it_is_read_or_refused(architecture: str, changes: dict[str, Any]) -> None:
    try:
        config = parse_config({**GOOD, "architectures": [architecture], **changes})
    except OctavoError:
        return
    assert config.num_heads % config.num_kv_heads == 0
    assert len(config.layer_types) == config.num_layers
    assert (config.sliding_window is None) == ("sliding_attention" not in config.layer_types)
    assert all(0 <= token < config.vocab_size for token in config.eos_token_ids)
