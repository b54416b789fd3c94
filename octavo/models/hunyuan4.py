"""Hunyuan 4: hyper-connections, gated latent attention with sinks, and experts from some layer on."""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

from octavo.hub.families.hunyuan4 import Hunyuan4Fields
from octavo.hub.model_config import ModelConfig
from octavo.layers.build import Build
from octavo.layers.gated_latent_attention import GatedLatentAttention
from octavo.layers.hyper_connections import HyperConnection, HyperLayer, StreamsNorm, StreamWeights
from octavo.layers.moe import feed_forward
from octavo.layers.norm import RMSNorm
from octavo.models.base import DecoderLM
from octavo.models.deepseek import latent_attention, make_indexer, shared_indexers
from octavo.models.loading.checkpoint import Checkpoint
from octavo.models.loading.renamed import RenamedCheckpoint


class HYV4ForCausalLM(DecoderLM):
    """Tencent's Hunyuan 4."""

    checkpoint_names: ClassVar[Mapping[str, str]] = {"model.norm.hc_head.hc_": "model.hc_head.hc_head_"}
    module_names: ClassVar[Mapping[str, str]] = {
        "attn_hc": "hc_attn_layer.hc_pre",
        "ffn_hc": "hc_mlp_layer.hc_pre",
        "sinks": "learnable_sink_param",
    }

    def __init__(self, config: ModelConfig, build: Build, max_positions: int) -> None:
        own = config.own_as(Hunyuan4Fields)
        sizes = own.num_streams, config.hidden_size
        norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)
        connection = partial(
            HyperConnection, *sizes, config.rms_norm_eps, magnitude=own.stream_magnitude, least=own.stream_eps
        )

        def layer(index: int, build: Build) -> HyperLayer:
            inner = build.at("self_attn")
            indexer = make_indexer(config, own.latent, index, inner, max_positions)
            attention = latent_attention(config, own.latent, inner, GatedLatentAttention, indexer)
            mlp = feed_forward(config, own.latent.experts, index, build.at("mlp"))
            return HyperLayer(attention, mlp, norm, connection, own.num_streams if index == 0 else None)

        def final_norm(size: int, eps: float) -> StreamsNorm:
            return StreamsNorm(size, eps, StreamWeights(*sizes, 1, eps), own.stream_eps)

        super().__init__(config, build, layer, max_positions, norm=final_norm)
        self.unused_weights = ("model.mtp_layers.", *shared_indexers(own.latent))

    def convert_checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        """Undo what transformers does to names when it saves; see :class:`.loading.load.ReadsConverted`."""
        return RenamedCheckpoint(
            checkpoint,
            {
                "hc_pre.hc_attn_layer.hc_": "hc_attn_layer.hc_pre.hc_",
                "hc_pre.hc_mlp_layer.hc_": "hc_mlp_layer.hc_pre.hc_",
                "model.hc_pre.hc_head.": "model.hc_head.",
                "mlp.linear_gate.": "mlp.gate_proj.",
                "shared_experts.linear_gate.": "shared_experts.gate_proj.",
            },
        )
