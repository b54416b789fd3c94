"""Checkpoints of AMD's Quark: settings for all layers, and others by patterns of names.

Source: https://github.com/amd/Quark.
"""

from collections.abc import Mapping
from typing import Any, Literal

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import ConfigValues, invalid, quote
from octavo.kernels.float4 import MX_GROUP
from octavo.quantization.compressed_layouts import CompressedLayout
from octavo.quantization.config import SchemeOptions
from octavo.quantization.float4_layout import Float4Layout
from octavo.quantization.float8_layout import ALL, Float8Layout
from octavo.quantization.grouped_weight import Layout
from octavo.quantization.patterns import compile_name, module_names, names_in
from octavo.quantization.targets import TargetedConfig, TargetGroup, Targets, target_group

_FLOAT8, _INT8 = "fp8_e4m3", "int8"
_MXFP4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": MX_GROUP, "scale_format": "e8m0"}
_ROTATIONS = ("rotation", "quarot")


def parse_quark(raw: Mapping[str, Any], options: SchemeOptions) -> TargetedConfig:
    """The layers of a checkpoint.

    Static scales of activations are not used: scales per token, found as the tokens come, are at least as exact, and
    beside 4-bit floats activations are not rounded. Nor are they beside integers if they were to have zeros.

    Args:
        raw: ``quantization_config``.

    Raises:
        UnsupportedModelError: it was quantised in a way that is not supported, or the configuration is broken.
    """
    values = ConfigValues(dict(raw), {}, {})
    export = values.mapping("export")
    _check_export(export, export.get("kv_cache_group") or raw.get("kv_cache_quant_config"))
    _check_algorithms(raw.get("algo_config"))
    if types := values.mapping("layer_type_quant_config"):
        raise UnsupportedModelError(
            f"The checkpoint's Quark weights differ by types of layers ({quote(list(types))}), which is not supported."
        )
    groups = [
        _group(pattern, Targets(patterns=(compile_name(pattern),)), own, options)
        for pattern, own in values.mapping("layer_quant_config").items()
    ]
    groups.append(_group("global_quant_config", Targets(has_all=True), raw.get("global_quant_config"), options))
    ignored = Targets(patterns=(module_names(names_in(raw, ("exclude",))),))
    return TargetedConfig(options.plain, "quark", tuple(groups), ignored)


def _check_export(export: Mapping[str, Any], caches: Any) -> None:
    """Reject scales of the cache, which are stored as those of layers' outputs, and weights stored as they were."""
    if caches:
        raise UnsupportedModelError(
            f"The checkpoint's Quark configuration quantises keys and values ({quote(caches)}), which is not supported."
        )
    stored = export.get("weight_format", "real_quantized")
    if stored != "real_quantized":
        raise invalid("weight_format", stored, "'real_quantized'")


def _check_algorithms(algorithms: Any) -> None:
    """Reject rotations, some of which have to be applied to activations as well."""
    for own in algorithms if isinstance(algorithms, list) else [algorithms]:
        name = own.get("name") if isinstance(own, Mapping) else None
        if isinstance(name, str) and name.lower() in _ROTATIONS:
            raise UnsupportedModelError(f"The checkpoint's Quark weights are rotated ({name}), which is not supported.")


def _group(name: str, targets: Targets, own: Any, options: SchemeOptions) -> TargetGroup:
    """The layers of an entry of the configuration."""
    if not isinstance(own, Mapping):
        raise invalid(name[:60], own, "an object")
    weights, inputs = own.get("weight"), own.get("input_tensors")
    layout = None
    if isinstance(weights, Mapping) and not (own.get("output_tensors") or own.get("bias") or weights.get("is_dynamic")):
        layout = _layout(weights, inputs)
    if layout is None:
        raise UnsupportedModelError(
            f"The checkpoint's {name[:60]} is quantised in a way that is not supported (weights {_shown(weights)}; "
            f"activations {_shown(inputs)}; outputs {_shown(own.get('output_tensors'))}; biases "
            f"{_shown(own.get('bias'))}); supported are {_FLOAT8} and {_INT8} weights per tensor or channel "
            "with activations of the same type, and MXFP4 weights."
        )
    return target_group(targets, layout, options)


def _layout(weights: Mapping[str, Any], inputs: Any) -> Layout | None:
    if all(weights.get(key) == value for key, value in _MXFP4.items()):
        return Float4Layout("mxfp4")
    strategy, kind = _strategy(weights), weights.get("dtype")
    if strategy is None or not isinstance(inputs, Mapping) or inputs.get("dtype") != kind:
        return None
    if kind == _INT8 and weights.get("symmetric", True):
        rounds_inputs = bool(inputs.get("symmetric", True))
        return CompressedLayout(8, strategy, is_packed=False, rounds_inputs=rounds_inputs)
    return Float8Layout((ALL if strategy == "tensor" else 1, ALL)) if kind == _FLOAT8 else None


def _strategy(weights: Mapping[str, Any]) -> Literal["channel", "tensor"] | None:
    """What shares a scale, if it is all of a weight or each of its outputs."""
    scheme = weights.get("qscheme")
    if weights.get("group_size") is not None or (scheme == "per_channel" and weights.get("ch_axis") not in (None, 0)):
        return None
    return "tensor" if scheme == "per_tensor" else "channel" if scheme == "per_channel" else None


def _shown(own: Any) -> str:
    """What is said of values, in a few words."""
    if isinstance(own, list):
        return ", and ".join(_shown(part) for part in own[:2])
    if not isinstance(own, Mapping):
        return "not quantised" if own is None else quote(own)
    return ", ".join(f"{key} {quote(own.get(key))}" for key in ("dtype", "qscheme", "group_size"))
