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
from octavo.quantization.float4_layout import NVFP4_GROUP, Float4Layout
from octavo.quantization.float6_layout import Float6Layout
from octavo.quantization.float8_layout import ALL, Float8Layout, is_block, is_size
from octavo.quantization.grouped_weight import Layout
from octavo.quantization.patterns import compile_name, module_names, names_in
from octavo.quantization.quark_cache import declared_cache, has_settings, layers_without_cache
from octavo.quantization.quark_integers import QuarkIntegers
from octavo.quantization.targets import TargetedConfig, TargetGroup, Targets, target_group

_FLOAT8, _FLOAT4, _INT8 = "fp8_e4m3", "fp4", "int8"
_MX = {"qscheme": "per_group", "group_size": MX_GROUP, "scale_format": "e8m0"}
_MX_LAYOUTS: dict[str, Layout] = {
    _FLOAT4: Float4Layout("mxfp4"),
    "fp6_e3m2": Float6Layout("e3m2"),
    "fp6_e2m3": Float6Layout("e2m3"),
}
_INTEGERS = {"int4": (4, True), "uint4": (4, False), _INT8: (8, True), "uint8": (8, False)}
"""Types of integers → their bits, and whether they are signed."""
_PACK_METHODS = ("reorder", "order")
_NVFP4: tuple[dict[str, Any], ...] = (
    {"dtype": _FLOAT4, "qscheme": "per_group", "group_size": NVFP4_GROUP},
    {"dtype": _FLOAT8, "qscheme": "per_tensor"},
)
"""Values in groups, and their scales."""
_ROTATIONS = ("rotation", "quarot")


def parse_quark(raw: Mapping[str, Any], options: SchemeOptions) -> TargetedConfig:
    """The layers of a checkpoint.

    Static scales of activations are not used: scales per token, found as the tokens come, are at least as exact, and
    beside floats of 4 and 6 bits activations are not rounded. Nor are they beside integers if they were to have zeros.
    :mod:`octavo.quantization.quark_cache` reads what is said of keys and values, the outputs of some layers.

    Args:
        raw: ``quantization_config``.

    Raises:
        UnsupportedModelError: it was quantised in a way that is not supported, or the configuration is broken.
    """
    values = ConfigValues(dict(raw), {}, {})
    export = values.mapping("export")
    stored = export.get("weight_format", "real_quantized")
    if stored != "real_quantized":
        raise invalid("weight_format", stored, "'real_quantized'")
    packing = export.get("pack_method", _PACK_METHODS[0])
    if packing not in _PACK_METHODS:
        raise invalid("pack_method", packing, " or ".join(map(repr, _PACK_METHODS)))
    is_interleaved = packing == _PACK_METHODS[0]
    _check_algorithms(raw.get("algo_config"))
    if types := values.mapping("layer_type_quant_config"):
        raise UnsupportedModelError(
            f"The checkpoint's Quark weights differ by types of layers ({quote(list(types))}), which is not supported."
        )
    declared_cache(raw)  # whose errors belong to the start, whatever the cache is stored as
    groups = [
        _group(pattern, Targets(patterns=(compile_name(pattern),)), own, is_interleaved, options)
        for pattern, own in layers_without_cache(raw).items()
    ]
    usual = raw.get("global_quant_config")
    groups.append(_group("global_quant_config", Targets(has_all=True), usual, is_interleaved, options))
    ignored = Targets(patterns=(module_names(names_in(raw, ("exclude",))),))
    return TargetedConfig(options.plain, "quark", tuple(groups), ignored)


def _check_algorithms(algorithms: Any) -> None:
    """Reject rotations, some of which have to be applied to activations as well."""
    for own in algorithms if isinstance(algorithms, list) else [algorithms]:
        name = own.get("name") if isinstance(own, Mapping) else None
        if isinstance(name, str) and name.lower() in _ROTATIONS:
            raise UnsupportedModelError(f"The checkpoint's Quark weights are rotated ({name}), which is not supported.")


