"""Configurations of every family, held against what transformers makes of the same files."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import (
    AutoConfig,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from octavo.hub import ModelConfig, RopeConfig, load_generation_config, load_model_config, resolve
from octavo.hub.config_file import parse_config
from octavo.hub.families.gemma import GemmaFields
from octavo.hub.families.llama import LlamaFields

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

CONFIGS: dict[str, tuple[str, PreTrainedConfig]] = {
    "llama": ("LlamaForCausalLM", LlamaConfig()),
    "llama-3.1": ("LlamaForCausalLM", LlamaConfig(rope_parameters=LLAMA3_ROPE, num_key_value_heads=8)),
    "llama-biased": ("LlamaForCausalLM", LlamaConfig(attention_bias=True, mlp_bias=True, eos_token_id=[2, 7])),
    "mistral": ("MistralForCausalLM", MistralConfig()),
    "mistral-full": ("MistralForCausalLM", MistralConfig(sliding_window=None, head_dim=64)),
    "qwen2": ("Qwen2ForCausalLM", Qwen2Config()),
    "qwen2-window": ("Qwen2ForCausalLM", Qwen2Config(use_sliding_window=True, max_window_layers=5)),
    "qwen3": ("Qwen3ForCausalLM", Qwen3Config(tie_word_embeddings=True)),
    "qwen3-window": ("Qwen3ForCausalLM", Qwen3Config(use_sliding_window=True)),
    "gemma3": ("Gemma3ForCausalLM", Gemma3TextConfig()),
    "gemma3-capped": (
        "Gemma3ForCausalLM",
        Gemma3TextConfig(final_logit_softcapping=30.0, attn_logit_softcapping=50.0, query_pre_attn_scalar=168),
    ),
}


def load(folder: Path, raw: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(raw))
    return load_model_config(resolve(str(folder)))


def assert_alike(ours: ModelConfig, theirs: PreTrainedConfig) -> None:
    kind = theirs.model_type
    assert ours.model_type == kind
    for name, hf_name in {
        "hidden_size": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads",
        "intermediate_size": "intermediate_size",
        "vocab_size": "vocab_size",
        "max_position_embeddings": "max_position_embeddings",
        "rms_norm_eps": "rms_norm_eps",
        "tie_word_embeddings": "tie_word_embeddings",
    }.items():
        assert getattr(ours, name) == getattr(theirs, hf_name), name
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    assert ours.head_dim == head_dim
    assert ours.hidden_act == (getattr(theirs, "hidden_activation", None) or theirs.hidden_act)
    if kind == "gemma3_text":
        gemma = ours.own_as(GemmaFields)
        assert gemma.attention_bias == theirs.attention_bias
        assert gemma.query_pre_attn_scalar == theirs.query_pre_attn_scalar
        assert gemma.attn_logit_softcap == theirs.attn_logit_softcapping
        assert gemma.final_logit_softcap == theirs.final_logit_softcapping
    elif kind in ("llama", "qwen3"):
        bias = theirs.attention_bias
        assert ours.own == LlamaFields(bias, output_bias=bias, mlp_bias=getattr(theirs, "mlp_bias", False))
    else:
        assert ours.own is None
    eos = theirs.eos_token_id
    assert list(ours.eos_token_ids) == ([] if eos is None else eos if isinstance(eos, list) else [eos])
    assert_layers_alike(ours, theirs)
    assert_ropes_alike(ours, theirs)


def assert_layers_alike(ours: ModelConfig, theirs: PreTrainedConfig) -> None:
    window = getattr(theirs, "sliding_window", None)
    kinds = getattr(theirs, "layer_types", None) or (
        ["sliding_attention" if window else "full_attention"] * theirs.num_hidden_layers
    )
    assert list(ours.layer_types) == kinds
    assert ours.sliding_window == (window if "sliding_attention" in kinds else None)


def assert_ropes_alike(ours: ModelConfig, theirs: PreTrainedConfig) -> None:
    parameters = dict(theirs.rope_parameters)
    if "full_attention" in parameters:
        assert_rope(ours.own_as(GemmaFields).local_rope, dict(parameters["sliding_attention"]))
        parameters = dict(parameters["full_attention"])
    assert_rope(ours.rope, parameters)


def assert_rope(ours: RopeConfig, theirs: dict[str, Any]) -> None:
    assert ours.kind == theirs.pop("rope_type")
    assert ours.theta == theirs.pop("rope_theta")
    assert ours.params == theirs


@pytest.mark.parametrize("name", CONFIGS)
def test_saved_config(name: str, tmp_path: Path) -> None:
    architecture, theirs = CONFIGS[name]
    theirs.architectures = [architecture]
    theirs.save_pretrained(tmp_path)
    assert_alike(load_model_config(resolve(str(tmp_path))), theirs)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3", "gemma3"])
def test_absent_keys_mean_what_they_mean_to_transformers(name: str, tmp_path: Path) -> None:
    architecture, theirs = CONFIGS[name]
    ours = load(tmp_path, {"architectures": [architecture], "model_type": theirs.model_type})
    assert_alike(ours, type(theirs)())


OLD_FORMATS: dict[str, dict[str, Any]] = {
    "llama-linear": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "rope_theta": 20000.0,
        "rope_scaling": {"type": "linear", "factor": 4.0},
        "torch_dtype": "float16",
    },
    "llama-3.1": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "rope_theta": LLAMA3_ROPE["rope_theta"],
        "rope_scaling": {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"},
        "torch_dtype": "bfloat16",
    },
    "qwen2-yarn": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        "sliding_window": 131072,
        "use_sliding_window": False,
        "max_window_layers": 28,
        "torch_dtype": "bfloat16",
    },
    "gemma3-4b": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "rope_local_base_freq": 10000.0,
        "rope_theta": 1000000.0,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
        "num_hidden_layers": 34,
        "torch_dtype": "bfloat16",
    },
}


@pytest.mark.parametrize("name", OLD_FORMATS)
def test_keys_of_transformers_4(name: str, tmp_path: Path) -> None:
    raw = OLD_FORMATS[name]
    ours = load(tmp_path, raw)
    theirs = AutoConfig.from_pretrained(tmp_path)
    # Transformers 5 leaves the scaling's old word beside the new one.
    for parameters in (theirs.rope_parameters, *theirs.rope_parameters.values()):
        if isinstance(parameters, dict):
            parameters.pop("type", None)
    assert_alike(ours, theirs)
    assert ours.dtype == raw["torch_dtype"]


def test_a_window_is_of_no_meaning_to_llama() -> None:
    config = parse_config({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "sliding_window": 4096})
    assert config.sliding_window is None
    assert set(config.layer_types) == {"full_attention"}


def test_overrides_replace_and_eos_ids_are_merged(tmp_path: Path) -> None:
    raw = {"architectures": ["LlamaForCausalLM"], "eos_token_id": 2}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    generation = {"eos_token_id": [5, 2, 99999999, "x"], "temperature": 0.6}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    source = resolve(str(tmp_path))
    assert load_generation_config(source) == generation
    config = load_model_config(source, {"num_hidden_layers": 3})
    assert config.num_layers == 3
    assert config.eos_token_ids == (2, 5)


def test_the_language_part_of_a_model_with_several(tmp_path: Path) -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 7, "vision_config": {"no": 1}}
    vision = {"hidden_size": 1152, "patch_size": 14}
    raw = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3",
        "dtype": "bfloat16",
        "text_config": text,
        "vision_config": vision,
    }
    config = load(tmp_path, raw)
    assert (config.hidden_size, config.num_layers, config.dtype) == (2560, 7, "bfloat16")
    assert config.parts == {"vision_config": vision}
    assert config.raw | raw == config.raw, "nothing of the other parts is lost"


def test_an_unknown_architecture_is_read_as_it_stands(tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "vocab_size": 100,
    }
    config = load(tmp_path, {"architectures": ["NewForCausalLM"], "model_type": "new", **sizes})
    assert (config.architecture, config.model_type, config.head_dim) == ("NewForCausalLM", "new", 16)
