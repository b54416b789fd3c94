"""Models that differ from one of Hugging Face's in names alone: of the architecture, of keys, of weights."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tiny_checkpoints
import torch
from comparison import assert_logprobs
from safetensors.torch import load_file, save_file
from tiny import first
from tiny.sizes import sizes
from tiny_checkpoints import Checkpoint, write_checkpoint
from transformers import GraniteConfig, LlamaConfig, PreTrainedConfig, Qwen2Config

from octavo import LLM, SamplingParams

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Renamed:
    """A model under other names.

    Attributes:
        keys: of the configuration: Hugging Face's name → the model's, or None where it lacks the key.
        values: of the configuration, by the model's names.
        weights: parts of the names of weights → what the model has in their place, in the order of replacement.
        convert: changes the weights of a configuration, by their names.
    """

    config: Callable[[], PreTrainedConfig]
    keys: Mapping[str, str | None] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, str] = field(default_factory=dict)
    convert: Callable[[Weights, PreTrainedConfig], Weights] | None = None


def _fuse_by_head(weights: Weights, config: PreTrainedConfig) -> Weights:
    """Each key/value head's queries, its key and its value, one after another."""
    parts = ("q_proj", "k_proj", "v_proj")
    fused = {name: weight for name, weight in weights.items() if not any(part in name for part in parts)}
    for name in weights:
        if ".q_proj." in name:
            heads = [weights[name.replace("q_proj", part)] for part in parts]
            heads = [weight.unflatten(0, (config.num_key_value_heads, -1)) for weight in heads]
            fused[name.replace("q_proj", "wqkv")] = torch.cat(heads, 1).flatten(0, 1)
    return fused


def _with_other_parts(weights: Weights, config: PreTrainedConfig) -> Weights:
    """Beside those of other parts, and with keys and values in layers that share those of others."""
    shared = range(config.num_hidden_layers - config.num_kv_shared_layers, config.num_hidden_layers)
    for index in shared:
        for part in ("k_proj", "v_proj", "k_norm"):
            weights[f"model.layers.{index}.self_attn.{part}.weight"] = torch.zeros(3)
    return weights | {"model.vision_tower.proj.weight": torch.zeros(3), "model.embed_audio.norm.weight": torch.zeros(3)}


def _llama(**changes: Any) -> Callable[[], PreTrainedConfig]:
    return lambda: LlamaConfig(**sizes(**changes))


_BIASES: dict[str, str | None] = {"attention_bias": "bias", "mlp_bias": None}
_LANGUAGE_PARTS = ("model.layers", "model.norm", "model.embed_tokens", "model.per_layer", "model.altup")
_MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")

