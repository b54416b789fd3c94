"""NomicBERT, GTE and Jina Embeddings v3: BERT's layer with rotary embedding, gated in the first two."""

from collections.abc import Mapping
from typing import ClassVar

from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.encoder import EncoderAttention, EncoderMLP, Gating, PostNormEncoderLayer
from octavo.layers.rotary import MAIN_ROPE
from octavo.models.pooled import EncoderBackbone

_EMBEDDINGS = {"words": "word_embeddings", "segments": "token_type_embeddings"}


class RotaryBertBackbone(EncoderBackbone):
    """BERT with rotary embedding."""

    gating: ClassVar[Gating]

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        def layer(index: int, build: Build) -> PostNormEncoderLayer:
            attention = EncoderAttention(config, build.at("attention"), rope=MAIN_ROPE)
            return PostNormEncoderLayer(config, attention, EncoderMLP(config, build.at("mlp"), self.gating))

        super().__init__(config, build, layer, max_positions, ropes={MAIN_ROPE: config.rope})


class NomicBertBackbone(RotaryBertBackbone):
    """arXiv:2402.01613."""

    gating: ClassVar[Gating] = "gate and up"
    checkpoint_names: ClassVar[Mapping[str, str]] = {"embeddings.norm.": "emb_ln.", "layers.": "encoder.layers."}
    module_names: ClassVar[Mapping[str, str]] = _EMBEDDINGS | {
        "attention": "attn",
        "qkv": "Wqkv",
        "output": "out_proj",
        "attention_norm": "norm1",
        "gate": "fc12",
        "up": "fc11",
        "down": "fc2",
        "mlp_norm": "norm2",
    }


class GteBackbone(RotaryBertBackbone):
    """arXiv:2407.19669."""

    gating: ClassVar[Gating] = "up_gate"
    checkpoint_names: ClassVar[Mapping[str, str]] = {"layers.": "encoder.layer."}
    module_names: ClassVar[Mapping[str, str]] = _EMBEDDINGS | {
        "norm": "LayerNorm",
        "qkv": "qkv_proj",
        "output": "o_proj",
        "attention_norm": "attn_ln",
        "up": "up_gate_proj",
        "down": "down_proj",
        "mlp_norm": "mlp_ln",
    }


class JinaBackbone(RotaryBertBackbone):
    """arXiv:2409.10173, without its adapters for tasks."""

    gating: ClassVar[Gating] = "none"
    checkpoint_names: ClassVar[Mapping[str, str]] = {"embeddings.norm.": "emb_ln.", "layers.": "encoder.layers."}
    module_names: ClassVar[Mapping[str, str]] = _EMBEDDINGS | {
        "attention": "mixer",
        "qkv": "Wqkv",
        "output": "out_proj",
        "attention_norm": "norm1",
        "up": "fc1",
        "down": "fc2",
        "mlp_norm": "norm2",
    }
