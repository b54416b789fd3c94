"""Checkpoints of torchao, whose tensor subclasses are flattened into several tensors of a safetensors file.

Source: https://github.com/pytorch/ao.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import invalid, quote
from octavo.quantization.compressed_layouts import CompressedLayout, Strategy
from octavo.quantization.config import SchemeOptions
from octavo.quantization.float8_layout import ALL, Float8Layout, is_size
from octavo.quantization.grouped_weight import FLOATS, GroupedForm, GroupedWeight, Layout, StoredTensor
from octavo.quantization.patterns import compile_pattern, module_names, names_in
from octavo.quantization.targets import TargetedConfig, TargetGroup, Targets, target_group

_NAMES = {f"weight{end}": f"_weight_{own}" for end, own in (("", "qdata"), ("_scale", "scale"))}
_ZEROS = "_weight_zero_point"
_NAMES["weight_zero_point"] = _ZEROS
_VALUES, _SCALES = _NAMES["weight"], _NAMES["weight_scale"]
_REGEX, _DEFAULT = "re:", "_default"
_BY_NAME = ("FqnToConfig", "ModuleFqnToConfig")
_PLAIN = "PLAIN"
_INTEGERS = {f"int{bits}": bits for bits in range(1, 9)}
_IGNORED = "modules_to_not_convert"


@dataclass(frozen=True, slots=True)
class ByteLayout(Layout):
    """Integers of a byte each, by torchao's names.

    Attributes:
        integers: how they are stored but for the names.
    """

    integers: CompressedLayout

    @property
    def name(self) -> str:
        return "torchao"

    @property
    def form(self) -> GroupedForm:
        return self.integers.form

    def tensors(self, shape: tuple[int, int]) -> dict[str, StoredTensor]:
        return {_NAMES[name]: stored for name, stored in self.integers.tensors(shape).items()}

    def read(self, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> GroupedWeight:
        return self.integers.read({name: tensors[own] for name, own in _NAMES.items() if own in tensors}, shape)


@dataclass(frozen=True, slots=True)
class Int4Layout(Layout):
    """Two signed integers per byte, ``[out, in / 2]``, the first in the low half; scales and zeros ``[groups, out]``.

    A value is its scale times the integer, plus the zero.

    Attributes:
        group: inputs that share a scale.
    """

    group: int

    @property
    def name(self) -> str:
        return "torchao"

    @property
    def form(self) -> GroupedForm:
        return GroupedForm(4, self.group, has_zeros=True, has_offsets=True)

    def tensors(self, shape: tuple[int, int]) -> dict[str, StoredTensor]:
        num_outputs, num_inputs = shape
        by_group = StoredTensor(((self.form.num_groups(num_inputs), num_outputs),), FLOATS)
        values = StoredTensor(((num_outputs, -(-num_inputs // 2)),), (torch.int8, torch.uint8))
        return {_VALUES: values, _SCALES: by_group, _ZEROS: by_group}

    def read(self, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> GroupedWeight:
        packed = tensors[_VALUES].view(torch.uint8)
        codes = (torch.stack((packed & 15, packed >> 4), -1).flatten(1)[:, : shape[1]] + 8) & 15
        scales, zeros = (tensors[name].float().T.contiguous() for name in (_SCALES, _ZEROS))
        return GroupedWeight(codes, scales, self.form.group_of(shape[1]), 8 - zeros / scales)


def parse_torchao(raw: Mapping[str, Any], options: SchemeOptions) -> TargetedConfig:
    """The layers of a checkpoint.

    Args:
        raw: ``quantization_config``.

    Raises:
        UnsupportedModelError: it was quantised in a way that is not supported, or the configuration is broken.
    """
    given = raw.get("quant_type")
    if isinstance(given, str):
        raise UnsupportedModelError(
            f"The checkpoint's torchao weights have the quant_type {quote(given)}, which is stored by pickle and "
            "cannot be read; save them anew with a configuration object as quant_type."
        )
    whole = given.get("default") if isinstance(given, Mapping) else None
    kind, values = _typed("quant_type", whole)
    # Writers leave the head as it is unless they are told otherwise.
    has_head = raw.get("include_input_output_embeddings") or raw.get(_IGNORED) is not None
    ignored = names_in(raw, (_IGNORED,)) if has_head else ("lm_head",)
    by_name: Any = {_DEFAULT: whole}
    if kind in _BY_NAME:
        by_name = values.get("fqn_to_config") or values.get("module_fqn_to_config")
    if not isinstance(by_name, Mapping):
        raise invalid("fqn_to_config", by_name, "an object of settings by name")
    groups = tuple(_group(_targets(name), own, options) for name, own in by_name.items())
    plain = Targets(patterns=(module_names(ignored),))
    return TargetedConfig(options.plain, "torchao", groups, plain)


def _typed(key: str, value: Any) -> tuple[str, Mapping[str, Any]]:
    """The name of a serialised object's class, and its attributes."""
    kind, values = (value.get("_type"), value.get("_data")) if isinstance(value, Mapping) else (None, None)
    if not isinstance(kind, str) or not isinstance(values, Mapping):
        raise invalid(key, value, "an object with _type and _data")
    return kind, values


