"""ERNIE 4.5 with experts: configuration parsing."""

from dataclasses import replace

from octavo.hub.config_values import ConfigValues, reject_flags
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.families.experts import ExpertFields, parse_routing
from octavo.hub.families.sparse import SparseFields
from octavo.hub.model_config import ModelConfig


def _ernie(values: ConfigValues, config: ModelConfig) -> SparseFields:
    reject_flags(values, "use_bias")
    size, interval = values.count("moe_intermediate_size"), values.count("moe_layer_interval")
    first, last = values.count("moe_layer_start_index", least=0), values.count("moe_layer_end_index", least=-1)
    experts = ExpertFields(
        replace(parse_routing(values, renormalises=True), is_corrected=True),
        size,
        tuple(
            (index + 1) % interval == 0 and first <= index and (last == -1 or index <= last)
            for index in range(config.num_layers)
        ),
        shared_size=size * values.count("moe_num_shared_experts", least=0),
        correction="moe_statics.e_score_correction_bias",
    )
    return SparseFields(experts, is_interleaved=True)


FAMILIES = {
    "Ernie4_5_MoeForCausalLM": DecoderFamily(
        model="octavo.models.sparse:SparseDecoder",
        model_type="ernie4_5_moe",
        names={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
        defaults={
            "vocab_size": 103424,
            "hidden_size": 2560,
            "intermediate_size": 12288,
            "num_hidden_layers": 28,
            "num_attention_heads": 20,
            "num_key_value_heads": 4,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500_000.0,
            "tie_word_embeddings": True,
            "moe_intermediate_size": 1536,
            "num_experts_per_tok": 6,
            "num_experts": 64,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": -1,
            "moe_layer_interval": 1,
            "eos_token_id": 2,
        },
        fixed=NO_WINDOW,
        parse_own=_ernie,
    ),
}
