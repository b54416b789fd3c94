"""Checkpoints of bitsandbytes: NF4 and FP4 (arXiv:2305.14314), and INT8 (arXiv:2208.07339).

Four-bit layers are expanded as they are loaded. Eight-bit ones are integers with a scale per output; their activations
are not rounded, so none has to be kept apart as an outlier.

Source: https://github.com/bitsandbytes-foundation/bitsandbytes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from octavo.errors import UnsupportedModelError, WeightsError
from octavo.hub.config_values import ConfigValues, quote
from octavo.quantization.config import SchemeOptions
from octavo.quantization.grouped_weight import GroupedForm, GroupedWeight, Layout, StoredTensor
from octavo.quantization.patterns import ModuleNames, module_names, names_in
from octavo.quantization.stored_config import StoredConfig

_MIDDLE, _LARGEST = 128, 127
_STATE = "weight.quant_state.bitsandbytes__"


@dataclass(frozen=True, slots=True)
class FourBitLayout(Layout):
    """Indices into a table of 16 values, and the largest magnitude of each block of consecutive ones.

    Attributes:
        kind: the table.
        is_nested: whether the magnitudes are themselves indices, into a table of 256 values.
    """

    kind: Literal["nf4", "fp4"]
    is_nested: bool

    @property
    def name(self) -> str:
        return f"bitsandbytes {self.kind}"

    @property
    def form(self) -> GroupedForm | None:
        return None

    def tensors(self, shape: tuple[int, int]) -> dict[str, StoredTensor]:
        some, values = ((-1,),), (torch.float32,)
        bytes_ = (torch.uint8,)
        found = {
            "weight": StoredTensor(((-(-shape[0] * shape[1] // 2), 1),), bytes_),
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
        packed, table = tensors["weight"].flatten(), tensors["weight.quant_map"]
        largest = tensors["weight.absmax"]
        if self.is_nested:
            own = tensors["weight.nested_quant_map"][largest.long()]
            largest = own * _spread(tensors["weight.nested_absmax"], _count(state, "nested_blocksize"), len(own))
            largest += float(state.get("nested_offset", 0.0))
        values = torch.empty(len(packed), 2, device=packed.device)
        values[:, 0], values[:, 1] = table[(packed >> 4).int()], table[(packed & 15).int()]
        values = values.view(-1)[: shape[0] * shape[1]]
        values *= _spread(largest, _count(state, "blocksize"), len(values))
        ones = torch.ones(shape[0], 1, device=packed.device)
        return GroupedWeight(values.view(shape), ones, shape[1])


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
    """All layers but the head and those that are named.

    Attributes:
        layers: the layout of the others.
        ignored: names of layers, or of modules around them; see :class:`ModuleNames`.
    """

    layers: FourBitLayout | EightBitLayout
    ignored: ModuleNames

    @property
    def usual(self) -> Layout:
        return self.layers

    def layout(self, name: str) -> Layout | None:
        return None if self.ignored.match(name) else self.layers


def parse_bitsandbytes(raw: Mapping[str, Any], options: SchemeOptions) -> BitsandbytesConfig:
    """The layers of a checkpoint.

    Args:
        raw: ``quantization_config``.

    Raises:
        UnsupportedModelError: it was quantised in a way that is not supported, or the configuration is broken.
    """
    values = ConfigValues(dict(raw), {"bnb_4bit_quant_type": "fp4"}, {})
    ignored = module_names(names_in(raw, ("llm_int8_skip_modules",)))
    if values.flag("load_in_8bit") or values.flag("_load_in_8bit"):
        return BitsandbytesConfig(options.plain, options, EightBitLayout(), ignored)
    if not (values.flag("load_in_4bit") or values.flag("_load_in_4bit")):
        raise UnsupportedModelError("The checkpoint's bitsandbytes configuration has neither 4 nor 8 bits.")
    kind = values.text("bnb_4bit_quant_type")
    if kind not in ("nf4", "fp4"):
        raise UnsupportedModelError(
            f"The checkpoint's weights are of the type {quote(kind)}; supported are nf4 and fp4."
        )
    layout = FourBitLayout("nf4" if kind == "nf4" else "fp4", values.flag("bnb_4bit_use_double_quant"))
    return BitsandbytesConfig(options.plain, options, layout, ignored)


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


def _spread(values: torch.Tensor, block: int, size: int) -> torch.Tensor:
    """Values of blocks for each of so many elements."""
    if len(values) != -(-size // block):
        raise WeightsError(f"The bitsandbytes weights have {len(values)} blocks of {block} for {size} values.")
    return values.repeat_interleave(block)[:size]
