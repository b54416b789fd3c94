"""GGUF files of dense families, written from tiny models as llama.cpp's converters write them."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

import gguf
import pytest
import tiny_checkpoints
import torch
from gguf_files import assert_same_model, write_gguf
from tiny import dense, first
from tiny.sizes import sizes
from tiny_checkpoints import write_checkpoint
from transformers import Gemma2Config, GraniteConfig, LlamaConfig, PreTrainedConfig, PreTrainedModel, SmolLM3Config

from octavo import LLM

_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
    "altup.active_idx": "altup_active_idx",
    "altup.num_inputs": "altup_num_inputs",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    "attention.shared_kv_layers": "num_kv_shared_layers",
}


@dataclass(frozen=True, slots=True)
class Converted:
    """How a converter treats a model.

    Attributes:
        config: of the model.
        metadata: keys without the architecture: those that do not follow from the configuration, and with None those
            that are not written.
        is_permuted: whether it interleaves rotary pairs.
        has_shifted_norms: whether it adds one to the weights of norms.
    """

    config: Callable[[], PreTrainedConfig]
    metadata: dict[str, Any] = field(default_factory=dict)
    is_permuted: bool = False
    has_shifted_norms: bool = False


def _gemma2() -> PreTrainedConfig:
    return Gemma2Config(**sizes(head_dim=16, query_pre_attn_scalar=16, sliding_window=10, attn_logit_softcapping=4.0))


def _minicpm() -> PreTrainedConfig:
    scales = {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0}
    return GraniteConfig(**sizes(attention_multiplier=12**-0.5, tie_word_embeddings=True, **scales))


_LONGROPE = {"rope.dimension_count": 10, "rope.scaling.original_context_length": 4, "rope.scaling.attn_factor": 2.0}
_WINDOWS = "attention.sliding_window_pattern"
CONFIGS = first.CONFIGS | dense.CONFIGS

FILES = {
    "gemma": [Converted(CONFIGS["gemma"], has_shifted_norms=True)],
    "gemma2": [Converted(_gemma2, has_shifted_norms=True)],
    "gemma3n": [
        Converted(
            CONFIGS["gemma3n"],
            {
                _WINDOWS: [letter == "l" for letter in "llglglg"],
                "activation_sparsity_scale": [NormalDist().inv_cdf(0.7), -math.inf] * 3 + [NormalDist().inv_cdf(0.7)],
                "rope.freq_base": 1_000_000.0,
            },
        )
    ],
    "phi3": [
        Converted(CONFIGS["phi3"], {"attention.sliding_window": 0, "rope.dimension_count": 12}),
        Converted(CONFIGS["phi3-window"], {"rope.dimension_count": 12}),
        Converted(CONFIGS["phi3-long-rope"], {"attention.key_length": None, **_LONGROPE}),
    ],
    "glm4": [Converted(CONFIGS["glm4"], {"rope.dimension_count": 8})],
    "internlm2": [Converted(lambda: LlamaConfig(**sizes()), is_permuted=True)],
    "exaone": [Converted(lambda: LlamaConfig(**sizes()))],
    "minicpm": [Converted(_minicpm, {"attention.scale": None}, is_permuted=True)],
    "granite": [Converted(CONFIGS["granite"], is_permuted=True)],
    "olmo2": [
        Converted(CONFIGS["olmo2"]),
        Converted(CONFIGS["olmo3"], {_WINDOWS: [True, False, True], "rope.freq_base": 500_000.0}),
    ],
    "exaone4": [
        Converted(CONFIGS["exaone4"]),
        Converted(CONFIGS["exaone4-window"], {_WINDOWS: [True, True, False, True, True]}),
    ],
    "smollm3": [
        Converted(
            lambda: SmolLM3Config(**sizes(num_hidden_layers=5)), {"rope.freq_base": 2_000_000.0}, is_permuted=True
        )
    ],
    "arcee": [Converted(CONFIGS["arcee"], is_permuted=True)],
    "seed_oss": [Converted(CONFIGS["seed-oss"])],
    "ernie4_5": [Converted(CONFIGS["ernie4.5"], {"rope.freq_base": 500_000.0})],
    "hunyuan-dense": [Converted(CONFIGS["hunyuan"])],
}
CASES = [pytest.param(name, file, id=f"{name}-{i}") for name, files in FILES.items() for i, file in enumerate(files)]


@pytest.mark.parametrize(("architecture", "converted"), CASES)
def test_a_gguf_file_means_the_model_that_it_was_made_of(
    architecture: str,
    converted: Converted,
    start: Callable[..., LLM],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(tiny_checkpoints.CONFIGS, "converted", converted.config)
    model = write_checkpoint("converted", tmp_path / "hf").model
    path = tmp_path / "model.gguf"
    metadata = {key: getattr(model.config, name, None) for key, name in _KEYS.items()} | converted.metadata
    write_gguf(path, architecture, metadata, _tensors(architecture, model, converted))
    assert_same_model(path, model, start)


@torch.no_grad()
def _tensors(architecture: str, model: PreTrainedModel, converted: Converted) -> list[tuple[str, torch.Tensor]]:
    config = model.config
    (number,) = (number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    heads = {".q_proj.": config.num_attention_heads, ".k_proj.": config.num_key_value_heads}
    found = []
    for hf_name, parameter in _stacked(model):
        name, tensor = names.get_name(hf_name, try_suffixes=(".weight", ".bias")), parameter
        assert name is not None, hf_name
        if converted.has_shifted_norms and hf_name.endswith("norm.weight"):
            tensor = tensor + 1
        count = next((count for part, count in heads.items() if part in hf_name), None)
        if converted.is_permuted and count is not None:
            halves = tensor.reshape(count, 2, -1, *tensor.shape[1:])
            tensor = halves.transpose(1, 2).reshape(tensor.shape)
        found.append((name, tensor.contiguous()))
    for kind in ("long", "short"):
        factors = config.rope_parameters.get(f"{kind}_factor")
        if factors is not None:
            found.append((f"rope_factors_{kind}.weight", torch.tensor(factors)))
    return found


def _stacked(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """The model's weights, with numbered projections outside of layers as one, and all names with a suffix."""
    lists: dict[str, list[torch.Tensor]] = {}
    for name, parameter in model.named_parameters():
        found = re.fullmatch(r"(model\.\w+)\.\d+\.weight", name)
        if found:
            lists.setdefault(f"{found[1]}.weight", []).append(parameter.detach())
        else:
            yield f"{name}.weight" if name.endswith("_scale") else name, parameter.detach()
    for name, weights in lists.items():
        yield name, torch.stack(weights)
