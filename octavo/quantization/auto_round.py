"""Checkpoints of AutoRound (arXiv:2309.05516), which packs integers as GPTQ or AWQ does, and has floats, too.

Source: https://github.com/intel/auto-round.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import ConfigValues, invalid, quote
from octavo.quantization.awq import AwqLayout
from octavo.quantization.config import SchemeOptions
from octavo.quantization.float4_layout import Float4Layout
from octavo.quantization.float8_layout import MXFP8, Float8Layout, is_block
from octavo.quantization.gptq import GptqLayout
from octavo.quantization.grouped_weight import Layout
from octavo.quantization.patterns import Matcher, compile_pattern, names_in
from octavo.quantization.stored_config import group_size
from octavo.quantization.targets import TargetedConfig, TargetGroup, Targets, target_group

_GPTQ, _AWQ = ("auto_round:auto_gptq", "auto_gptq"), ("auto_round:auto_awq", "auto_awq")
_DEFAULTS = {"sym": True, "packing_format": _GPTQ[0]}
_BLOCKS = ("block_name_to_quantize", "to_quant_block_names")
_OVERRIDES = ("bits", "group_size", "sym")
_BITS = range(2, 9)
_UNQUANTIZED_BITS = 16
_SPECIAL = frozenset(r"*+?^$()[]{}|\\")
_HEAD = "lm_head"
_PACKED = "weight_packed"


def parse_auto_round(raw: Mapping[str, Any], options: SchemeOptions) -> TargetedConfig:
    """The layers of a checkpoint: those of some blocks, or all but the head, and exceptions by name and pattern.

    Args:
        raw: ``quantization_config``.

    Raises:
        UnsupportedModelError: it was quantised in a way that is not supported, or the configuration is broken.
    """
    own = ConfigValues(dict(raw), {}, {}).mapping("extra_config")
    exceptions: dict[Layout | None, Targets] = {}
    for name, changes in own.items():
        if not isinstance(changes, Mapping):
            raise invalid("extra_config", changes, "an object of settings by layer")
        layout = _layout({**raw, **{key: changes[key] for key in _OVERRIDES if key in changes}}, f" of {name[:60]}")
        exceptions[layout] = _with(exceptions.get(layout, Targets()), name)
    groups = [
        TargetGroup(targets, options.plain, None) if layout is None else target_group(targets, layout, options)
        for layout, targets in exceptions.items()
    ]
    default = _layout(raw, "")
    if default is not None:
        groups.append(target_group(Targets(patterns=_blocks(raw)), default, options))
    ignored = Targets() if _HEAD in own else Targets(names=frozenset((_HEAD,)))
    return TargetedConfig(options.plain, "auto-round", tuple(groups), ignored)


def _with(targets: Targets, name: str) -> Targets:
    """Targets with another name, or with a pattern that may begin anywhere in names."""
    if _SPECIAL.isdisjoint(name):
        return replace(targets, names=targets.names | {name})
    return replace(targets, patterns=(*targets.patterns, compile_pattern(f".*?(?:{name})")))


def _blocks(raw: Mapping[str, Any]) -> tuple[Matcher, ...]:
    """What matches the layers that are quantised without an exception."""
    lists = {key: [*value.split(",")] if isinstance(value := raw.get(key), str) else value for key in _BLOCKS}
    blocks = names_in(lists, _BLOCKS)
    return tuple(compile_pattern(re.escape(name)) for name in blocks) or (compile_pattern(""),)


def _layout(own: Mapping[str, Any], place: str) -> Layout | None:
    """The layout of layers with some settings; None if they are not quantised."""
    values = ConfigValues(dict(own), _DEFAULTS, {})
    bits, packing, kind = values.count("bits"), values.get("packing_format"), own.get("data_type", "int")
    if bits >= _UNQUANTIZED_BITS:
        return None
    if kind == "int" and packing in _GPTQ and bits in _BITS:
        return GptqLayout(bits, group_size(values), values.flag("sym"), is_ordered=False, zero_offset=1)
    if kind == "int" and packing in _AWQ and bits == 4:
        return AwqLayout(group_size(values))
    floats = _float_layout(kind, bits, values.get("group_size"), rounds_inputs=own.get("act_bits", 16) == bits)
    if floats is not None:
        return floats
    raise UnsupportedModelError(
        f"The checkpoint's AutoRound weights{place} have {bits} bits, the data_type {quote(kind)} and the "
        f"packing_format {quote(packing)}; supported are integers of 2 to 8 bits in {_GPTQ[0]}, and of 4 bits in "
        f"{_AWQ[0]}, MXFP4 and MXFP8 (mx_fp), NVFP4 (nv_fp) and FP8 in blocks (fp)."
    )


def _float_layout(kind: Any, bits: int, group: Any, *, rounds_inputs: bool) -> Layout | None:
    """The layout of floats. Activations are not rounded beside those that share scales in groups."""
    match kind, bits, group:
        case "mx_fp", 4, 32:
            return Float4Layout("mxfp4", _PACKED)
        case "mx_fp", 8, 32:
            return MXFP8
        case "nv_fp", 4, 16:
            return Float4Layout("nvfp4", _PACKED, "weight_global_scale", is_inverse=True)
        case "fp" | "fp8", 8, _ if is_block(group):
            return Float8Layout((group[0], group[1]), "weight_scale_inv", rounds_inputs=rounds_inputs)
    return None