def _group(name: str, targets: Targets, own: Any, is_interleaved: bool, options: SchemeOptions) -> TargetGroup:
    """The layers of an entry of the configuration.

    Args:
        is_interleaved: see :class:`QuarkIntegers`.
    """
    if not isinstance(own, Mapping):
        raise invalid(name[:60], own, "an object")
    weights, inputs = _single(own.get("weight")), _single(own.get("input_tensors"))
    more = own.get("output_tensors") or own.get("bias")
    if not (weights or inputs or more):
        return TargetGroup(targets, options.plain, None)
    layout = None
    if not more:
        layout = _layout(weights, inputs, is_interleaved)
    if layout is None:
        raise UnsupportedModelError(
            f"The checkpoint's {name[:60]} is quantised in a way that is not supported (weights {_shown(weights)}; "
            f"activations {_shown(inputs)}; outputs {_shown(own.get('output_tensors'))}; biases "
            f"{_shown(own.get('bias'))}); supported are {_FLOAT8} and {_INT8} weights per tensor or channel, "
            f"and {_FLOAT8} weights per block, with activations of the same type or none; integers per group "
            f"({', '.join(_INTEGERS)}) without; MXFP4, MXFP6 and NVFP4 weights."
        )
    return target_group(targets, layout, options)


def _single(own: Any) -> Any:
    """What is said of values, which may be a list of one."""
    return own[0] if isinstance(own, list) and len(own) == 1 else own


def _layout(weights: Any, inputs: Any, is_interleaved: bool) -> Layout | None:
    if isinstance(weights, list) and len(weights) == len(_NVFP4):
        return Float4Layout("nvfp4") if all(has_settings(*pair) for pair in zip(weights, _NVFP4, strict=True)) else None
    if not isinstance(weights, Mapping) or weights.get("is_dynamic"):
        return None
    kind = weights.get("dtype")
    if has_settings(weights, _MX) and isinstance(kind, str) and kind in _MX_LAYOUTS:
        return _MX_LAYOUTS[kind]
    if weights.get("qscheme") == "per_group":
        return _integers_in_groups(weights, is_interleaved) if inputs is None else None
    if not (inputs is None or has_settings(inputs, {"dtype": kind})):
        return None
    if kind == _FLOAT8:
        return _float8_layout(weights, rounds_inputs=inputs is not None)
    strategy = _strategy(weights)
    if kind != _INT8 or strategy is None or not weights.get("symmetric", True):
        return None
    rounds_inputs = inputs is not None and bool(inputs.get("symmetric", True))
    return CompressedLayout(8, strategy, is_packed=False, rounds_inputs=rounds_inputs)


def _integers_in_groups(weights: Mapping[str, Any], is_interleaved: bool) -> QuarkIntegers | None:
    kind, group = weights.get("dtype"), weights.get("group_size")
    is_known = isinstance(kind, str) and kind in _INTEGERS and weights.get("zero_point_type") in (None, "int32")
    if not is_known or type(group) is not int or not is_size(group) or weights.get("ch_axis") not in (None, 1, -1):
        return None
    bits, is_signed = _INTEGERS[str(kind)]
    # Zeros of symmetric signed integers are 0; those of unsigned ones are not.
    has_zeros = not (is_signed and weights.get("symmetric") is True)
    return QuarkIntegers(bits, group, is_signed, has_zeros, is_interleaved)


def _float8_layout(weights: Mapping[str, Any], *, rounds_inputs: bool) -> Float8Layout | None:
    block, strategy = weights.get("block_size"), _strategy(weights)
    if weights.get("qscheme") == "per_block":
        return Float8Layout((block[0], block[1]), rounds_inputs=rounds_inputs) if is_block(block) else None
    if strategy is None:
        return None
    return Float8Layout((ALL if strategy == "tensor" else 1, ALL), rounds_inputs=rounds_inputs)


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
