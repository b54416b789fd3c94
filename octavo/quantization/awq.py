"""Checkpoints of AWQ (arXiv:2306.00978), as AutoAWQ writes them.

Source: https://github.com/casper-hansen/AutoAWQ.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import ConfigValues, quote
from octavo.quantization.bit_packing import WORD_BITS, unpack_words
from octavo.quantization.config import SchemeOptions
from octavo.quantization.grouped_weight import FLOATS, GroupedForm, GroupedWeight, Layout, StoredTensor
from octavo.quantization.patterns import names_in
from octavo.quantization.stored_config import (
    LayoutRule,
    StoredConfig,
    dynamic_rules,
    group_size,
    layout_by_rules,
    stored_format,
)

_BITS = 4
_PER_WORD = WORD_BITS // _BITS
# A word's codes from the lowest bits up belong to these of its eight outputs.
_OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)
# Names that older files have for the keys.
_OLDER = {"bits": "w_bit", "group_size": "q_group_size"}
_DEFAULTS = {"group_size": 128}


@dataclass(frozen=True, slots=True)
class AwqLayout(Layout):
    """Values of 4 bits packed along the outputs, ``[in, out / 8]``; zeros likewise, scales ``[groups, out]``.

    Attributes:
        group: see :class:`GroupedForm`.
    """

    group: int

    @property
    def name(self) -> str:
        return "AWQ"

    @property
    def form(self) -> GroupedForm:
        return GroupedForm(_BITS, self.group, has_zeros=True)

    def tensors(self, shape: tuple[int, int]) -> dict[str, StoredTensor]:
        num_outputs, num_inputs = shape
        words, groups = -(-num_outputs // _PER_WORD), self.form.num_groups(num_inputs)
        return {
            "qweight": StoredTensor(((num_inputs, words),), (torch.int32,)),
            "qzeros": StoredTensor(((groups, words),), (torch.int32,)),
            "scales": StoredTensor(((groups, num_outputs),), FLOATS),
        }

    def read(self, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> GroupedWeight:
        num_outputs, num_inputs = shape
        codes, zeros = (unpack_interleaved(tensors[name], num_outputs) for name in ("qweight", "qzeros"))
        scales = tensors["scales"].float().T.contiguous()
        return GroupedWeight(codes, scales, self.form.group_of(num_inputs), zeros.float())


@dataclass(frozen=True, slots=True)
class AwqConfig(StoredConfig):
    """All layers but the head and those whose names contain one of some strings.

    Attributes:
        layers: the layout of the others.
        ignored: the strings.
        exceptions: patterns whose layers are not quantised, or in another layout.
    """

    layers: AwqLayout
    ignored: tuple[str, ...]
    exceptions: tuple[LayoutRule, ...] = ()

    @property
    def usual(self) -> Layout:
        return self.layers

    def layout(self, name: str) -> Layout | None:
        is_ignored = any(part in name for part in self.ignored)
        return None if is_ignored else layout_by_rules(self.exceptions, name, self.layers)


def parse_awq(raw: Mapping[str, Any], options: SchemeOptions) -> AwqConfig:
    """The layers of a checkpoint.

    Args:
        raw: ``quantization_config``.

    Raises:
        UnsupportedModelError: it was quantised in a way that is not supported, or the configuration is broken.
    """
    older = {key: raw[old] for key, old in _OLDER.items() if old in raw and key not in raw}
    values = ConfigValues({**raw, **older}, _DEFAULTS, {})
    version = str(stored_format(raw, ("version", "checkpoint_format", "format"), "gemm")).lower()
    if version != "gemm":
        raise UnsupportedModelError(
            f"The checkpoint's AWQ weights have the version {quote(version)}; supported is gemm."
        )
    ignored = names_in(raw, ("modules_to_not_convert",))
    exceptions = dynamic_rules(values, lambda own: _layout(ConfigValues(dict(own), _DEFAULTS, {})))
    return AwqConfig(options.plain, options, _layout(values), ignored, exceptions)


def _layout(values: ConfigValues) -> AwqLayout:
    bits = values.count("bits")
    if bits != _BITS:
        raise UnsupportedModelError(f"The checkpoint's AWQ weights have {bits} bits; supported are 4.")
    return AwqLayout(group_size(values))


def unpack_interleaved(words: torch.Tensor, num_outputs: int) -> torch.Tensor:
    """Codes of 4 bits in words along the outputs, ``[rows, out / 8]`` → ``[out, rows]`` uint8."""
    mixed = unpack_words(words, _BITS, 1, words.shape[1] * _PER_WORD).unflatten(1, (-1, _PER_WORD))
    codes = torch.empty_like(mixed)
    codes[..., list(_OUTPUTS)] = mixed
    return codes.flatten(1)[:, :num_outputs].T.contiguous()
