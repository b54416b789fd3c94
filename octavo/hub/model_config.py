"""The typed model configuration that every family is built from."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from octavo.hub.stored_layers import StoredLayers
from octavo.records import PoolingSpec

Own = TypeVar("Own")

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

    def rotary_dim(self, head_dim: int) -> int:
        """How many values of a head rotate, the first ones."""
        return int(head_dim * self.partial_rotary_factor)


@dataclass(frozen=True, slots=True)
class QueryScaling:
    """A factor on queries that grows with position ``p``: ``1 + beta · log(1 + floor((p + offset) / length))``."""

    beta: float
    length: float
    offset: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The configuration shared by all families; a family's own quantities are in ``own``.

    Counts are at least 1; heads divide evenly (checked when parsed).

    Attributes:
        architecture: the class name in ``architectures`` of config.json.
        layer_types: per layer, full or sliding-window attention.
        sliding_window: number of tokens that a token of a sliding layer attends to, itself included; on each side if
            attention is bidirectional. None without such layers.
        rope: of full-attention layers, and of sliding ones unless the family has another for them.
        dtype: type of the checkpoint, such as ``bfloat16``.
        eos_token_ids: as config.json and generation_config.json say, without duplicates.
        own: the family's own record; see :meth:`own_as`.
        quantization: how the checkpoint's weights are quantised, with Hugging Face's names; empty if they are not.
        stored: which layers the checkpoint's files have quantised; nothing if :attr:`quantization` is empty.
        raw: the whole config as a dictionary with Hugging Face's names.
        parts: configurations of a multimodal model's other parts by their keys in ``raw``, such as ``vision_config``.
        is_encoder: whether attention is bidirectional, so that nothing is cached.
        pooling: how a pooling model pools; None for generative models.
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
    layer_types: tuple[LayerType, ...]
    sliding_window: int | None
    tie_word_embeddings: bool
    hidden_act: str
    dtype: str
    eos_token_ids: tuple[int, ...]
    own: object = None
    quantization: dict[str, Any] = field(default_factory=dict)
    stored: StoredLayers = field(repr=False, default_factory=StoredLayers)
    raw: dict[str, Any] = field(repr=False, default_factory=dict)
    parts: dict[str, dict[str, Any]] = field(repr=False, default_factory=dict)
    is_encoder: bool = False
    pooling: PoolingSpec | None = None

    def on_one_device(self, num_devices: int) -> "ModelConfig":
        """The sizes of intermediate tensors on each of several devices that share the model."""
        return replace(
            self,
            num_heads=self.num_heads // num_devices,
            num_kv_heads=max(1, self.num_kv_heads // num_devices),
            intermediate_size=self.intermediate_size // num_devices,
        )

    def own_as(self, kind: type[Own]) -> Own:
        """The family's own record, which its parser made of type ``kind``."""
        assert isinstance(self.own, kind), f"{self.architecture} has no {kind.__name__}"
        return self.own
