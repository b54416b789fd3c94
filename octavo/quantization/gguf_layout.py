"""A GGUF file's blocks as codes, scales and zeros in groups of 32 or 16, for devices whose GEMMs unpack those."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from octavo.kernels.blocks import FORMATS, INPUT_GROUP
from octavo.kernels.float4 import FLOAT4_VALUES, MX_GROUP, TABLES, powers_of_two
from octavo.quantization.bit_packing import unpack_bits
from octavo.quantization.grouped_weight import GroupedForm, GroupedWeight, Layout, StoredTensor

_ZEROS = {"Q4_0": 8, "Q5_0": 16, "Q8_0": 128, "Q6_K": 32}
"""The code of zero, in types whose groups have no minimum."""
TABLE_TYPES = ("IQ4_NL", "IQ4_XS")
"""Types whose codes of 4 bits are indices of a table."""
GROUPED_TYPES = (*_ZEROS, "Q4_1", "Q5_1", "Q4_K", "Q5_K", "MXFP4", *TABLE_TYPES)
_FLAT_SCALE = 2.0**-10
"""In place of a scale of zero; small, so that the zero keeps the minimum's bits."""
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
        if self.type_name == "MXFP4":
            return GroupedForm(4, MX_GROUP, kind="mxfp4")
        if self.type_name in TABLE_TYPES:
            return GroupedForm(4, INPUT_GROUP, kind="iq4")
        has_minimums = self.type_name not in _ZEROS
        own = FORMATS[self.type_name]
        return GroupedForm(4 if own.code_bits == 4 else 8, own.group, has_zeros=has_minimums, has_offsets=has_minimums)

    def tensors(self, shape: tuple[int, int]) -> dict[str, StoredTensor]:
        return {"weight": StoredTensor((shape,), (torch.float32,), self.type_name)}

    def read(self, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> GroupedWeight:
        """See :meth:`Layout.read`; the tensor's bytes, ``[out, bytes]`` uint8."""
        size, _ = FORMATS[self.type_name].raw_bytes
        blocks = tensors["weight"].unflatten(1, (-1, size))
        if self.type_name == "MXFP4":
            return _floats4(blocks)
        if self.type_name in TABLE_TYPES:
            codes, scales = (_indices if self.type_name == "IQ4_NL" else _super_indices)(blocks)
            return GroupedWeight(codes, scales, INPUT_GROUP, table=TABLES["iq4"])
        parse = _of_16 if self.type_name == "Q6_K" else _super_blocks if self.type_name.endswith("_K") else _blocks
        codes, scales, minimums = parse(blocks, self.type_name)
        group = self.form.group
        # Codes are moved, so that the middle of theirs is that of all codes of 4 or 8 bits.
        middle, moved = 1 << (self.form.bits - 1), 0
        if self.form.bits == 8:
            moved = middle - (1 << (FORMATS[self.type_name].code_bits - 1))
            codes = codes + moved
        if minimums is None:
            return GroupedWeight(codes, scales, group, float(_ZEROS[self.type_name] + moved))
        # A group without a scale has one value, which the middle stands for.
        is_flat = scales == 0
        codes = codes.unflatten(1, (-1, group)).masked_fill(is_flat[..., None], middle).flatten(1)
        scales = scales.masked_fill(is_flat, _FLAT_SCALE)
        zeros = torch.where(is_flat, middle, moved) - minimums / scales
        return GroupedWeight(codes, scales, group, zeros)


def _floats(blocks: torch.Tensor) -> torch.Tensor:
    """Float16 numbers of blocks, ``[..., 2n]`` uint8 → ``[..., n]`` float32."""
    return blocks.contiguous().view(torch.float16).float()


def _halves(packed: torch.Tensor) -> torch.Tensor:
    """``[..., n]`` bytes → ``[..., 2, n]`` codes: all low halves, then all high ones."""
    return torch.stack((packed & 15, packed >> 4), -2)


def _floats4(blocks: torch.Tensor) -> GroupedWeight:
    """The weight in blocks of MXFP4."""
    codes = _halves(blocks[..., 1:]).flatten(1)
    return GroupedWeight(codes, powers_of_two(blocks[..., 0]), MX_GROUP, table=FLOAT4_VALUES)


def _indices(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes ``[out, in]`` and scales ``[out, groups]`` of IQ4_NL."""
    return _halves(blocks[..., 2:]).flatten(1), _floats(blocks[..., :2])[..., 0]


def _super_indices(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of IQ4_XS, whose blocks of 256 inputs have eight groups, with scales of 6 bits less 32."""
    # Two bits of each, then four.
    high, low = unpack_bits(blocks[..., 2:4], 2, _SHARED), unpack_bits(blocks[..., 4:8], 4, _SHARED)
    scales = _floats(blocks[..., :2]) * ((low | high << 4).float() - 32)
    codes = _halves(blocks[..., 8:].unflatten(-1, (_SHARED, INPUT_GROUP // 2)))
    return codes.flatten(1), scales.flatten(1)


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


def _of_16(blocks: torch.Tensor, name: str) -> _Parts:
    """The same of Q6_K's blocks of 256 inputs, each with 16 groups."""
    low = _halves(blocks[..., :128].unflatten(-1, (2, 64))).flatten(-2)  # [out, blocks, 2, 128]
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device)[:, None]
    high = (blocks[..., 128:192].unflatten(-1, (2, 1, 32)) >> shifts & 3).flatten(-2)
    scales = blocks[..., 192:208].view(torch.int8).float() * _floats(blocks[..., 208:])
    return (low | high << 4).flatten(1), scales.flatten(1), None
