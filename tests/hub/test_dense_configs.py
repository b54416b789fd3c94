"""Configurations of dense decoders: what they say by default, and switches that are rejected by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    ApertusConfig,
    ArceeConfig,
    CwmConfig,
    Ernie4_5Config,
    Exaone4Config,
    Gemma2Config,
    Gemma3nConfig,
    Gemma3nTextConfig,
    GemmaConfig,
    Glm4Config,
    GlmConfig,
    GraniteConfig,
    HeliumConfig,
    HunYuanDenseV1Config,
    HyperCLOVAXConfig,
    InternLM3Config,
    IQuestCoderConfig,
    Ministral3Config,
    MinistralConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    PreTrainedConfig,
    SeedOssConfig,
    SmolLM3Config,
    VaultGemmaConfig,
)

from octavo.errors import UnsupportedModelError
from octavo.hub import ModelConfig, load_model_config, resolve
from octavo.hub.config_file import parse_config
from octavo.hub.families.gemma3n import Gemma3nFields
from octavo.hub.families.olmo import OlmoFields
from octavo.planning.memory import model_size

FAMILIES: dict[str, type[PreTrainedConfig]] = {
    "ApertusForCausalLM": ApertusConfig,
    "ArceeForCausalLM": ArceeConfig,
    "CwmForCausalLM": CwmConfig,
    "Ernie4_5ForCausalLM": Ernie4_5Config,
    "Exaone4ForCausalLM": Exaone4Config,
    "Gemma2ForCausalLM": Gemma2Config,
    "GemmaForCausalLM": GemmaConfig,
    "Glm4ForCausalLM": Glm4Config,
    "GlmForCausalLM": GlmConfig,
    "GraniteForCausalLM": GraniteConfig,
    "HeliumForCausalLM": HeliumConfig,
    "HunYuanDenseV1ForCausalLM": HunYuanDenseV1Config,
    "HyperCLOVAXForCausalLM": HyperCLOVAXConfig,
    "IQuestCoderForCausalLM": IQuestCoderConfig,
    "InternLM3ForCausalLM": InternLM3Config,
    "Ministral3ForCausalLM": Ministral3Config,
    "MinistralForCausalLM": MinistralConfig,
    "Olmo2ForCausalLM": Olmo2Config,
    "Olmo3ForCausalLM": Olmo3Config,
    "Phi3ForCausalLM": Phi3Config,
    "SeedOssForCausalLM": SeedOssConfig,
    "SmolLM3ForCausalLM": SmolLM3Config,
    "VaultGemmaForCausalLM": VaultGemmaConfig,
}
_NAMES = {
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
    "rms_norm_eps": "rms_norm_eps",
    "tie_word_embeddings": "tie_word_embeddings",
}
_NOT_OF_SCALING = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


def _assert_alike(ours: ModelConfig, theirs: PreTrainedConfig) -> None:
    assert ours.model_type == theirs.model_type
    for name, hf_name in _NAMES.items():
        assert getattr(ours, name) == getattr(theirs, hf_name), name
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    assert ours.head_dim == head_dim
    assert ours.hidden_act == (getattr(theirs, "hidden_activation", None) or theirs.hidden_act)
    eos = theirs.eos_token_id if isinstance(theirs.eos_token_id, list) else [theirs.eos_token_id]
    # Arcee's default tokens are not in its default vocabulary.
    assert list(ours.eos_token_ids) == [token for token in eos if token < ours.vocab_size]
    kinds = getattr(theirs, "layer_types", None)
    assert list(ours.layer_types) == (kinds or ["full_attention"] * ours.num_layers)
    assert ours.sliding_window == (theirs.sliding_window if "sliding_attention" in ours.layer_types else None)
    _assert_ropes_alike(ours, theirs.rope_parameters)


def _assert_ropes_alike(ours: ModelConfig, theirs: dict[str, Any]) -> None:
    if "full_attention" in theirs:
        sliding = theirs["sliding_attention"]
        rope = ours.own_as(OlmoFields).sliding_rope
        assert (rope.kind, rope.theta) == (sliding["rope_type"], sliding["rope_theta"])
        theirs = theirs["full_attention"]
    assert (ours.rope.kind, ours.rope.theta) == (theirs["rope_type"], theirs["rope_theta"])
    assert ours.rope.partial_rotary_factor == theirs.get("partial_rotary_factor", 1.0)
    for key, value in ours.rope.params.items():
        assert theirs[key] == value, key


@pytest.mark.parametrize("architecture", FAMILIES)
def test_saved_and_absent_keys_mean_what_they_mean_to_transformers(architecture: str, tmp_path: Path) -> None:
    theirs = FAMILIES[architecture](architectures=[architecture])
    theirs.save_pretrained(tmp_path)
    _assert_alike(load_model_config(resolve(str(tmp_path))), theirs)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    _assert_alike(load_model_config(resolve(str(tmp_path))), theirs)


@pytest.mark.parametrize(
    ("architecture", "values", "words"),
    [
        ("HyperCLOVAXForCausalLM", {"use_post_norm": False}, "use_post_norm"),
        ("GraniteMoeHybridForCausalLM", {"layer_types": ["attention"]}, "num_local_experts"),
        ("GraniteMoeHybridForCausalLM", {"num_local_experts": 0, "layer_types": ["mamba", "attention"]}, "layer_types"),
        ("HunYuanDenseV1ForCausalLM", {"use_qk_norm": False}, "use_qk_norm"),
        ("InternLM3ForCausalLM", {"qkv_bias": True}, "qkv_bias different from bias"),
        ("InternLMForCausalLM", {"rotary": {"base": 5000}}, "rotary"),
        ("IQuestCoderForCausalLM", {"clip_qkv": 8.0}, "clip_qkv"),
        ("MiniCPMForCausalLM", {"sparse_config": {"topk": 64}}, "sparse_config"),
        ("MiniCPMForCausalLM", {"num_experts": 8}, "num_experts"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ("GlmForCausalLM", {"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ("Gemma3nForCausalLM", {"num_kv_shared_layers": 31}, "num_kv_shared_layers"),
        ("Gemma3nForCausalLM", {"activation_sparsity_pattern": [1.0] * 35}, "activation_sparsity_pattern"),
        ("Gemma3nForCausalLM", {"intermediate_size": [16384]}, "intermediate_size"),
    ],
)
def test_what_is_not_implemented_is_rejected_by_name(architecture: str, values: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        parse_config({"architectures": [architecture], **values})


def test_of_gemma3n_with_other_parts_the_language_model_is_read() -> None:
    theirs = Gemma3nConfig(text_config=Gemma3nTextConfig(num_hidden_layers=10, num_kv_shared_layers=4))
    raw = {**theirs.to_dict(), "architectures": ["Gemma3nForConditionalGeneration"]}
    config = parse_config(raw)
    own = config.own_as(Gemma3nFields)
    assert own.shared_layers == {6: 5, 7: 5, 8: 5, 9: 4}
    assert own.mlp_sizes == tuple(theirs.text_config.intermediate_size)
    assert own.sparsity == tuple(theirs.text_config.activation_sparsity_pattern)
    assert (config.rope.theta, own.local_rope.theta) == (1_000_000.0, 10_000.0)
    absent = parse_config({"architectures": ["Gemma3nForCausalLM"]}).own_as(Gemma3nFields)
    assert sum(absent.sparsity) == pytest.approx(10 * 0.95)
    assert set(absent.shared_layers.values()) == {18, 19}
    size = model_size(config, torch.bfloat16)
    assert sorted(size.cache_specs) == sorted(f"model.layers.{index}.self_attn" for index in range(6))


def test_early_names_of_longrope() -> None:
    for kind in ("su", "yarn", "longrope"):
        scaling = {"type": kind, "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
        raw = {"architectures": ["Phi3ForCausalLM"], "max_position_embeddings": 131072, "rope_scaling": scaling}
        rope = parse_config(raw).rope
        assert (rope.kind, rope.params["factor"], rope.params["original_max_position_embeddings"]) == (
            "longrope",
            32.0,
            4096,
        )
