"""A GGUF file's blocks as codes, scales and zeros in groups of 32, for devices whose GEMMs unpack those."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from octavo.kernels.blocks import FORMATS, INPUT_GROUP
from octavo.quantization.grouped_weight import GroupedForm, GroupedWeight, Layout, StoredTensor

_MIDDLES = {"Q4_0": 8, "Q5_0": 16, "Q8_0": 128}
"""The code of zero, in types whose groups have no minimum."""
GROUPED_TYPES = (*_MIDDLES, "Q4_1", "Q5_1", "Q4_K", "Q5_K")
"""Types that have such groups; Q6_K has groups of 16."""
_SHARED = 8
"""Groups of a block of 256 inputs, whose scales and minimums have 6 bits."""

_Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class GGUFLayout(Layout):
    """Layers of one of :data:`GROUPED_TYPES`.

    Attributes:
        type_name: GGUF's name of the type.
    """

    type_name: str

    @property
    def name(self) -> str:
        return f"GGUF {self.type_name}"

    @property
    def form(self) -> GroupedForm:
        has_minimums = self.type_name not in _MIDDLES
        bits = FORMATS[self.type_name].code_bits
        return GroupedForm(4 if bits == 4 else 8, INPUT_GROUP, has_zeros=has_minimums, has_minimums=has_minimums)

    def tensors(self, shape: tuple[int, int]) -> dict[str, StoredTensor]:
        return {"weight": StoredTensor((shape,), (torch.float32,), self.type_name)}

    def read(self, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> GroupedWeight:
        """See :meth:`Layout.read`; the tensor's bytes, ``[out, bytes]`` uint8."""
        size, _ = FORMATS[self.type_name].raw_bytes
        blocks = tensors["weight"].unflatten(1, (-1, size))
        parse = _super_blocks if self.type_name.endswith("_K") else _blocks
        codes, scales, minimums = parse(blocks, self.type_name)
        if minimums is None:
            middle = _MIDDLES[self.type_name]
            if self.form.bits == 8:  # with zero in the middle of eight bits
                codes, middle = codes + (128 - middle), 128
            return GroupedWeight(codes, scales, INPUT_GROUP, float(middle))
        # A group without a scale has one value, which a code of 0 stands for.
        is_flat = scales == 0
        codes = codes.unflatten(1, (-1, INPUT_GROUP)).masked_fill(is_flat[..., None], 0).flatten(1)
        scales = scales.masked_fill(is_flat, 1.0)
        return GroupedWeight(codes, scales, INPUT_GROUP, -minimums / scales)


def _floats(blocks: torch.Tensor) -> torch.Tensor:
    """Float16 numbers of blocks, ``[..., 2n]`` uint8 → ``[..., n]`` float32."""
    return blocks.contiguous().view(torch.float16).float()


def _halves(packed: torch.Tensor) -> torch.Tensor:
    """``[..., n]`` bytes → ``[..., 2, n]`` codes: all low halves, then all high ones."""
    return torch.stack((packed & 15, packed >> 4), -2)


def _blocks(blocks: torch.Tensor, name: str) -> _Parts:
    """Codes ``[out, in]``, scales ``[out, groups]``, and minimums where the type has them."""
    has_minimums = name.endswith("_1")
    start = 4 if has_minimums else 2
    numbers = _floats(blocks[..., :start])
    minimums = numbers[..., 1] if has_minimums else None
    if name == "Q8_0":
        return (blocks[..., start:] ^ 128).flatten(1), numbers[..., 0], minimums  # signed numbers, 128 added
    codes = _halves(blocks[..., -16:]).flatten(-2)
    if name.startswith("Q5"):
        bits = torch.arange(8, dtype=torch.uint8, device=blocks.device)
        fifth = blocks[..., start : start + 4, None] >> bits & 1
        codes = codes | fifth.flatten(-2) << 4
    return codes.flatten(1), numbers[..., 0], minimums


def _super_blocks(blocks: torch.Tensor, name: str) -> _Parts:
    """The same of blocks of 256 inputs, each with eight groups."""
    scale, least = _floats(blocks[..., :4]).unbind(-1)
    low, middle, high = blocks[..., 4:16].unflatten(-1, (3, _SHARED // 2)).unbind(-2)
    # Six bits each: four groups have theirs in a byte, the others the low four here and the high two in those bytes.
    scales = torch.cat((low & 63, (high & 15) | low >> 6 << 4), -1)
    minimums = torch.cat((middle & 63, high >> 4 | middle >> 6 << 4), -1)
    codes = _halves(blocks[..., -128:].unflatten(-1, (4, INPUT_GROUP))).flatten(-3, -2)  # [out, blocks, 8, 32]
    if name == "Q5_K":
        bits = torch.arange(_SHARED, dtype=torch.uint8, device=blocks.device)[:, None]
        codes = codes | (blocks[..., None, 16:48] >> bits & 1) << 4
    return codes.flatten(1), (scale[..., None] * scales).flatten(1), (-least[..., None] * minimums).flatten(1)
