"""From a config.json to a :class:`ModelConfig`, with each family's defaults and nothing believed unchecked.

Understands the keys of transformers 4 (``rope_theta`` and ``rope_scaling``, ``torch_dtype``) and of transformers 5
(``rope_parameters``, for each kind of layer where they differ; ``dtype``).
"""

import math
from collections.abc import Iterable
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.model_config import LayerType, ModelConfig, RopeConfig

_MAX_SIZE = 1 << 24
_MAX_LAYERS = 4096
_MAX_POSITIONS = 1 << 27

_FULL: LayerType = "full_attention"
_SLIDING: LayerType = "sliding_attention"

_COMMON: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}

_FAMILY_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
              "num_attention_heads": 32, "bos_token_id": 1, "eos_token_id": 2},
    "mistral": {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
                "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
                "sliding_window": 4096, "bos_token_id": 1, "eos_token_id": 2},
    "qwen2": {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
              "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 32768,
              "sliding_window": 4096, "max_window_layers": 28, "attention_bias": True},
    "qwen3": {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
              "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128,
              "max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28},
    "gemma3_text": {"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
                    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
                    "max_position_embeddings": 131072, "hidden_activation": "gelu_pytorch_tanh",
                    "tie_word_embeddings": True, "rope_theta": 1_000_000.0, "rope_local_base_freq": 10000.0,
                    "query_pre_attn_scalar": 256, "sliding_window": 4096, "sliding_window_pattern": 6,
                    "bos_token_id": 2, "eos_token_id": 1},
}  # fmt: skip


class _Values:
    """Typed access to a configuration; every complaint names the key."""

    def __init__(self, raw: dict[str, Any], defaults: dict[str, Any]) -> None:
        self.raw = raw
        self._defaults = defaults

    def get(self, key: str) -> Any:
        """The value, or the family's default where it is absent or null and there is one."""
        value = self.raw.get(key)
        return self._defaults.get(key) if value is None and key in self._defaults else value

    def count(self, key: str, limit: int = _MAX_SIZE) -> int:
        """A whole number from 1 to ``limit``."""
        return self.check_count(key, self.get(key), limit)

    def check_count(self, key: str, value: Any, limit: int = _MAX_SIZE) -> int:
        """The same for a value at hand."""
        if value is None:
            raise UnsupportedModelError(f"The model's configuration lacks {key!r}.")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
            raise UnsupportedModelError(
                f"The model's configuration has {key} = {value!r}; it must be a whole number from 1 to {limit}."
            )
        return value

    def optional_count(self, key: str, limit: int = _MAX_SIZE) -> int | None:
        """The same, None if absent."""
        value = self.get(key)
        return None if value is None else self.check_count(key, value, limit)

    def number(self, key: str) -> float:
        """A finite number above 0."""
        value = self.optional_number(key)
        if value is None:
            raise UnsupportedModelError(f"The model's configuration lacks {key!r}.")
        return value

    def optional_number(self, key: str) -> float | None:
        """The same, None if absent."""
        value = self.get(key)
        return None if value is None else check_number(key, value)

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise UnsupportedModelError(f"The model's configuration has {key} = {value!r}; it must be true or false.")
        return value

    def text(self, key: str) -> str:
        """A string."""
        value = self.get(key)
        if not isinstance(value, str):
            raise UnsupportedModelError(f"The model's configuration has {key} = {value!r}; it must be a string.")
        return value


