"""Checkpoints of bitsandbytes: NF4 and FP4 (arXiv:2305.14314), and INT8 (arXiv:2208.07339).

Four-bit values share scales by blocks of the flattened weight, which are groups of inputs if rows have whole blocks.
Eight-bit ones are integers with a scale per output; their activations are not rounded, so none has to be kept apart as
an outlier.

Source: https://github.com/bitsandbytes-foundation/bitsandbytes.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from octavo.errors import UnsupportedModelError, WeightsError
from octavo.hub.config_values import ConfigValues, invalid, quote
from octavo.kernels.float4 import TABLES
from octavo.quantization.config import SchemeOptions
from octavo.quantization.grouped_weight import GroupedForm, GroupedWeight, Layout, StoredTensor
from octavo.quantization.patterns import ModuleNames, module_names, names_in
from octavo.quantization.scheme import LinearScheme
from octavo.quantization.stored_config import StoredConfig

_MIDDLE, _LARGEST = 128, 127
_BLOCK = 64
"""Four-bit values that share a scale by default; of another number only the tensors tell."""
_TABLE_ERROR = 1e-5
_IGNORED = "llm_int8_skip_modules"
_DEFAULTS = {"bnb_4bit_quant_type": "fp4"}
_STORAGES = {
    "uint8": torch.uint8,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
_STATE = "weight.quant_state.bitsandbytes__"


@dataclass(frozen=True, slots=True)
class FourBitLayout(Layout):
    """Indices into a table of 16 values, and the largest magnitude of each block of consecutive ones.

    Attributes:
        kind: the table.
        is_nested: whether the magnitudes are themselves indices, into a table of 256 values.
        storage: the type of the tensor of indices, whose bytes have two each.
    """

    kind: Literal["nf4", "fp4"]
    is_nested: bool
    storage: torch.dtype = torch.uint8

    @property
    def name(self) -> str:
        return "bitsandbytes"

    @property
    def form(self) -> GroupedForm:
        return GroupedForm(4, _BLOCK, kind=self.kind)

    def tensors(self, shape: tuple[int, int]) -> dict[str, StoredTensor]:
        some, values = ((-1,),), (torch.float32,)
        bytes_ = (torch.uint8,)
        found = {
            "weight": StoredTensor(((-(-shape[0] * shape[1] // (2 * self.storage.itemsize)), 1),), (self.storage,)),
            "weight.absmax": StoredTensor(some, bytes_ if self.is_nested else values),
            "weight.quant_map": StoredTensor(((16,),), values),
            f"{_STATE}{self.kind}": StoredTensor(some, bytes_),
        }
        if self.is_nested:
            found["weight.nested_absmax"] = StoredTensor(some, values)
            found["weight.nested_quant_map"] = StoredTensor(((256,),), values)
        return found

    def read(self, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> GroupedWeight:
        state = _state(tensors[f"{_STATE}{self.kind}"])
        table = tensors["weight.quant_map"]
        if not torch.allclose(table, table.new_tensor(TABLES[self.kind]), rtol=0, atol=_TABLE_ERROR):
            raise WeightsError(f"The bitsandbytes weights have a quant_map that is not the table of {self.kind}.")
        largest = tensors["weight.absmax"]
        if self.is_nested:
            own = tensors["weight.nested_quant_map"][largest.long()]
            largest = own * _spread(tensors["weight.nested_absmax"], _count(state, "nested_blocksize"), len(own))
            largest += float(state.get("nested_offset", 0.0))
        packed = tensors["weight"].flatten().view(torch.uint8)
        codes = torch.stack((packed >> 4, packed & 15), -1).flatten()[: shape[0] * shape[1]].view(shape)
        block = _count(state, "blocksize")
        group = math.gcd(block, _BLOCK, shape[1])  # neither a block nor a row ends within such a group
        scales = _spread(largest, block, codes.numel(), group).view(shape[0], -1)
        return GroupedWeight(codes, scales, group, table=self.form.table)


@dataclass(frozen=True, slots=True)
class EightBitLayout(Layout):
    """Signed integers; ``SCB`` has the largest magnitude of each output."""

    @property
    def name(self) -> str:
        return "bitsandbytes int8"

    @property
    def form(self) -> GroupedForm:
        return GroupedForm(8, -1)

    def tensors(self, shape: tuple[int, int]) -> dict[str, StoredTensor]:
        scales = StoredTensor((shape[:1],), (torch.float32, torch.float16))
        return {"weight": StoredTensor((shape,), (torch.int8,)), "SCB": scales}

    def read(self, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> GroupedWeight:
        codes = (tensors["weight"].to(torch.int16) + _MIDDLE).to(torch.uint8)
        return GroupedWeight(codes, tensors["SCB"].float()[:, None] / _LARGEST, shape[1], float(_MIDDLE))


@dataclass(frozen=True, slots=True)
class BitsandbytesConfig(StoredConfig):
    """All layers but those that are named.

    Attributes:
        layers: the layout of the others.
        ignored: names of layers, or of modules around them; see :class:`ModuleNames`.
        has_head: whether the head is one of the others; writers leave it as it is unless they are given a list of
            names, and it is not among these.
    """

    layers: FourBitLayout | EightBitLayout
    ignored: ModuleNames
    has_head: bool = False

    @property
    def usual(self) -> Layout:
        return self.layers

    def layout(self, name: str) -> Layout | None:
        return None if self.ignored.match(name) else self.layers

    def head_scheme(self, name: str) -> LinearScheme:
        return self.scheme(name) if self.has_head else self.plain


def parse_bitsandbytes(raw: Mapping[str, Any], options: SchemeOptions) -> BitsandbytesConfig:
    """The layers of a checkpoint.

    Args:
        raw: ``quantization_config``.

    Raises:
        UnsupportedModelError: it was quantised in a way that is not supported, or the configuration is broken.
    """
    values = ConfigValues(dict(raw), _DEFAULTS, {})
    ignored = module_names(names_in(raw, (_IGNORED,)))
    has_head = raw.get(_IGNORED) is not None
    if values.flag("load_in_8bit") or values.flag("_load_in_8bit"):
        return BitsandbytesConfig(options.plain, options, EightBitLayout(), ignored, has_head)
    if not (values.flag("load_in_4bit") or values.flag("_load_in_4bit")):
        raise UnsupportedModelError("The checkpoint's bitsandbytes configuration has neither 4 nor 8 bits.")
    kind = values.text("bnb_4bit_quant_type")
    if kind not in ("nf4", "fp4"):
        raise UnsupportedModelError(
            f"The checkpoint's weights are of the type {quote(kind)}; supported are nf4 and fp4."
        )
    stored = str(values.get("bnb_4bit_quant_storage") or "uint8").removeprefix("torch.")
    if stored not in _STORAGES:
        raise invalid("bnb_4bit_quant_storage", stored, f"one of {', '.join(_STORAGES)}")
    is_nested = values.flag("bnb_4bit_use_double_quant")
    layout = FourBitLayout("nf4" if kind == "nf4" else "fp4", is_nested, _STORAGES[stored])
    return BitsandbytesConfig(options.plain, options, layout, ignored, has_head)


def _state(stored: torch.Tensor) -> dict[str, Any]:
    """The JSON object in a tensor of bytes."""
    try:
        state = json.loads(bytes(stored.tolist()))
    except ValueError:
        state = None
    if not isinstance(state, dict):
        raise WeightsError("The bitsandbytes weights have a quant_state that is no JSON object.")
    return state


def _count(state: Mapping[str, Any], key: str) -> int:
    value = state.get(key)
    if type(value) is not int or value < 1:
        raise WeightsError(f"The bitsandbytes weights have a quant_state with {key} = {quote(value)}.")
    return value


def _spread(values: torch.Tensor, block: int, size: int, group: int = 1) -> torch.Tensor:
    """Values of blocks for each group of so many elements; ``group`` is a factor of ``block`` and ``size``."""
    if len(values) != -(-size // block):
        raise WeightsError(f"The bitsandbytes weights have {len(values)} blocks of {block} for {size} values.")
    return values.repeat_interleave(block // group)[: size // group]
