"""Maps GGUF's tensor names to Hugging Face's, and describes how converters change weights."""

from dataclasses import dataclass

from octavo.hub.model_config import ModelConfig

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_LAYER = {
    **_LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True, slots=True)
class Conversion:
    """A converter's change to a tensor.

    Attributes:
        permuted_heads: number of heads within which rows were reordered to interleave rotary pairs; 0 if not reordered.
        offset: added to every value.
    """

    permuted_heads: int = 0
    offset: float = 0.0


def hf_name(name: str, architecture: str) -> str:
    """A tensor's name in a Hugging Face checkpoint; unknown names are returned unchanged."""
    stem, _, leaf = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{leaf}"
    prefix, _, rest = stem.partition(".")
    index, _, part = rest.partition(".")
    layer = _GEMMA_LAYER if architecture == "gemma3" else _LAYER
    if prefix == "blk" and index.isdigit() and part in layer:
        return f"model.layers.{index}.{layer[part]}.{leaf}"
    return name


def conversion(name: str, architecture: str, config: ModelConfig) -> Conversion:
    """The converter's change to the tensor with this Hugging Face name."""
    if architecture == "gemma3" and name.endswith("norm.weight"):
        return Conversion(offset=1.0)
    if architecture == "llama" and ".q_proj." in name:
        return Conversion(permuted_heads=config.num_heads)
    if architecture == "llama" and ".k_proj." in name:
        return Conversion(permuted_heads=config.num_kv_heads)
    return Conversion()
