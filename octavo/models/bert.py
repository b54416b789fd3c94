"""BERT, RoBERTa and DistilBERT: encoders with learned position embeddings."""

from collections.abc import Mapping
from typing import ClassVar

from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.encoder import EncoderAttention, EncoderMLP, PostNormEncoderLayer
from octavo.models.pooled import EncoderBackbone

_EMBEDDINGS = {
    "words": "word_embeddings",
    "positions": "position_embeddings",
    "segments": "token_type_embeddings",
    "norm": "LayerNorm",
}


class BertBackbone(EncoderBackbone):
    """BERT (arXiv:1810.04805), or RoBERTa (arXiv:1907.11692), whose positions start after the padding token's id."""

    checkpoint_names: ClassVar[Mapping[str, str]] = {"layers.": "encoder.layer."}
    module_names: ClassVar[Mapping[str, str]] = _EMBEDDINGS | {
        "query": "self.query",
        "key": "self.key",
        "value": "self.value",
        "output": "output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "mlp": "",
        "up": "intermediate.dense",
        "down": "output.dense",
        "mlp_norm": "output.LayerNorm",
    }
    qkv_names: ClassVar[tuple[str, str, str]] = ("query", "key", "value")

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        def layer(index: int, build: Build) -> PostNormEncoderLayer:
            attention = EncoderAttention(config, build.at("attention"), qkv_names=self.qkv_names)
            return PostNormEncoderLayer(config, attention, EncoderMLP(config, build.at("mlp")))

        super().__init__(config, build, layer, max_positions)


class DistilBertBackbone(BertBackbone):
    """arXiv:1910.01108."""

    checkpoint_names: ClassVar[Mapping[str, str]] = {"layers.": "transformer.layer."}
    module_names: ClassVar[Mapping[str, str]] = _EMBEDDINGS | {
        "output": "out_lin",
        "attention_norm": "sa_layer_norm",
        "mlp": "ffn",
        "up": "lin1",
        "down": "lin2",
        "mlp_norm": "output_layer_norm",
    }
    qkv_names: ClassVar[tuple[str, str, str]] = ("q_lin", "k_lin", "v_lin")
