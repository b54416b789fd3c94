"""What kernels for Hopper read of a group in place of its scale and zero: words that lie as those kernels load them.

Terms are a second copy, ``[out / 8, steps, 8 rows, words]`` int32: those of eight outputs and a step of inputs follow
each other. Which of three kinds a weight has follows from its groups (:func:`kind_of`).
"""

from typing import Literal

import torch
import torch.nn.functional as F

from octavo.kernels.grouped import ZERO_STEP, GroupedTensors
from octavo.kernels.triton.grouped_unpack import UNIT_SCALE
from octavo.kernels.triton.unit_gemm import LARGEST_EXPONENT

UNIT = 128
"""Inputs of a step, of which a weight has whole ones."""
SMALL_GROUPS = (16, 32)
"""Inputs of groups of which a step has several; codes of 4 bits are packed by 32."""

TermKind = Literal["wide", "small", "powers"]
"""Terms of integers in groups of a multiple of 128 inputs, of those in groups of 32 or 16, and of 4-bit floats:

- ``wide``: a word per group, whose lowest byte is the zero as :class:`GroupedTensors` has it, and whose rest are the
  upper 24 bits of a float32, which have every scale of 16 bits;
- ``small``: a word per group, two float16: the scale times :data:`UNIT_SCALE`, and what the middle of the codes stands
  for;
- ``powers``: a word per step, four exponents.
"""


def kind_of(weight: GroupedTensors) -> TermKind | None:
    """The kind of a weight's terms, or None if no kernel takes it.

    Of groups of 16 or 32 inputs it depends on the largest scale, for which this waits for the device.
    """
    if weight.table is not None or weight.num_inputs % UNIT != 0 or weight.codes.data_ptr() % 16 != 0:
        return None
    if weight.is_integer and weight.offsets is None and weight.group % UNIT == 0:
        return "wide"
    if weight.group not in SMALL_GROUPS or (weight.bits == 4 and weight.group == 16):
        return None
    if weight.is_float4:
        return "powers" if int(weight.scales.max()) <= LARGEST_EXPONENT else None
    return "small" if weight.is_integer and bool(_small_pairs(weight).isfinite().all()) else None


def make_terms(weight: GroupedTensors, kind: TermKind) -> torch.Tensor:
    """The terms of a weight, of its kind."""
    num_steps = weight.scales.shape[1]
    if kind == "wide":
        scales = ((weight.scales * UNIT_SCALE).view(torch.int32) + 0x80) & -0x100
        middle = weight.middle if weight.bits == 8 else round(weight.middle / ZERO_STEP)
        words = scales | (middle if weight.zeros is None else weight.zeros.int())
    else:
        bytes_or_pairs = weight.scales if kind == "powers" else _small_pairs(weight).flatten(1)
        words = bytes_or_pairs.contiguous().view(torch.int32)
        num_steps = weight.num_inputs // UNIT
    words = F.pad(words, (0, 0, 0, -len(words) % 8))
    return words.view(len(words) // 8, 8, num_steps, -1).transpose(1, 2).contiguous()


def _small_pairs(weight: GroupedTensors) -> torch.Tensor:
    """Scales and what the middle of the codes stands for, ``[out, groups, 2]`` float16."""
    offsets = weight.offsets
    if offsets is None:
        zeros = weight.zeros
        step = ZERO_STEP if weight.bits == 4 else 1
        offsets = weight.scales * (0 if zeros is None else weight.middle - zeros.float() * step)
    return torch.stack(((weight.scales * UNIT_SCALE).half(), offsets.half()), -1)
