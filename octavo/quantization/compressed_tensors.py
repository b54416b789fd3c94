"""Checkpoints in the compressed-tensors format: groups of layers by name or class, each with a scheme of its own.

Source: https://github.com/vllm-project/compressed-tensors.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import quote
from octavo.kernels.float4 import MX_GROUP
from octavo.quantization.compressed_layouts import CompressedLayout
from octavo.quantization.config import QuantizationConfig, SchemeOptions, Unquantized
from octavo.quantization.float4_layout import NVFP4_GROUP, Float4Layout
from octavo.quantization.float8_layout import ALL, MXFP8, Float8Layout, is_block, is_size
from octavo.quantization.grouped_weight import Layout
from octavo.quantization.patterns import compile_pattern
from octavo.quantization.targets import TargetedConfig, TargetGroup, Targets, target_group

_CLASS, _EMBEDDING = "Linear", "Embedding"
_REGEX = "re:"
_ATTENTION = re.compile(r"(Attention|attn|attention)\$?\Z")
_PACKED = "pack-quantized"
_INTEGER_FORMATS = (_PACKED, "int-quantized", "naive-quantized")
_INTEGER_BITS = range(2, 9)
_FLOAT_FORMATS = ("float-quantized", "naive-quantized")
_FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True}
_FLOAT4 = {**_FLOAT8, "num_bits": 4}
_INT8 = {**_FLOAT8, "type": "int"}
_BLOCKS = {"channel": (1, ALL), "tensor": (ALL, ALL)}
_WHOLE = ("token", "tensor")
# Inputs stored in their order, with consecutive groups; and inputs whose groups are in weight_g_idx.
_SORTED, _UNSORTED = ("weight", "static"), ("group", "dynamic")


def parse_compressed_tensors(raw: Mapping[str, Any], options: SchemeOptions) -> QuantizationConfig:
    """The layers of a checkpoint.

    Static scales of activations are not used: scales per token, found as the tokens come, are at least as exact.
    :mod:`octavo.quantization.cache_format` reads what is said of keys and values.

    Args:
        raw: ``quantization_config``.

    Raises:
        UnsupportedModelError: a group is quantised in a way that is not supported, or the configuration is broken.
    """
    if raw.get("transform_config"):
        raise UnsupportedModelError("The checkpoint's weights are transformed (transform_config); they cannot be.")
    sparsity = raw.get("sparsity_config")
    if isinstance(sparsity, Mapping) and sparsity.get("format", "dense") != "dense":
        raise UnsupportedModelError(
            f"The checkpoint's weights are sparse ({quote(sparsity['format'])}); they cannot be."
        )
    groups = raw.get("config_groups")
    if not groups and raw.get("kv_cache_scheme"):
        return Unquantized(options.plain)  # the cache alone is quantised
    if (
        not isinstance(groups, Mapping)
        or not groups
        or not all(isinstance(group, Mapping) for group in groups.values())
    ):
        raise UnsupportedModelError("The checkpoint's quantization_config has no config_groups.")
    default_format = raw.get("format")
    parsed = tuple(
        _parse_group(name, group, group.get("format") or default_format, options)
        for name, group in groups.items()
        if not _is_of_attention(group)
    )
    if not parsed:
        return Unquantized(options.plain)
    return TargetedConfig(options.plain, "compressed-tensors", parsed, _targets(raw.get("ignore") or []))


def _is_of_attention(group: Mapping[str, Any]) -> bool:
    """Whether a group is of attention modules, which have no weights; of what they get, only the cache is rounded."""
    targets = group.get("targets")
    is_named = isinstance(targets, list) and all(_ATTENTION.search(str(target)) for target in targets)
    return group.get("weights") is None and bool(targets) and is_named


def _parse_group(name: str, group: Mapping[str, Any], stored: Any, options: SchemeOptions) -> TargetGroup:
    targets, weights = _targets(group.get("targets")), group.get("weights")
    inputs, outputs = group.get("input_activations"), group.get("output_activations")
    if isinstance(weights, Mapping) and not weights.get("dynamic"):
        layout: Layout | None = None
        if outputs is None or _has(outputs, _INT8):  # which are not rounded
            layout = _integer_layout(weights, inputs, stored)
        if outputs is None and layout is None:
            layout = _float8_layout(weights, inputs, stored) or _float4_layout(weights, inputs, stored)
        if layout is not None:
            return target_group(targets, layout, options)
    raise UnsupportedModelError(
        f"The checkpoint's {str(name)[:60]} is quantised in a way that is not supported (format {quote(stored)}, "
        f"weights {_shown(weights)}, activations {_shown(inputs)}, outputs {_shown(outputs)}); supported are integers "
        "of 2 to 8 bits, float8 weights with or without float8 activations, NVFP4 and MXFP4."
    )


def _float8_layout(weights: Mapping[str, Any], inputs: Any, stored: Any) -> Float8Layout | None:
    """The layout of float8 weights, whose activations are float8, too, or not rounded."""
    if not _has(weights, _FLOAT8) or not (inputs is None or _has(inputs, _FLOAT8)):
        return None
    strategy, block = weights.get("strategy"), weights.get("block_structure")
    if stored == "mxfp8-quantized" and (strategy, weights.get("group_size")) == ("group", MX_GROUP):
        return MXFP8
    if stored not in _FLOAT_FORMATS:
        return None
    granularity = None if inputs is None else inputs.get("strategy")
    if strategy == "block" and is_block(block) and granularity in (None, "group", "token"):
        return Float8Layout((block[0], block[1]), rounds_inputs=inputs is not None)
    if strategy in _BLOCKS and block is None and weights.get("group_size") is None and granularity in (None, *_WHOLE):
        return Float8Layout(_BLOCKS[strategy], rounds_inputs=inputs is not None)
    return None


def _float4_layout(weights: Mapping[str, Any], inputs: Any, stored: Any) -> Float4Layout | None:
    """The layout of 4-bit floats. Activations are not rounded, whether they are meant to be or not."""
    is_meant = inputs is None or _has(inputs, _FLOAT4) or _has(inputs, _FLOAT8)
    shared = weights.get("strategy"), weights.get("group_size")
    if not is_meant or not _has(weights, _FLOAT4):
        return None
    if stored == "nvfp4-pack-quantized" and shared == ("tensor_group", NVFP4_GROUP):
        return Float4Layout("nvfp4", "weight_packed", "weight_global_scale", is_inverse=True)
    if stored == "mxfp4-pack-quantized" and shared == ("group", MX_GROUP):
        return Float4Layout("mxfp4", "weight_packed")
    return None


def _integer_layout(weights: Mapping[str, Any], inputs: Any, stored: Any) -> CompressedLayout | None:
    """The layout of integer weights.

    Activations are rounded to integers of 8 bits, without zeros, if they are meant to be and weights have a scale per
    output; otherwise they are not rounded, whether they are meant to be integers, float8, or neither.
    """
    bits, strategy, group = weights.get("num_bits"), weights.get("strategy"), weights.get("group_size")
    symmetric, order = weights.get("symmetric", True), weights.get("actorder")
    is_integer = isinstance(inputs, Mapping) and inputs.get("type") == "int"
    is_meant = inputs is None or is_integer or (bits == 4 and _has(inputs, _FLOAT8))
    is_grouped = strategy == "group"
    if (
        stored not in _INTEGER_FORMATS
        or weights.get("type") != "int"
        or type(bits) is not int
        or bits not in _INTEGER_BITS
        or isinstance(symmetric, bool) is False
        or strategy not in ("group", "channel", "tensor")
        or is_grouped != is_size(group)
        or order not in (None, False, *_SORTED, *_UNSORTED)
        or not is_meant
    ):
        return None
    own_group = group if isinstance(group, int) and is_grouped else -1
    rounds_inputs = bits == 8 and symmetric and not is_grouped and order not in _UNSORTED and _has(inputs, _INT8)
    return CompressedLayout(bits, strategy, own_group, symmetric, order in _UNSORTED, stored == _PACKED, rounds_inputs)


def _has(values: Any, wanted: Mapping[str, Any]) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(values, Mapping) and all(values.get(key, value) == value for key, value in wanted.items())


def _shown(values: Any) -> str:
    if not isinstance(values, Mapping):
        return "not quantised" if values is None else quote(values)
    return ", ".join(f"{key} {quote(values.get(key))}" for key in ("num_bits", "type", "strategy", "dynamic"))


def _targets(given: Any) -> Targets:
    if not isinstance(given, Sequence) or isinstance(given, str) or not all(isinstance(item, str) for item in given):
        raise UnsupportedModelError("The checkpoint's quantization_config has targets that are no list of names.")
    patterns = [item.removeprefix(_REGEX) for item in given if item.startswith(_REGEX)]
    names = frozenset(item for item in given if not item.startswith(_REGEX))
    return Targets(names, tuple(compile_pattern(pattern) for pattern in patterns), _CLASS in names, _EMBEDDING in names)
