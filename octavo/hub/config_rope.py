"""The rotary part of a configuration, in the words of transformers 4 and of transformers 5."""

from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import ConfigValues, positive_number, wrong
from octavo.hub.model_config import RopeConfig

_MAX_POSITIONS = 1 << 27
_NEEDS_ORIGINAL_LENGTH = ("yarn", "llama3", "longrope")
_OWN_FIELDS = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


def parse_ropes(values: ConfigValues) -> tuple[RopeConfig, RopeConfig | None]:
    """Rotary parameters of full layers, and of sliding ones where they differ.

    Raises:
        UnsupportedModelError: naming the key that cannot be.
    """
    parameters = values.mapping("rope_parameters")
    local_theta = values.optional_number("rope_local_base_freq")
    if isinstance(parameters.get("full_attention"), dict):
        full, local = parameters["full_attention"], parameters.get("sliding_attention")
        return _rope(values, full, None), _rope(values, local, local_theta) if isinstance(local, dict) else None
    rope = _rope(values, parameters or values.mapping("rope_scaling"), None)
    return rope, None if local_theta is None else RopeConfig(local_theta)


def _rope(values: ConfigValues, parameters: dict[str, Any], default_theta: float | None) -> RopeConfig:
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if not isinstance(kind, str):
        raise wrong("rope_type", kind, "a string")
    theta = parameters.get("rope_theta")
    if theta is None:
        theta = values.number("rope_theta") if default_theta is None else default_theta
    params = {key: value for key, value in parameters.items() if key not in _OWN_FIELDS}
    if kind in _NEEDS_ORIGINAL_LENGTH and params.get("original_max_position_embeddings") is None:
        params["original_max_position_embeddings"] = values.count("max_position_embeddings", _MAX_POSITIONS)
    return RopeConfig(positive_number("rope_theta", theta), kind, params, _rotary_share(values, parameters))


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
