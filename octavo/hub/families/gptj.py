"""GPT-J and CodeGen: configuration parsing."""

from functools import partial
from typing import Any

from octavo.hub.block_fields import BlockFields, QKVStorage
from octavo.hub.config_values import ConfigValues
from octavo.hub.decoder_config import NO_WINDOW, DecoderFamily
from octavo.hub.families.gpt2 import GPT2_NAMES, four_times_hidden
from octavo.hub.model_config import ModelConfig


def _derive(values: ConfigValues) -> dict[str, Any]:
    head_dim = values.count("hidden_size") // values.count("num_attention_heads")
    # A half more than there are, as the product with the head size is rounded down.
    share = min((values.count("rotary_dim", limit=head_dim) + 0.5) / head_dim, 1.0)
    return four_times_hidden(values) | {"partial_rotary_factor": share}


def _parse_own(values: ConfigValues, config: ModelConfig, *, qkv: QKVStorage) -> BlockFields:
    return BlockFields(
        qkv=qkv,
        qkv_bias=False,
        output_bias=False,
        head_bias=True,
        is_parallel=True,
        has_shared_norm=True,
        is_interleaved=True,
    )


def _family(model_type: str, qkv: QKVStorage) -> DecoderFamily:
    return DecoderFamily(
        model="octavo.models.gptj:GPTJForCausalLM",
        model_type=model_type,
        names=GPT2_NAMES,
        defaults={
            "vocab_size": 50400,
            "hidden_size": 4096,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "hidden_act": "gelu_new",
            "rms_norm_eps": 1e-5,
            "rotary_dim": 64,
            "eos_token_id": 50256,
        },
        fixed={
            **NO_WINDOW,
            "num_key_value_heads": None,
            "head_dim": None,
            "rope_theta": 10000.0,
            "rope_parameters": None,
            "rope_scaling": None,
        },
        derive=_derive,
        parse_own=partial(_parse_own, qkv=qkv),
    )


FAMILIES = {"GPTJForCausalLM": _family("gptj", "separate"), "CodeGenForCausalLM": _family("codegen", "by_shard")}
