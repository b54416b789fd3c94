"""What Quark's configurations say of keys and values, which are outputs of layers there."""

from collections.abc import Mapping
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import ConfigValues
from octavo.quantization.patterns import ModuleNames, module_names, names_in

_LAYERS, _CACHE_LAYERS = "layer_quant_config", "kv_cache_quant_config"
_OUTPUTS = "output_tensors"
_STATIC = {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}
_QUERIES, _KEYS = "q_proj", "k_proj"


def declared_cache(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a configuration says of keys and values; None if they are not quantised.

    Args:
        raw: ``quantization_config``.

    Raises:
        UnsupportedModelError: the configuration is broken.
    """
    values = ConfigValues(dict(raw), {}, {})
    caches = _caches(values)
    if caches == ModuleNames():
        return None
    for key in (_LAYERS, _CACHE_LAYERS):
        for pattern, own in values.mapping(key).items():
            found = own.get(_OUTPUTS) if caches.match(pattern) and isinstance(own, Mapping) else None
            if isinstance(found, Mapping):
                return found
    raise UnsupportedModelError(
        f"The checkpoint's Quark configuration quantises keys and values, but no layer of theirs has {_OUTPUTS}."
    )


def has_static_scales(declared: Mapping[str, Any]) -> bool:
    """Whether :func:`declared_cache`'s result is float8 with a scale per layer in the checkpoint."""
    return not declared.get("is_dynamic") and has_settings(declared, _STATIC)


def has_settings(values: Any, wanted: Mapping[str, Any]) -> bool:
    """Whether part of a configuration is an object with these settings, of others any."""
    return isinstance(values, Mapping) and all(values.get(key) == value for key, value in wanted.items())


def layers_without_cache(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``layer_quant_config`` without the outputs that are keys, values, or the queries beside them."""
    values = ConfigValues(dict(raw), {}, {})
    caches = _caches(values)
    return {pattern: _without_cache(pattern, own, caches) for pattern, own in values.mapping(_LAYERS).items()}


def _caches(values: ConfigValues) -> ModuleNames:
    """The layers whose outputs are keys and values."""
    return module_names((*names_in(values.mapping("export"), ("kv_cache_group",)), *values.mapping(_CACHE_LAYERS)))


def _without_cache(pattern: str, own: Any, caches: ModuleNames) -> Any:
    name = pattern.removesuffix(_QUERIES) + _KEYS if pattern.endswith(_QUERIES) else pattern
    return {**own, _OUTPUTS: None} if isinstance(own, Mapping) and caches.match(name) else own