def check_number(key: str, value: Any) -> float:
    """A finite number above 0.

    Raises:
        UnsupportedModelError: naming the key.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise UnsupportedModelError(f"The model's configuration has {key} = {value!r}; it must be a positive number.")
    return float(value)


def parse_config(raw: dict[str, Any]) -> ModelConfig:
    """Build a decoder's configuration.

    Args:
        raw: what config.json holds.

    Raises:
        UnsupportedModelError: a key is missing or its value cannot be.
    """
    architecture = _architecture(raw)
    model_type = raw.get("model_type") if isinstance(raw.get("model_type"), str) else ""
    assert isinstance(model_type, str)
    values = _Values(raw, {**_COMMON, **_FAMILY_DEFAULTS.get(model_type, {})})
    hidden_size, num_heads = values.count("hidden_size"), values.count("num_attention_heads")
    num_kv_heads = values.optional_count("num_key_value_heads") or num_heads
    if num_heads % num_kv_heads:
        raise UnsupportedModelError(
            f"The model's configuration has {num_heads} attention heads, which {num_kv_heads} key/value heads do not "
            "divide."
        )
    num_layers = values.count("num_hidden_layers", _MAX_LAYERS)
    window = _window(values, model_type)
    layer_types = _layer_types(values, model_type, num_layers, window)
    if "sliding_attention" not in layer_types:
        window = None
    rope, local_rope = _ropes(values)
    return ModelConfig(
        architecture=architecture,
        model_type=model_type,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(values, hidden_size, num_heads),
        intermediate_size=values.count("intermediate_size"),
        vocab_size=values.count("vocab_size"),
        max_position_embeddings=values.count("max_position_embeddings", _MAX_POSITIONS),
        rms_norm_eps=values.number("rms_norm_eps"),
        rope=rope,
        local_rope=local_rope,
        layer_types=layer_types,
        sliding_window=window,
        tie_word_embeddings=values.flag("tie_word_embeddings"),
        attention_bias=values.flag("attention_bias"),
        mlp_bias=values.flag("mlp_bias"),
        hidden_act=values.text("hidden_activation" if values.get("hidden_activation") else "hidden_act"),
        attn_logit_softcap=values.optional_number("attn_logit_softcapping"),
        final_logit_softcap=values.optional_number("final_logit_softcapping"),
        query_pre_attn_scalar=values.optional_number("query_pre_attn_scalar"),
        dtype=_dtype(raw),
        bos_token_id=values.get("bos_token_id") if isinstance(values.get("bos_token_id"), int) else None,
        eos_token_ids=token_ids(values.get("eos_token_id")),
        raw=raw,
    )


def token_ids(value: Any) -> tuple[int, ...]:
    """Token ids from null, one id, or a list of ids, in order and once each."""
    items = value if isinstance(value, list) else [value]
    ids = (item for item in items if isinstance(item, int) and not isinstance(item, bool) and item >= 0)
    return tuple(dict.fromkeys(ids))


def _architecture(raw: dict[str, Any]) -> str:
    names = raw.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise UnsupportedModelError("The model's configuration names no architecture ('architectures' is missing).")
    return names[0]


def _head_dim(values: _Values, hidden_size: int, num_heads: int) -> int:
    head_dim = values.optional_count("head_dim", 4096)
    if head_dim is not None:
        return head_dim
    if hidden_size % num_heads:
        raise UnsupportedModelError(
            f"The model's configuration has hidden_size = {hidden_size}, which {num_heads} heads do not divide, and no "
            "head_dim."
        )
    return hidden_size // num_heads


def _window(values: _Values, model_type: str) -> int | None:
    """The sliding window, where the model slides at all; Qwen says so with a switch of its own."""
    if "sliding_window" in values.raw and values.raw["sliding_window"] is None:
        return None
    if model_type.startswith("qwen") and not values.flag("use_sliding_window"):
        return None
    return values.optional_count("sliding_window", _MAX_POSITIONS)


def _layer_types(values: _Values, model_type: str, num_layers: int, window: int | None) -> tuple[LayerType, ...]:
    given = values.raw.get("layer_types")
    if given is not None:
        return _check_layer_types(given, num_layers)
    if window is None:
        return (_FULL,) * num_layers
    if model_type.startswith("qwen"):
        first = values.get("max_window_layers")
        return _types(isinstance(first, int) and index >= first for index in range(num_layers))
    pattern = values.optional_count("sliding_window_pattern", _MAX_LAYERS)
    if pattern is not None:
        return _types((index + 1) % pattern != 0 for index in range(num_layers))
    return (_SLIDING,) * num_layers


def _types(is_sliding: Iterable[bool]) -> tuple[LayerType, ...]:
    return tuple(_SLIDING if slides else _FULL for slides in is_sliding)


def _check_layer_types(given: Any, num_layers: int) -> tuple[LayerType, ...]:
    if not isinstance(given, list) or len(given) != num_layers:
        raise UnsupportedModelError(f"The model's configuration must have one of layer_types for {num_layers} layers.")
    for kind in given:
        if kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedModelError(f"The model has layers of the type {kind!r}, which is not supported.")
    return tuple(given)


def _dtype(raw: dict[str, Any]) -> str:
    value = raw.get("dtype") or raw.get("torch_dtype") or "float32"
    return value.removeprefix("torch.") if isinstance(value, str) else "float32"


def _ropes(values: _Values) -> tuple[RopeConfig, RopeConfig | None]:
    """Rotary parameters of full layers, and of sliding ones where they differ."""
    parameters = values.raw.get("rope_parameters")
    local_theta = values.get("rope_local_base_freq")
    if isinstance(parameters, dict) and isinstance(parameters.get("full_attention"), dict):
        local = parameters.get("sliding_attention")
        full_rope = _rope(values, parameters["full_attention"], values.get("rope_theta"))
        return full_rope, _rope(values, local, local_theta) if isinstance(local, dict) else None
    if not isinstance(parameters, dict):
        parameters = values.raw.get("rope_scaling")
    rope = _rope(values, parameters if isinstance(parameters, dict) else {}, values.get("rope_theta"))
    if local_theta is None:
        return rope, None
    return rope, RopeConfig(check_number("rope_local_base_freq", local_theta))


def _rope(values: _Values, parameters: dict[str, Any], default_theta: Any) -> RopeConfig:
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if not isinstance(kind, str):
        raise UnsupportedModelError(f"The model's configuration has a rotary type {kind!r}; it must be a string.")
    theta = parameters.get("rope_theta")
    partial = parameters.get("partial_rotary_factor")
    if partial is None:
        partial = values.get("partial_rotary_factor")
    share = 1.0 if partial is None else check_number("partial_rotary_factor", partial)
    if share > 1:
        raise UnsupportedModelError(f"The model's configuration has partial_rotary_factor = {share}; it is at most 1.")
    known = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
    params = {key: value for key, value in parameters.items() if key not in known}
    if kind in ("yarn", "llama3", "longrope") and params.get("original_max_position_embeddings") is None:
        params["original_max_position_embeddings"] = values.count("max_position_embeddings", _MAX_POSITIONS)
    return RopeConfig(check_number("rope_theta", default_theta if theta is None else theta), kind, params, share)
