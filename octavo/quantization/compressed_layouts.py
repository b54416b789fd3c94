"""How compressed-tensors stores layers of integers: packed into words, or a byte each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from octavo.errors import WeightsError
from octavo.quantization.bit_packing import WORD_BITS, num_words, unpack_words
from octavo.quantization.grouped_weight import (
    FLOATS,
    GroupedForm,
    GroupedWeight,
    Layout,
    StoredTensor,
    integer_form,
)

Strategy = Literal["group", "channel", "tensor"]


@dataclass(frozen=True, slots=True)
class CompressedLayout(Layout):
    """Signed integers and their scales.

    Attributes:
        bits: of an integer, 1 to 8.
        strategy: whether scales are per output and group, per output, or one for all.
        group: inputs of a group; -1 without groups.
        is_symmetric: whether there are no zeros.
        is_ordered: whether ``weight_g_idx`` says which group each input is in.
        is_packed: whether integers are packed into words, along the inputs, and zeros along the outputs.
        rounds_inputs: see :class:`GroupedForm`.
    """

    bits: int
    strategy: Strategy
    group: int = -1
    is_symmetric: bool = True
    is_ordered: bool = False
    is_packed: bool = True
    rounds_inputs: bool = False

    @property
    def name(self) -> str:
        return "compressed-tensors"

    @property
    def form(self) -> GroupedForm:
        return integer_form(
            self.bits,
            self.group,
            has_zeros=not self.is_symmetric,
            is_ordered=self.is_ordered,
            rounds_inputs=self.rounds_inputs,
        )

    def tensors(self, shape: tuple[int, int]) -> dict[str, StoredTensor]:
        num_outputs, num_inputs = shape
        groups = self.form.num_groups(num_inputs)
        scales: tuple[tuple[int, ...], ...] = ((num_outputs, groups),)
        if self.strategy == "channel":
            scales = ((num_outputs, 1), (num_outputs,))
        elif self.strategy == "tensor":
            scales = ((1,), (), (1, 1))
        found = {"weight_scale": StoredTensor(scales, FLOATS)}
        if self.is_packed:
            packed = tuple((num_outputs, words) for words in self._words(num_inputs))
            found["weight_packed"] = StoredTensor(packed, (torch.int32,))
            found["weight_shape"] = StoredTensor(((2,),), (torch.int64, torch.int32))
        else:
            found["weight"] = StoredTensor((shape,), (torch.int8,))
        if not self.is_symmetric:
            # Older packed checkpoints have zeros of a byte each, too.
            words = tuple((count, groups) for count in self._words(num_outputs)) if self.is_packed else ()
            types = (torch.int32, torch.int8) if self.is_packed else (torch.int8,)
            found["weight_zero_point"] = StoredTensor((*words, *scales), types)
        if self.is_ordered:
            found["weight_g_idx"] = StoredTensor(((num_inputs,),), (torch.int32, torch.int64))
        return found

    def read(self, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> GroupedWeight:
        num_outputs, num_inputs = shape
        middle = 1 << (self.bits - 1)
        if self.is_packed:
            if tuple(tensors["weight_shape"].tolist()) != tuple(shape):
                raise WeightsError(
                    f"The compressed-tensors weights have a weight_shape of {tensors['weight_shape'].tolist()}, the "
                    f"configuration wants {list(shape)}."
                )
            codes = unpack_words(tensors["weight_packed"], self.bits, 1, num_inputs)
        else:
            codes = self._codes(tensors["weight"], "integers")
        zeros: torch.Tensor | float = float(middle)
        if not self.is_symmetric:
            zeros = self._by_group(self._zeros(tensors["weight_zero_point"], num_outputs), shape)
        scales = self._by_group(tensors["weight_scale"].float(), shape)
        weight = GroupedWeight(codes, scales, self.form.group_of(num_inputs), zeros)
        ordered = weight.in_order_of(tensors["weight_g_idx"], self.name) if self.is_ordered else weight
        return ordered.widened(self.form)

    def _words(self, count: int) -> tuple[int, ...]:
        """How many words so many integers may take: some versions fill up the last 32 integers."""
        least = num_words(count, self.bits)
        return tuple({least: None, -(-count // WORD_BITS) * self.bits: None})

    def _zeros(self, stored: torch.Tensor, num_outputs: int) -> torch.Tensor:
        """Zeros as codes, float32."""
        is_packed = stored.dtype is torch.int32
        rows = self._words(num_outputs) if is_packed else (1 if self.strategy == "tensor" else num_outputs,)
        if stored.ndim and stored.shape[0] not in rows:
            raise WeightsError(
                f"The {self.name} weights of {num_outputs} outputs have zeros of {self.bits} bits of the shape "
                f"{list(stored.shape)} and the type {str(stored.dtype).removeprefix('torch.')}."
            )
        codes = unpack_words(stored, self.bits, 0, num_outputs) if is_packed else self._codes(stored, "zeros")
        return codes.float()

    def _codes(self, signed: torch.Tensor, named: str) -> torch.Tensor:
        """Integers of a byte each as codes, uint8, whose middle stands for zero."""
        middle = 1 << (self.bits - 1)
        if self.bits < 8 and signed.numel():
            low, high = (int(limit) for limit in signed.aminmax())
            if low < -middle or high >= middle:
                raise WeightsError(
                    f"The weights have {named} from {low} to {high}, but those of {self.bits} bits, as the "
                    f"configuration has them, are from {-middle} to {middle - 1}."
                )
        return (signed.to(torch.int16) + middle).to(torch.uint8)

    def _by_group(self, values: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
        """``[out, groups]``."""
        if self.strategy == "tensor":
            return values.reshape(1, 1).expand(shape[0], 1)
        return values.reshape(shape[0], -1)
