"""Models of the transformers library as configurations, and built on the meta device."""

from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig

from octavo.hub import ModelConfig
from octavo.hub.config_file import parse_config
from octavo.layers.build import Build
from octavo.models.registry import build_model

SIZES = {
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


def config_of(kind: type[PreTrainedConfig], architecture: str, **changes: Any) -> ModelConfig:
    """The configuration of a tiny model that runs as the library has it."""
    raw: dict[str, Any] = kind(**(SIZES | changes)).to_dict()
    return parse_config(raw | {"architectures": [architecture]}, "transformers")


def build_on_meta(config: ModelConfig, max_positions: int = 64) -> Any:
    """The model without memory."""
    with torch.device("meta"):
        return build_model(config, Build(), max_positions)


LLAMA = (transformers.LlamaConfig, "LlamaForCausalLM")
QWEN3 = (transformers.Qwen3Config, "Qwen3ForCausalLM")
GEMMA2 = (transformers.Gemma2Config, "Gemma2ForCausalLM")
MIXTRAL = (transformers.MixtralConfig, "MixtralForCausalLM")
