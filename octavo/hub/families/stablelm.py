"""StableLM: configuration parsing."""

from octavo.hub.block_fields import BlockFields, HeadNormKind
from octavo.hub.config_values import ConfigValues
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.model_config import ModelConfig


def _parse_own(values: ConfigValues, config: ModelConfig) -> BlockFields:
    storage: HeadNormKind = "by_head" if values.flag("is_from_gguf") else "listed"
    return BlockFields(
        is_parallel=values.flag("use_parallel_residual"),
        has_shared_norm=True,
        is_gated=True,
        qkv_bias=values.flag("use_qkv_bias"),
        output_bias=False,
        mlp_bias=False,
        head_norm=storage if values.flag("qk_layernorm") else "none",
    )


FAMILIES = {
    "StableLmForCausalLM": DecoderFamily(
        model="octavo.models.layer_norm_decoder:LayerNormDecoder",
        model_type="stablelm",
        names={"rms_norm_eps": "layer_norm_eps"},
        defaults={
            "vocab_size": 50304,
            "hidden_size": 2560,
            "intermediate_size": 6912,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.25,
            "eos_token_id": 0,
        },
        fixed=NO_WINDOW | {"head_dim": None},
        parse_own=_parse_own,
    )
}
