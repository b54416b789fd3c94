"""Chooses the implementations of attention and GEMMs for a device, once at startup."""

from functools import partial

import torch
import torch.nn.functional as F

import octavo.kernels.cpu.basic  # noqa: F401  registers the CPU kernels
from octavo.kernels.attention import AttentionBackend
from octavo.kernels.cpu.attention import CpuAttention
from octavo.kernels.cpu.linear import pack_linear
from octavo.kernels.cpu.linear import padded_rows as _padded_rows_cpu
from octavo.kernels.linear import ComposedLinear, LinearOp


def attention_backend(
    device: torch.device, max_rows: int, max_model_len: int, *, deterministic: bool
) -> AttentionBackend:
    """The fastest attention for a device.

    Args:
        max_rows, max_model_len: maximum number of rows in a step and of tokens in a sequence.
        deterministic: whether a row's bits must not depend on the other rows.
    """
    if device.type == "cpu":
        return CpuAttention()
    from octavo.kernels.triton.attention import TritonAttention

    return TritonAttention(device, max_rows, max_model_len, deterministic=deterministic)


def linear(weight: torch.Tensor, bias: torch.Tensor | None, *, deterministic: bool) -> tuple[LinearOp, bool]:
    """The fastest form of ``x @ weight.T + bias`` for a constant weight ``[out, in]``.

    Args:
        deterministic: whether a row's bits must not depend on the other rows.

    Returns:
        The operation, and whether it holds a copy, so that the weight itself is no longer read.
    """
    if weight.device.type == "cuda":
        from octavo.kernels.triton.linear import SmallBatchLinear

        return SmallBatchLinear(weight, bias, deterministic=deterministic), False
    packed = pack_linear(weight, bias) if weight.device.type == "cpu" else None
    if packed is not None:
        return ComposedLinear(packed), True
    return ComposedLinear(partial(F.linear, weight=weight, bias=bias)), False


def load_kernels(device: torch.device) -> None:
    """Make a device's kernels known to the dispatcher."""
    if device.type == "cuda":
        import octavo.kernels.triton.register  # noqa: F401


def padded_rows(device: torch.device, num_rows: int) -> int:
    """The number of rows to pad ``num_rows`` to, so that few distinct sizes occur."""
    return _padded_rows_cpu(num_rows) if device.type == "cpu" else num_rows
