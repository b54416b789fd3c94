"""GGUF files of decoders with layer norms, written from tiny models as llama.cpp's converters write them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf_files import assert_same_model, write_gguf
from tiny_checkpoints import Checkpoint
from transformers import PreTrainedModel

from octavo import LLM

_KEYS = {
    "block_count": ("num_hidden_layers",),
    "context_length": ("max_position_embeddings", "max_seq_len", "seq_length"),
    "embedding_length": ("hidden_size",),
    "feed_forward_length": ("intermediate_size", "n_inner", "ffn_hidden_size"),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"),
    "attention.sliding_window": ("sliding_window",),
    "logit_scale": ("logit_scale",),
}
"""GGUF's keys, and what configurations call them."""

# The tiny model of each file, and what its converter writes beside the keys above.
FILES: dict[tuple[str, str], dict[str, Any]] = {
    ("gpt2", "gpt2"): {"feed_forward_length": 192},
    ("starcoder", "gpt-bigcode"): {"attention.head_count_kv": 1},
    ("gptneox", "gpt-neox"): {"rope.dimension_count": 6, "use_parallel_residual": True},
    ("gptneox", "gpt-neox-sequential"): {"rope.dimension_count": 2, "use_parallel_residual": False},
    ("bloom", "bloom"): {"feed_forward_length": 192},
    ("mpt", "mpt"): {"feed_forward_length": 192, "attention.max_alibi_bias": 8.0},
    ("falcon", "falcon-multi-query"): {"attention.head_count_kv": 1},
    ("falcon", "falcon-one-norm"): {"attention.head_count_kv": 1},
    ("starcoder2", "starcoder2"): {},
    ("phi2", "phi"): {"rope.dimension_count": 6},
    ("stablelm", "stablelm"): {"rope.dimension_count": 6},
    ("stablelm", "stablelm-parallel-normed"): {"rope.dimension_count": 4},
    ("command-r", "cohere"): {"rope.freq_base": 500_000.0},
    ("cohere2", "cohere2"): {},
    ("nemotron", "nemotron"): {"rope.dimension_count": 6},
    ("olmo", "olmo"): {"attention.clamp_kqv": 0.7},
}


@pytest.mark.parametrize(("architecture", "name"), FILES)
def test_a_gguf_file_means_the_model_that_it_was_made_of(
    architecture: str, name: str, checkpoint: Callable[[str], Checkpoint], start: Callable[..., LLM], tmp_path: Path
) -> None:
    model = checkpoint(name).model
    path = tmp_path / "model.gguf"
    found = {
        key: next((getattr(model.config, name) for name in names if getattr(model.config, name, None)), None)
        for key, names in _KEYS.items()
    }
    write_gguf(path, architecture, found | FILES[architecture, name], _tensors(architecture, model))
    assert_same_model(path, model, start)


def _tensors(architecture: str, model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    (number,) = (number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, model.config.num_hidden_layers)
    for hf_name, tensor in _stacked(model):
        # BLOOM's checkpoints lack the prefix.
        known = hf_name.removeprefix("transformer.") if architecture == "bloom" else hf_name
        name = names.get_name(known, try_suffixes=(".weight", ".bias"))
        assert name is not None, hf_name
        yield name, _converted(architecture, hf_name, tensor, model)


def _stacked(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """The model's weights, with the norms of a layer's heads as one."""
    lists: dict[str, list[torch.Tensor]] = {}
    for name, parameter in model.named_parameters():
        before, norms, _ = name.partition(".norms.")
        if norms:
            lists.setdefault(f"{before}.weight", []).append(parameter.detach())
        else:
            yield name, parameter.detach()
    for name, weights in lists.items():
        yield name, torch.stack(weights)


def _converted(architecture: str, name: str, tensor: torch.Tensor, model: PreTrainedModel) -> torch.Tensor:
    """A weight as the architecture's converter changes it."""
    heads = model.config.num_attention_heads
    if architecture == "nemotron" and name.endswith("norm.weight"):
        return tensor + 1
    if architecture == "gpt2" and tensor.dim() == 2 and ".c_" in name:
        return tensor.T
    if architecture == "olmo" and (".q_proj." in name or ".k_proj." in name):
        count = heads if ".q_proj." in name else model.config.num_key_value_heads
        return tensor.reshape(count, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
    if ".query_key_value." in name:
        kv_heads = 1 if architecture == "falcon" else heads
        groups = tensor.reshape(kv_heads, heads // kv_heads + 2, -1, *tensor.shape[1:])
        parts = groups[:, :-2], groups[:, -2], groups[:, -1]
        return torch.cat([part.reshape(-1, *tensor.shape[1:]) for part in parts])
    return tensor