def _targets(name: str) -> Targets:
    """The layers of an entry: those of a name or pattern, of themselves or their weights, or all others."""
    if name == _DEFAULT:
        return Targets(has_all=True)
    if name.startswith(_REGEX):
        pattern = name.removeprefix(_REGEX).removesuffix(".weight").removesuffix("\\")
        return Targets(patterns=(compile_pattern(rf"(?:{pattern})\Z"),))
    return Targets(names=frozenset((name.removesuffix(".weight"),)))


def _group(targets: Targets, own: Any, options: SchemeOptions) -> TargetGroup:
    """The layers of a configuration object; of None, they are not quantised."""
    if own is None:
        return TargetGroup(targets, options.plain, None)
    kind, values = _typed("quant_type", own)
    layout = _layout(kind, values) if own.get("_version") == 2 else None
    if layout is None:
        named = ", ".join(
            f"{key} {_shown(values[key])}"
            for key in ("weight_dtype", "granularity", "weight_granularity", "int4_packing_format", "act_mapping_type")
            if key in values
        )
        raise UnsupportedModelError(
            f"The checkpoint's torchao weights have the configuration {kind[:60]} of version "
            f"{quote(own.get('_version'))} ({named}), which is not supported; supported are those of version 2 for "
            "weights of int8, plain int4, unpacked int1 to int8, and float8, by row, group or tensor."
        )
    return target_group(targets, layout, options)


def _layout(kind: str, values: Mapping[str, Any]) -> Layout | None:
    match kind:
        case "Int8WeightOnlyConfig":
            group = values.get("group_size")
            return _bytes(8, group if is_size(group) else _group_of(values.get("granularity"), 0))
        case "Int8DynamicActivationInt8WeightConfig":
            is_symmetric = _name(values.get("act_mapping_type"), "SYMMETRIC") == "SYMMETRIC"
            return _bytes(8, _group_of(values.get("granularity"), 1), rounds_inputs=is_symmetric)
        case "IntxWeightOnlyConfig" | "Int8DynamicActivationIntxWeightConfig":
            prefix = "weight_" if kind.startswith("Int8") else ""
            if _name(values.get("intx_packing_format"), "UNPACKED_TO_INT8") != "UNPACKED_TO_INT8":
                return None
            bits = _INTEGERS.get(_name(values.get("weight_dtype"), "int8"))
            mapping = _name(values.get(f"{prefix}mapping_type"), "SYMMETRIC")
            group = _group_of(values.get(f"{prefix}granularity"), 0)
            return None if bits is None else _bytes(bits, group, is_symmetric=mapping != "ASYMMETRIC")
        case "Int4WeightOnlyConfig":
            group = values.get("group_size")
            is_plain = _name(values.get("int4_packing_format"), _PLAIN) == _PLAIN
            return Int4Layout(group) if is_plain and type(group) is int and is_size(group) else None
        case "Float8WeightOnlyConfig" | "Float8DynamicActivationFloat8WeightConfig":
            group = _group_of(values.get("granularity"), 1)
            is_e4m3 = _name(values.get("weight_dtype"), "float8_e4m3fn") == "float8_e4m3fn"
            is_plain = _name(values.get("packing_format"), _PLAIN) == _PLAIN
            if group not in (ALL, 0) or not (is_e4m3 and is_plain):
                return None
            block = (1, ALL) if group == ALL else (ALL, ALL)
            return Float8Layout(block, _SCALES, _VALUES, rounds_inputs=kind.startswith("Float8Dynamic"))
    return None


def _bytes(
    bits: int, group: int | None, *, is_symmetric: bool = True, rounds_inputs: bool = False
) -> ByteLayout | None:
    if group is None:
        return None
    strategy: Strategy = "group" if group > 0 else "channel" if group == ALL else "tensor"
    rounds_inputs = rounds_inputs and group <= 0
    return ByteLayout(
        CompressedLayout(
            bits, strategy, max(group, 0) or ALL, is_symmetric, is_packed=False, rounds_inputs=rounds_inputs
        )
    )


def _group_of(granularity: Any, place: int) -> int | None:
    """The inputs that share a scale: :data:`ALL` for those of an output, 0 for the whole weight; None for others.

    Args:
        place: of the weights' granularity, where activations have one of their own.
    """
    if isinstance(granularity, list) and len(granularity) > place:
        granularity = granularity[place]
    if granularity is None:
        return ALL
    kind, values = _typed("granularity", granularity)
    group = values.get("group_size")
    if kind == "PerGroup" and type(group) is int and is_size(group):
        return group
    is_row = (kind == "PerRow" and values.get("dim", -1) == -1) or (kind == "PerAxis" and values.get("axis") == 0)
    return ALL if is_row else 0 if kind == "PerTensor" else None


def _name(value: Any, default: str) -> str:
    """The name of a serialised member of an enumeration, or type."""
    found = value.get("_data") if isinstance(value, Mapping) else value
    return default if found is None else str(found)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " and ".join(_shown(part) for part in value[:2])
    if not isinstance(value, Mapping):
        return quote(value)
    return quote(value.get("_type")) if isinstance(value.get("_data"), Mapping) else quote(value.get("_data"))
