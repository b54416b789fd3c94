"""StarCoder2: configuration parsing."""

from octavo.hub.block_fields import BlockFields
from octavo.hub.config_values import ConfigValues
from octavo.hub.decoder_config import DecoderFamily
from octavo.hub.model_config import ModelConfig


def _parse_own(values: ConfigValues, config: ModelConfig) -> BlockFields:
    has_bias = values.flag("use_bias")
    return BlockFields(qkv_bias=has_bias, output_bias=has_bias, mlp_bias=has_bias)


FAMILIES = {
    "Starcoder2ForCausalLM": DecoderFamily(
        model="octavo.models.starcoder2:Starcoder2ForCausalLM",
        model_type="starcoder2",
        names={"rms_norm_eps": "norm_epsilon"},
        defaults={
            "vocab_size": 49152,
            "hidden_size": 3072,
            "intermediate_size": 12288,
            "num_hidden_layers": 30,
            "num_attention_heads": 24,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "hidden_act": "gelu_pytorch_tanh",
            "rms_norm_eps": 1e-5,
            "use_bias": True,
            "tie_word_embeddings": True,
            "eos_token_id": 50256,
        },
        fixed={"layer_types": None},
        parse_own=_parse_own,
    )
}
