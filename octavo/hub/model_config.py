"""What a model is, as numbers: the configuration every decoder family is built from."""

from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.records import PoolingSpec

LayerType = Literal["full_attention", "sliding_attention"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding (arXiv:2104.09864).

    Attributes:
        theta: base of the frequencies.
        kind: ``default``, ``linear``, ``dynamic``, ``yarn``, ``llama3`` or ``longrope``.
        params: the scaling's own numbers, with Hugging Face's names (``factor``, ``low_freq_factor``…).
        partial_rotary_factor: share of the head size that rotates.
    """

    theta: float
    kind: str = "default"
    params: dict[str, Any] = field(default_factory=dict)
    partial_rotary_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """What only encoders have.

    Attributes:
        prefix: what stands before the names of their weights in checkpoints with a head beside them.
        num_positions: rows of the table of positions.
        position_offset: row of the first position.
        type_vocab_size: kinds of segments.
    """

    prefix: str
    num_positions: int
    position_offset: int
    type_vocab_size: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder's or an encoder's shape. Counts are at least 1; heads divide evenly (checked when parsed).

    Attributes:
        architecture: the class name in ``architectures`` of config.json.
        layer_types: per layer, full or sliding-window attention.
        sliding_window: tokens a sliding layer sees, itself included; None without such layers.
        rope: of full-attention layers; ``local_rope`` of sliding ones where they differ (else None).
        attn_logit_softcap, final_logit_softcap: tanh caps, None for none.
        query_pre_attn_scalar: scores are divided by its square root; None is the head size.
        dtype: type of the checkpoint, such as ``bfloat16``.
        eos_token_ids: as config.json and generation_config.json say, without duplicates.
        raw: the whole config as a dictionary with Hugging Face's names.
        encoder: what only encoders have; None for decoders.
        pooling: what the model answers with vectors; None if it writes text.
    """

    architecture: str
    model_type: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    local_rope: RopeConfig | None
    layer_types: tuple[LayerType, ...]
    sliding_window: int | None
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    hidden_act: str
    attn_logit_softcap: float | None
    final_logit_softcap: float | None
    query_pre_attn_scalar: float | None
    dtype: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    raw: dict[str, Any] = field(repr=False, default_factory=dict)
    encoder: EncoderConfig | None = None
    pooling: PoolingSpec | None = None