MODELS = {
    "LLaMAForCausalLM": Renamed(_llama(num_key_value_heads=4)),
    "AquilaForCausalLM": Renamed(_llama()),
    "XverseForCausalLM": Renamed(_llama(num_key_value_heads=4)),
    "InternLMForCausalLM": Renamed(_llama(attention_bias=True, num_key_value_heads=4), keys=_BIASES),
    "InternLM2ForCausalLM": Renamed(
        _llama(attention_bias=True, num_attention_heads=6),
        keys=_BIASES,
        weights={
            "model.embed_tokens": "model.tok_embeddings",
            "lm_head": "output",
            "input_layernorm": "attention_norm",
            "self_attn": "attention",
            "o_proj": "wo",
            "post_attention_layernorm": "ffn_norm",
            "mlp": "feed_forward",
            "gate_proj": "w1",
            "up_proj": "w3",
            "down_proj": "w2",
        },
        convert=_fuse_by_head,
    ),
    "InternLM3ForCausalLM": Renamed(
        _llama(attention_bias=True, mlp_bias=True), keys={"attention_bias": "qkv_bias", "mlp_bias": "bias"}
    ),
    "IQuestCoderForCausalLM": Renamed(_llama(head_dim=16)),
    "MiMoForCausalLM": Renamed(lambda: Qwen2Config(**sizes())),
    "ExaoneForCausalLM": Renamed(
        _llama(num_attention_heads=6),
        keys={
            "num_hidden_layers": "num_layers",
            "hidden_act": "activation_function",
            "rms_norm_eps": "layer_norm_epsilon",
        },
        weights={
            "model.embed_tokens": "transformer.wte",
            "model.norm": "transformer.ln_f",
            "model.layers": "transformer.h",
            "input_layernorm": "ln_1",
            "self_attn": "attn.attention",
            "o_proj": "out_proj",
            "post_attention_layernorm": "ln_2",
            "gate_proj": "c_fc_0",
            "up_proj": "c_fc_1",
            "down_proj": "c_proj",
        },
    ),
    "MiniCPMForCausalLM": Renamed(
        lambda: GraniteConfig(
            **sizes(
                tie_word_embeddings=True,
                embedding_multiplier=3.0,
                residual_multiplier=0.9 / 3**0.5,
                attention_multiplier=12**-0.5,
                logits_scaling=2.0,
            )
        ),
        keys=dict.fromkeys(_MULTIPLIERS),
        values={"scale_emb": 3, "scale_depth": 0.9, "dim_model_base": 24},
    ),
    "Gemma3nForConditionalGeneration": Renamed(
        first.CONFIGS["gemma3n"],
        weights={part: f"model.language_model.{part.removeprefix('model.')}" for part in _LANGUAGE_PARTS},
        convert=_with_other_parts,
    ),
    "TeleFLMForCausalLM": Renamed(
        lambda: GraniteConfig(**sizes(embedding_multiplier=3.0, attention_multiplier=12**-0.5, logits_scaling=2.0)),
        keys=dict.fromkeys(_MULTIPLIERS),
        values={"use_mup": True, "input_mult": 3.0, "output_mult": 4.0, "mup_scale_factor": 8.0},
    ),
}


@pytest.mark.parametrize("architecture", MODELS)
def test_another_name_means_the_same(
    architecture: str, start: Callable[..., LLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[architecture]
    monkeypatch.setitem(tiny_checkpoints.CONFIGS, architecture, model.config)
    source = write_checkpoint(architecture, tmp_path)
    _rename(tmp_path, architecture, model, source.model.config)
    params = SamplingParams(temperature=0, max_tokens=8, prompt_logprobs=-1, logprobs=-1, detokenize=False)
    prompt = [(7 * index) % 200 for index in range(50)]
    (output,) = start(Checkpoint(source.model, tmp_path)).generate([prompt], params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    assert_logprobs(source.model, output)


def test_rewards_of_internlm2(start: Callable[..., LLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS["InternLM2ForCausalLM"]
    monkeypatch.setitem(tiny_checkpoints.CONFIGS, "internlm2", model.config)
    source = write_checkpoint("internlm2", tmp_path)
    _rename(tmp_path, "InternLM2ForRewardModel", model, source.model.config)
    head = torch.randn(1, source.model.config.hidden_size, generator=torch.Generator().manual_seed(3))
    weights = load_file(tmp_path / "model.safetensors")
    del weights["output.weight"]
    save_file(weights | {"v_head.weight": head}, tmp_path / "model.safetensors")
    prompt = [(7 * index) % 200 for index in range(50)]
    with torch.inference_mode():
        expected = source.model.base_model(torch.tensor([prompt])).last_hidden_state[0] @ head.T
    (output,) = start(Checkpoint(source.model, tmp_path)).encode([prompt], use_tqdm=False)
    torch.testing.assert_close(output.outputs.data, expected, rtol=0, atol=1e-4)


def _rename(folder: Path, architecture: str, model: Renamed, theirs: PreTrainedConfig) -> None:
    config = json.loads((folder / "config.json").read_text())
    renamed = {model.keys.get(key, key): value for key, value in config.items()} | model.values
    renamed |= {"architectures": [architecture], "model_type": "other"}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in renamed.items() if key is not None}))
    weights = load_file(folder / "model.safetensors")
    if model.convert is not None:
        weights = model.convert(weights, theirs)
    for old, new in model.weights.items():
        weights = {name.replace(old, new): weight for name, weight in weights.items()}
    save_file(weights, folder / "model.safetensors")
