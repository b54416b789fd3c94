"""Parses decoder configurations: the shared part, with each family's rules as data."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.config_rope import parse_ropes
from octavo.hub.config_values import MAX_LAYERS, ConfigValues, invalid, quote
from octavo.hub.model_config import LayerType, ModelConfig, RopeConfig

_MAX_HEAD_DIM = 4096
_MAX_POSITIONS = 1 << 27
_DTYPES = ("bfloat16", "float16", "float32", "float64")

_FULL: LayerType = "full_attention"
_SLIDING: LayerType = "sliding_attention"

_DEFAULTS: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}

NO_WINDOW: dict[str, Any] = {"sliding_window": None, "layer_types": None}
"""For :attr:`DecoderFamily.fixed` of a family whose code attends to everything before a token in all layers."""


@dataclass(frozen=True, slots=True)
class DecoderFamily:
    """Reading rules of one architecture; see :class:`octavo.hub.families.registry.Family`.

    Attributes:
        model: the model's class, as ``module:class``.
        model_type: as config.json names the family.
        defaults: values of keys that are absent, as the family's published reference code has them.
        fixed: values that override the configuration, since the family's code does not read it.
        names: keys with another name in the family: the usual name → its own.
        derive: computes keys that the family's configurations lack or have in another form, from those that they have.
        parse_own: makes the family's own record (:attr:`ModelConfig.own`) once the shared part is parsed.
    """

    model: str
    model_type: str
    defaults: dict[str, Any]
    fixed: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    derive: Callable[[ConfigValues], dict[str, Any]] | None = None
    has_window_switch: bool = False
    parse_own: Callable[[ConfigValues, ModelConfig], object] | None = None

    def parse(self, architecture: str, raw: dict[str, Any]) -> ModelConfig:
        """See :meth:`octavo.hub.families.registry.Family.parse`."""
        raw = raw | {name: raw[own] for name, own in self.names.items() if own in raw}
        values = ConfigValues(raw, {**_DEFAULTS, **self.defaults}, self.fixed)
        if self.derive is not None:
            values = ConfigValues(raw | self.derive(values), {**_DEFAULTS, **self.defaults}, self.fixed)
        config = _parse_shared(values, architecture, self)
        return config if self.parse_own is None else replace(config, own=self.parse_own(values, config))


def _parse_shared(values: ConfigValues, architecture: str, family: DecoderFamily) -> ModelConfig:
    is_encoder = values.flag("use_bidirectional_attention") or values.get("is_causal") is False
    num_layers = values.count("num_hidden_layers", MAX_LAYERS)
    num_heads, num_kv_heads = _heads(values)
    layer_types, window = _layers(values, family, num_layers)
    rope, _ = parse_ropes(values)
    hidden_size = values.count("hidden_size")
    head_dim = _head_dim(values, hidden_size, num_heads)
    check_rotary(head_dim, rope)
    vocab_size = values.count("vocab_size")
    return ModelConfig(
        architecture=architecture,
        model_type=family.model_type,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=values.count("intermediate_size"),
        vocab_size=vocab_size,
        max_position_embeddings=values.count("max_position_embeddings", _MAX_POSITIONS),
        rms_norm_eps=values.number("rms_norm_eps"),
        rope=rope,
        layer_types=layer_types,
        sliding_window=window,
        tie_word_embeddings=values.flag("tie_word_embeddings"),
        hidden_act=values.text("hidden_activation" if values.get("hidden_activation") is not None else "hidden_act"),
        dtype=checkpoint_dtype(values),
        eos_token_ids=token_ids(values.get("eos_token_id"), vocab_size),
        quantization=values.mapping("quantization_config") or values.mapping("compression_config"),
        is_encoder=is_encoder,
    )


def check_rotary(head_dim: int, rope: RopeConfig) -> None:
    """Check that the rotating part of a head consists of pairs."""
    rotary_dim = rope.rotary_dim(head_dim)
    if rotary_dim < 2 or rotary_dim % 2:
        raise invalid("head_dim", head_dim, "even in the part that rotates, as rotary embedding turns pairs")


def token_ids(value: Any, vocab_size: int) -> tuple[int, ...]:
    """Token ids from null, one id or a list, in order, without duplicates and without ids outside the vocabulary."""
    items = value if isinstance(value, list) else [value]
    ids = (item for item in items if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < vocab_size)
    return tuple(dict.fromkeys(ids))


def _heads(values: ConfigValues) -> tuple[int, int]:
    """Heads, and key/value heads."""
    num_heads = values.count("num_attention_heads")
    num_kv_heads = values.optional_count("num_key_value_heads") or num_heads
    if num_heads % num_kv_heads:
        raise UnsupportedModelError(
            f"The model's configuration has num_attention_heads = {num_heads}, which num_key_value_heads = "
            f"{num_kv_heads} does not divide."
        )
    return num_heads, num_kv_heads


def _head_dim(values: ConfigValues, hidden_size: int, num_heads: int) -> int:
    head_dim = values.optional_count("head_dim", _MAX_HEAD_DIM)
    if head_dim is not None:
        return head_dim
    if hidden_size % num_heads:
        raise UnsupportedModelError(
            f"The model's configuration has no head_dim, and hidden_size = {hidden_size}, which num_attention_heads = "
            f"{num_heads} does not divide."
        )
    return hidden_size // num_heads


def _layers(values: ConfigValues, family: DecoderFamily, num_layers: int) -> tuple[tuple[LayerType, ...], int | None]:
    """The kind of each layer, and the window of those that slide."""
    is_off = family.has_window_switch and not values.flag("use_sliding_window")
    window = None if is_off else values.optional_count("sliding_window", _MAX_POSITIONS)
    given = values.get("layer_types")
    if given is not None:
        layer_types = check_layer_types(given, num_layers)
    elif window is None:
        layer_types = (_FULL,) * num_layers
    else:
        layer_types = _layer_types(values, num_layers)
    if _SLIDING not in layer_types:
        return layer_types, None
    if window is None:
        raise UnsupportedModelError("The model's configuration has sliding layers in layer_types, but no window.")
    return layer_types, _one_side(values, window)


def _one_side(values: ConfigValues, window: int) -> int:
    """The window as :class:`ModelConfig` has it, which counts one side where tokens attend in both directions.

    Gemma's switch makes both sides of the window; ``is_causal`` leaves as many tokens on each as there were before.
    """
    if values.flag("use_bidirectional_attention"):
        return window // 2 + 1
    return window + 1 if values.get("is_causal") is False else window


def _layer_types(values: ConfigValues, num_layers: int) -> tuple[LayerType, ...]:
    """Which layers slide by the family's rule: all, those from one on, or all but every n-th."""
    first = values.optional_count("max_window_layers", least=0)
    if first is not None:
        return tuple(_SLIDING if index >= first else _FULL for index in range(num_layers))
    pattern = values.optional_count("sliding_window_pattern")
    if pattern is not None:
        return tuple(_SLIDING if (index + 1) % pattern else _FULL for index in range(num_layers))
    return (_SLIDING,) * num_layers


def check_layer_types(given: Any, num_layers: int) -> tuple[LayerType, ...]:
    """The kind of each layer, from a configuration's list."""
    if not isinstance(given, list) or len(given) != num_layers:
        raise invalid("layer_types", given, f"a list with one entry for each of num_hidden_layers = {num_layers}")
    for kind in given:
        if kind not in (_FULL, _SLIDING):
            raise UnsupportedModelError(f"The model has layers of the type {quote(kind)}, which is not supported.")
    return tuple(given)


def checkpoint_dtype(values: ConfigValues) -> str:
    """The data type of the checkpoint, by its name in torch."""
    value = values.get("dtype") or values.get("torch_dtype") or "float32"
    name = value.removeprefix("torch.") if isinstance(value, str) else ""
    if name not in _DTYPES:
        raise invalid("dtype", value, f"one of {', '.join(_DTYPES)}")
    return name
