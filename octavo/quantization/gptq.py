"""Checkpoints of GPTQ (arXiv:2210.17323), as AutoGPTQ and GPTQModel write them.

Source: https://github.com/ModelCloud/GPTQModel.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from octavo.errors import UnsupportedModelError, WeightsError
from octavo.hub.config_values import ConfigValues, invalid, quote
from octavo.quantization.bit_packing import num_words, unpack_words
from octavo.quantization.config import QuantizationConfig, SchemeOptions
from octavo.quantization.grouped_weight import (
    FLOATS,
    GroupedForm,
    GroupedWeight,
    Layout,
    StoredTensor,
    integer_form,
)
from octavo.quantization.scheme import LinearScheme
from octavo.quantization.stored_config import (
    LayoutRule,
    StoredConfig,
    dynamic_rules,
    group_size,
    layout_by_rules,
    stored_format,
)

_BITS = (2, 3, 4, 8)
_FORMATS = ("gptq", "gptq_v2")
_DEFAULTS = {"desc_act": False, "sym": True, "group_size": -1}


@dataclass(frozen=True, slots=True)
class GptqLayout(Layout):
    """Values packed along the inputs, ``[in / 8, out]`` for 4 bits; zeros along the outputs, scales ``[groups, out]``.

    Attributes:
        bits, group: see :class:`GroupedForm`.
        is_symmetric: whether zero is in the middle of the codes.
        is_ordered: whether ``g_idx`` says which group each input is in; otherwise groups are consecutive.
        zero_offset: what is added to stored zeros: 1 in the first version of the format.
    """

    bits: int
    group: int
    is_symmetric: bool
    is_ordered: bool
    zero_offset: int

    @property
    def name(self) -> str:
        return "GPTQ"

    @property
    def form(self) -> GroupedForm:
        return integer_form(self.bits, self.group, has_zeros=not self.is_symmetric, is_ordered=self.is_ordered)

    def tensors(self, shape: tuple[int, int]) -> dict[str, StoredTensor]:
        num_outputs, num_inputs = shape
        groups, words = self.form.num_groups(num_inputs), (torch.int32,)
        found = {
            "qweight": StoredTensor(((num_words(num_inputs, self.bits), num_outputs),), words),
            "qzeros": StoredTensor(((groups, num_words(num_outputs, self.bits)),), words),
            "scales": StoredTensor(((groups, num_outputs),), FLOATS),
        }
        return found | ({"g_idx": StoredTensor(((num_inputs,),), words)} if self.is_ordered else {})

    def read(self, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> GroupedWeight:
        num_outputs, num_inputs = shape
        codes = unpack_words(tensors["qweight"], self.bits, 0, num_inputs).T.contiguous()
        stored = unpack_words(tensors["qzeros"], self.bits, 1, num_outputs).T
        stored = (stored + self.zero_offset) & ((1 << self.bits) - 1)
        zeros: torch.Tensor | float = stored.float()
        if self.is_symmetric:
            zeros = float(1 << (self.bits - 1))
            if bool((stored != zeros).any()):
                raise WeightsError("The GPTQ weights have zeros of their own, but the configuration has sym = true.")
        group = self.form.group_of(num_inputs)
        weight = GroupedWeight(codes, tensors["scales"].float().T.contiguous(), group, zeros)
        ordered = weight.in_order_of(tensors["g_idx"], self.name) if self.is_ordered else weight
        return ordered.widened(self.form)


@dataclass(frozen=True, slots=True)
class GptqConfig(StoredConfig):
    """Layers of one layout, and exceptions by patterns.

    Attributes:
        default: of layers without an exception.
        exceptions: patterns that match the beginning of names, the first one counts, and their layout; None for layers
            that are not quantised.
        included: ends of names of the layers that are quantised; empty for all.
        has_head: whether the head is quantised.
    """

    default: GptqLayout
    exceptions: tuple[LayoutRule, ...]
    included: tuple[str, ...]
    has_head: bool

    @property
    def usual(self) -> Layout:
        return self.default

    def layout(self, name: str) -> Layout | None:
        is_included = not self.included or f".{name}".endswith(self.included)
        return layout_by_rules(self.exceptions, name, self.default if is_included else None)

    def head_scheme(self, name: str) -> LinearScheme:
        layout = layout_by_rules(self.exceptions, name, self.default) if self.has_head else None
        return self.plain if layout is None else self.options.stored(layout)


def parse_gptq(raw: Mapping[str, Any], options: SchemeOptions) -> QuantizationConfig:
    """The layers of a checkpoint.

    Args:
        raw: ``quantization_config``.

    Raises:
        UnsupportedModelError: it was quantised in a way that is not supported, or the configuration is broken.
    """
    values = ConfigValues(dict(raw), _DEFAULTS, {})
    stored = stored_format(raw, ("checkpoint_format", "format"), "gptq")
    if stored not in _FORMATS or raw.get("is_marlin_format"):
        stored = "marlin" if raw.get("is_marlin_format") else stored
        raise UnsupportedModelError(
            f"The checkpoint's GPTQ weights have the format {quote(stored)}; supported are {' and '.join(_FORMATS)}."
        )
    default = _layout(values, 1 if stored == "gptq" else 0)

    def changed(own: Mapping[str, Any]) -> GptqLayout:
        return _layout(ConfigValues(dict(own), _DEFAULTS, {}), default.zero_offset)

    exceptions = dynamic_rules(values, changed)
    included = tuple(f".{name}" for name in _included(raw.get("modules_in_block_to_quantize")))
    return GptqConfig(options.plain, options, default, exceptions, included, values.flag("lm_head"))


def _layout(values: ConfigValues, zero_offset: int) -> GptqLayout:
    bits = values.count("bits")
    if bits not in _BITS:
        raise UnsupportedModelError(f"The checkpoint's GPTQ weights have {bits} bits; supported are 2, 3, 4 and 8.")
    return GptqLayout(bits, group_size(values), values.flag("sym"), values.flag("desc_act"), zero_offset)


def _included(groups: Any) -> list[str]:
    """The names in ``modules_in_block_to_quantize``, lists of layers that were quantised at the same time."""
    if groups is None:
        return []
    lists = groups if isinstance(groups, list) else [None]
    names: list[Any] = [name for group in lists for name in (group if isinstance(group, list) else [group])]
    if not all(isinstance(name, str) for name in names):
        raise invalid("modules_in_block_to_quantize", groups, "lists of names")
    return names
