"""Which implementation serves which kind of device; decided once at start."""

from collections.abc import Callable

import torch

import octavo.kernels.cpu.basic  # noqa: F401  registers the CPU kernels
from octavo.kernels.attention import AttentionBackend, ReferenceAttention
from octavo.kernels.cpu.attention import CpuAttention
from octavo.kernels.cpu.linear import pack_linear as _pack_linear_cpu
from octavo.kernels.cpu.linear import padded_rows as _padded_rows_cpu


def attention_backend(device: torch.device) -> AttentionBackend:
    """The fastest attention for a device."""
    return CpuAttention() if device.type == "cpu" else ReferenceAttention()


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """A faster form of ``x @ weight.T + bias`` for a weight ``[out, in]`` that stays as it is, or None."""
    return _pack_linear_cpu(weight, bias) if weight.device.type == "cpu" else None


def padded_rows(device: torch.device, num_rows: int) -> int:
    """How many rows to compute where ``num_rows`` are wanted: at least as many, of few different numbers."""
    return _padded_rows_cpu(num_rows) if device.type == "cpu" else num_rows
