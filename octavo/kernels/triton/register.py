"""Registers the kernel set "cuda": Triton's kernels as implementations of the operations in :mod:`octavo.kernels`."""

import torch

from octavo.kernels import basic, float8
from octavo.kernels.attention import attention_backend
from octavo.kernels.linear import LinearOp, linear
from octavo.kernels.step import StepKernels, step_kernels
from octavo.kernels.triton import activation, compile, gather, mask, norm, rotary  # noqa: F401
from octavo.kernels.triton import float8 as triton_float8
from octavo.kernels.triton.attention import TritonAttention
from octavo.kernels.triton.linear import SmallBatchLinear
from octavo.kernels.triton.step import TritonStepKernels

basic.take_rows.register("cuda")(gather.take_rows)
basic.mask_logits.register("cuda")(mask.mask_logits)
basic.rms_norm.register("cuda")(norm.rms_norm)
basic.add_rms_norm.register("cuda")(norm.add_rms_norm)
basic.silu_and_mul.register("cuda")(activation.silu_and_mul)
basic.gelu_tanh_and_mul.register("cuda")(activation.gelu_tanh_and_mul)
basic.qk_rope_store.register("cuda")(rotary.qk_rope_store)
float8.quantize_rows.register("cuda")(triton_float8.quantize_rows)
float8.float8_linear.register("cuda")(triton_float8.float8_linear)
attention_backend.register("cuda")(TritonAttention)


@linear.register("cuda")
def _linear(weight: torch.Tensor, bias: torch.Tensor | None, *, deterministic: bool) -> tuple[LinearOp, bool]:
    return SmallBatchLinear(weight, bias, deterministic=deterministic), False


@step_kernels.register("cuda")
def _step_kernels(device: torch.device) -> StepKernels:
    return TritonStepKernels()
