"""ModernBERT: alternating local and global attention, rotary embedding, gated feed-forward parts, norms before both."""

from collections.abc import Mapping
from typing import ClassVar

from octavo.hub.encoder_config import EncoderFields
from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.encoder import EncoderAttention, EncoderMLP, PreNormEncoderLayer
from octavo.layers.norm import LayerNorm
from octavo.layers.rotary import LOCAL_ROPE, MAIN_ROPE
from octavo.models.pooled import EncoderBackbone


class ModernBertBackbone(EncoderBackbone):
    """arXiv:2412.13663."""

    checkpoint_names: ClassVar[Mapping[str, str]] = {"norm.": "final_norm."}
    module_names: ClassVar[Mapping[str, str]] = {
        "words": "tok_embeddings",
        "attention": "attn",
        "qkv": "Wqkv",
        "output": "Wo",
        "attention_norm": "attn_norm",
        "up": "Wi",
        "down": "Wo",
    }

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        own = config.own_as(EncoderFields)

        def layer(index: int, build: Build) -> PreNormEncoderLayer:
            is_local = config.layer_types[index] == "sliding_attention"
            rope = LOCAL_ROPE if is_local else MAIN_ROPE
            window = config.sliding_window if is_local else None
            attention = EncoderAttention(config, build.at("attention"), rope=rope, window=window)
            mlp = EncoderMLP(config, build.at("mlp"), "gate_up")
            return PreNormEncoderLayer(config, attention, mlp, is_first=index == 0)

        super().__init__(
            config,
            build,
            layer,
            max_positions,
            norm=LayerNorm(config.hidden_size, config.rms_norm_eps, has_bias=own.norm_bias),
            ropes={MAIN_ROPE: config.rope, LOCAL_ROPE: own.local_rope or config.rope},
        )
