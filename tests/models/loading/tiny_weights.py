"""Small models of every family with random weights, and the files that hold them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from octavo.hub import ModelConfig, ModelSource
from octavo.hub.config_file import parse_config
from octavo.layers.build import Build
from octavo.layers.weights import collect_slots
from octavo.models.registry import build_model
from octavo.quantization.config import QuantizationConfig, Unquantized
from octavo.quantization.slot import Slots

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"]},
    "llama-biased": {"architectures": ["LlamaForCausalLM"], "attention_bias": True},
    "mistral": {"architectures": ["MistralForCausalLM"]},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"]},
    "gemma3": {"architectures": ["Gemma3ForCausalLM"]},
}

GGUF_ARCHITECTURES = {"llama": "llama", "llama-biased": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3"}


@dataclass(frozen=True, slots=True)
class Tiny:
    """An empty model, the places for its weights, and the weights that belong there.

    The places stay valid when the model rearranges itself after loading.
    """

    model: nn.Module
    config: ModelConfig
    slots: Slots
    weights: dict[str, torch.Tensor]

    def assert_loaded(self, tolerance: float = 0.0) -> None:
        """Check every weight."""
        for name, (slot,) in self.slots.items():
            weight = self.weights[name]
            wanted = (weight if slot.transform is None else slot.transform(weight)).to(slot.view.dtype)
            torch.testing.assert_close(
                slot.view.cpu(), wanted, rtol=0, atol=tolerance, msg=lambda text, name=name: name + text
            )


def tiny(
    family: str, dtype: torch.dtype = torch.float32, quantization: QuantizationConfig | None = None, **changes: Any
) -> Tiny:
    """A model without weights yet, on a GPU if there is one, and float32 weights to put into files."""
    config = parse_config({**SIZES, **FAMILIES[family], **changes})
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with DEVICE:
            model = build_model(config, Build(quantization or Unquantized()), 64)
    finally:
        torch.set_default_dtype(before)
    slots = collect_slots(model)
    for (slot,) in slots.values():
        slot.view.fill_(float("nan") if slot.view.is_floating_point() else 0)
    generator = torch.Generator().manual_seed(7)
    weights = {name: torch.randn(slot.source_shapes[0], generator=generator) for name, (slot,) in slots.items()}
    return Tiny(model, config, slots, weights)


def folder_of(path: Path) -> ModelSource:
    return ModelSource("folder", path, str(path))


def write_safetensors(folder: Path, weights: dict[str, torch.Tensor]) -> ModelSource:
    """One file."""
    save_file(weights, folder / "model.safetensors")
    return folder_of(folder)


def write_shards(folder: Path, weights: dict[str, torch.Tensor], num_shards: int = 3) -> ModelSource:
    """Several files and their index."""
    index = {}
    for number in range(num_shards):
        shard = dict(list(weights.items())[number::num_shards])
        file = f"model-{number + 1:05}-of-{num_shards:05}.safetensors"
        save_file(shard, folder / file)
        index |= dict.fromkeys(shard, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder_of(folder)


def write_gguf(
    path: Path, family: str, config: ModelConfig, weights: dict[str, torch.Tensor], kind: str = "F32"
) -> ModelSource:
    """A GGUF file as llama.cpp's converters would write it; names come from the format's own library."""
    architecture = GGUF_ARCHITECTURES[family]
    (number,) = (number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config.num_layers)
    writer = gguf.GGUFWriter(str(path), architecture)
    for name, weight in weights.items():
        new_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert new_name is not None, name
        values = converted(architecture, name, weight.numpy(), config)
        dtype = gguf.GGMLQuantizationType[kind if values.ndim > 1 else "F32"]
        writer.add_tensor(new_name, gguf.quants.quantize(values, dtype), raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelSource("gguf", path, str(path))


def converted(architecture: str, name: str, values: np.ndarray, config: ModelConfig) -> np.ndarray:
    """What the converters make of a weight: Llama's rotary pairs side by side, Gemma's norms with their one."""
    if architecture == "gemma3" and name.endswith("norm.weight"):
        return values + 1
    if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
        num_heads = config.num_heads if ".q_proj." in name else config.num_kv_heads
        order = np.arange(len(values)).reshape(num_heads, 2, -1).transpose(0, 2, 1).reshape(-1)
        return values[order]
    return values
