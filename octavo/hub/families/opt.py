"""OPT: configuration parsing."""

from octavo.errors import UnsupportedModelError
from octavo.hub.block_fields import BlockFields
from octavo.hub.config_values import ConfigValues
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.model_config import ModelConfig


def _parse_own(values: ConfigValues, config: ModelConfig) -> BlockFields:
    embedding_size = values.optional_count("word_embed_proj_dim") or config.hidden_size
    if embedding_size != config.hidden_size:
        raise UnsupportedModelError(
            f"The model's configuration has word_embed_proj_dim = {embedding_size}, another size than hidden_size = "
            f"{config.hidden_size}, which is not supported."
        )
    has_bias, norms_before = values.flag("enable_bias"), values.flag("do_layer_norm_before")
    return BlockFields(
        norm="affine" if values.flag("layer_norm_elementwise_affine") else "plain",
        norms_after=not norms_before,
        has_final_norm=norms_before and not values.flag("_remove_final_layer_norm"),
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=has_bias,
        positions="learned",
        position_offset=2,
    )


FAMILIES = {
    "OPTForCausalLM": DecoderFamily(
        model="octavo.models.opt:OPTForCausalLM",
        model_type="opt",
        names={"intermediate_size": "ffn_dim", "hidden_act": "activation_function"},
        defaults={
            "vocab_size": 50272,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "hidden_act": "relu",
            "do_layer_norm_before": True,
            "enable_bias": True,
            "layer_norm_elementwise_affine": True,
            "tie_word_embeddings": True,
            "eos_token_id": 2,
        },
        fixed={
            **NO_WINDOW,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": None,
            "head_dim": None,
        },
        parse_own=_parse_own,
    )
}
