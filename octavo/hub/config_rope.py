"""The RoPE part of a configuration, in the formats of transformers 4 and 5."""

from types import NoneType
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import ConfigValues, invalid, positive_number
from octavo.hub.model_config import RopeConfig

_MAX_POSITIONS = 1 << 27
_NEEDS_ORIGINAL_LENGTH = ("yarn", "llama3", "longrope")
_NOT_OF_SCALING = ("rope_theta", "partial_rotary_factor")
_ALSO_LONGROPE = ("su", "yarn")
"""What early configurations call LongRoPE; its lists of factors distinguish it from YaRN."""
_OWN_FIELDS = ("rope_type", "type", *_NOT_OF_SCALING)
_LAYER_TYPES = ("full_attention", "sliding_attention")
_LARGEST = 1e30


def parse_ropes(values: ConfigValues) -> tuple[RopeConfig, RopeConfig | None]:
    """Rotary parameters of full layers, and of sliding ones where they differ."""
    full, local = _by_layer_type(values.mapping("rope_parameters"))
    scaling = values.mapping("rope_scaling")
    if scaling:
        # If both keys are given, the older one was set deliberately and wins.
        full = {key: value for key, value in full.items() if key in _NOT_OF_SCALING} | scaling
    local_theta = values.optional_number("rope_local_base_freq")
    rope = _rope(values, full, None)
    if local is not None:
        return rope, _rope(values, local, local_theta)
    return rope, None if local_theta is None else RopeConfig(local_theta)


def _by_layer_type(parameters: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Parameters of full-attention layers and of sliding-window layers; None for the latter if they do not differ."""
    if not any(kind in parameters for kind in _LAYER_TYPES):
        return parameters, None
    for kind in _LAYER_TYPES:
        if not isinstance(parameters.get(kind), (dict, NoneType)):
            raise invalid(f"rope_parameters[{kind!r}]", parameters[kind], "an object")
    full, local = (parameters.get(kind) for kind in _LAYER_TYPES)
    return full or {}, local


def _rope(values: ConfigValues, parameters: dict[str, Any], default_theta: float | None) -> RopeConfig:
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if not isinstance(kind, str):
        raise invalid("rope_type", kind, "a string")
    theta = parameters.get("rope_theta")
    if theta is None:
        theta = values.number("rope_theta") if default_theta is None else default_theta
    params = {key: _checked(key, value) for key, value in parameters.items() if key not in _OWN_FIELDS}
    if kind in _ALSO_LONGROPE and "short_factor" in params:
        kind = "longrope"
    _add_lengths(values, kind, params)
    return RopeConfig(positive_number("rope_theta", theta), kind, params, _rotary_share(values, parameters))


def _add_lengths(values: ConfigValues, kind: str, params: dict[str, Any]) -> None:
    """Add what a scaling takes from the configuration around it."""
    key = "original_max_position_embeddings"
    length = values.count("max_position_embeddings", _MAX_POSITIONS)
    if kind == "dynamic":
        params[key] = length
    elif kind in _NEEDS_ORIGINAL_LENGTH:
        params[key] = values.optional_count(key, _MAX_POSITIONS) or params.get(key) or length
    if kind == "longrope" and params.get("factor") is None:
        params["factor"] = length / positive_number(key, params[key])


def _checked(key: str, value: Any) -> Any:
    """A parameter of a scaling: a number, a switch, or a list of numbers."""
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, (int, float, NoneType)) or not abs(item or 0) < _LARGEST:
            raise invalid(key, value, "a number")
    return value


def _rotary_share(values: ConfigValues, parameters: dict[str, Any]) -> float:
    share = parameters.get("partial_rotary_factor")
    if share is None:
        share = values.get("partial_rotary_factor")
    if share is None:
        return 1.0
    share = positive_number("partial_rotary_factor", share)
    if share > 1:
        raise UnsupportedModelError(f"The model's configuration has partial_rotary_factor = {share}; it is at most 1.")
    return share
