"""Weights of integers in groups that share a scale: their formats, and the interface of GEMMs with them.

A weight is ``scale · code + offset``, or a table has the integer of a code of 4 bits: 4-bit floats in halves, and the
steps of IQ4. GGUF's formats keep the values of the file, and ``nvfp4`` those of a checkpoint but for its scales, whose
halves are float16. ``int8``, ``int4`` and ``mxfp4`` have a scale per output and 32 inputs (``docs/quantization.md``).
The inputs of such a GEMM are rounded to 8 bits in groups of 32 with a scale each, and groups with large values to 16.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from octavo.kernels.dispatch import device_function
from octavo.kernels.linear import LinearOp

LANES = 16
"""Outputs of a panel, the unit in which weights are packed."""
INPUT_GROUP = 32
_SUPER = 256


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A format of packed weights.

    Attributes:
        group: inputs that share a scale.
        code_bits: of a weight's code.
        scale_bits: per output and group: the scale, and the minimum where there is one.
        super_bits: per output and 256 inputs: scales of those.
        raw_bytes: of a block in files, and the inputs in it; (0, 1) if no file has the format.
    """

    group: int
    code_bits: int
    scale_bits: int
    super_bits: int = 0
    raw_bytes: tuple[int, int] = (0, 1)

    @property
    def unit(self) -> int:
        """Numbers of inputs are multiples of this."""
        return max(_SUPER if self.super_bits else INPUT_GROUP, self.raw_bytes[1])

    def panel_bytes(self, num_inputs: int) -> int:
        """Bytes of a panel."""
        bits = num_inputs * self.code_bits + num_inputs // self.group * self.scale_bits
        return LANES * (bits + num_inputs // _SUPER * self.super_bits) // 8


FORMATS = {
    "Q4_0": BlockFormat(32, 4, 16, raw_bytes=(18, 32)),
    "Q4_1": BlockFormat(32, 4, 32, raw_bytes=(20, 32)),
    "Q5_0": BlockFormat(32, 5, 16, raw_bytes=(22, 32)),
    "Q5_1": BlockFormat(32, 5, 32, raw_bytes=(24, 32)),
    "Q8_0": BlockFormat(32, 8, 16, raw_bytes=(34, 32)),
    "Q4_K": BlockFormat(32, 4, 16, super_bits=32, raw_bytes=(144, 256)),
    "Q5_K": BlockFormat(32, 5, 16, super_bits=32, raw_bytes=(176, 256)),
    "Q6_K": BlockFormat(16, 6, 8, super_bits=16, raw_bytes=(210, 256)),
    "MXFP4": BlockFormat(32, 4, 8, raw_bytes=(17, 32)),
    "IQ4_NL": BlockFormat(32, 4, 16, raw_bytes=(18, 32)),
    "IQ4_XS": BlockFormat(32, 4, 8, super_bits=16, raw_bytes=(136, 256)),
    "nvfp4": BlockFormat(16, 4, 16, raw_bytes=(10, 16)),
    "int8": BlockFormat(32, 8, 16),
    "int4": BlockFormat(32, 4, 32),
    "mxfp4": BlockFormat(32, 4, 8),
}


class BlockKernels(Protocol):
    """A device's kernels for these formats. Packed weights are ``[panels, bytes]`` uint8."""

    def pack(self, raw: torch.Tensor, name: str, num_inputs: int, out: torch.Tensor | None = None) -> torch.Tensor:
        """Pack a GGUF tensor's rows, ``[out, bytes]`` uint8; into ``out`` if it is given."""

    def quantize(self, weight: torch.Tensor, name: str, out: torch.Tensor | None = None) -> torch.Tensor:
        """Round a weight ``[out, in]`` to ``int8``, ``int4`` or ``mxfp4``, and pack it; into ``out`` if it is given."""

    def linear(
        self, packed: torch.Tensor, name: str, shape: tuple[int, int], bias: torch.Tensor | None, dtype: torch.dtype
    ) -> LinearOp:
        """The GEMM with a packed weight of the shape ``[out, in]``; its rows are of the type ``dtype``."""


@device_function
def block_kernels(device: torch.device) -> BlockKernels | None:
    """The device's kernels for weights of integers in groups; None if it has none."""
    return None


def round_inputs(x: torch.Tensor) -> torch.Tensor:
    """What a GEMM with such weights multiplies: ``[..., in]`` rounded to 8 bits in groups of 32; float32.

    Groups with a value of more than six times the row's mean size are rounded to steps 254 times finer.
    """
    groups = x.float().unflatten(-1, (-1, INPUT_GROUP))
    most = groups.abs().amax(-1, keepdim=True)
    is_fine = most > 6 * groups.abs().mean((-2, -1), keepdim=True)
    scales = most / 127
    codes = (groups / scales).nan_to_num(0.0)
    coarse, fine = codes.round(), (codes * 254).round() / 254
    return (torch.where(is_fine, fine, coarse) * scales).flatten(-2)
