"""Kernels: sets of implementations of each operation, next to a plain PyTorch reference of the same signature.

Callers import the names below; :mod:`octavo.kernels.dispatch` runs the implementation of the kernel set that
:func:`bind_kernels` bound for the tensors' device. Read ``cpu/`` or ``triton/`` for one set.
"""

from octavo.kernels.attention import (
    AttentionBackend,
    AttentionInputs,
    AttentionSpec,
    DeviceRows,
    HeadNorms,
    ReferenceAttention,
    RopeTables,
    StepShape,
    attention_backend,
)
from octavo.kernels.basic import (
    add_rms_norm,
    apply_rope,
    gelu_tanh_and_mul,
    mask_logits,
    rms_norm,
    silu_and_mul,
    take_rows,
)
from octavo.kernels.dispatch import compile_together
from octavo.kernels.float8 import FLOAT8, float8_linear, quantize_rows
from octavo.kernels.linear import LinearOp, linear, padded_rows
from octavo.kernels.select import bind_kernels
from octavo.kernels.step import DeviceState, DraftTensors, DrawTensors, InputTensors, StepKernels, step_kernels

__all__ = [
    "FLOAT8",
    "AttentionBackend",
    "AttentionInputs",
    "AttentionSpec",
    "DeviceRows",
    "DeviceState",
    "DraftTensors",
    "DrawTensors",
    "HeadNorms",
    "InputTensors",
    "LinearOp",
    "ReferenceAttention",
    "RopeTables",
    "StepKernels",
    "StepShape",
    "add_rms_norm",
    "apply_rope",
    "attention_backend",
    "bind_kernels",
    "compile_together",
    "float8_linear",
    "gelu_tanh_and_mul",
    "linear",
    "mask_logits",
    "padded_rows",
    "quantize_rows",
    "rms_norm",
    "silu_and_mul",
    "step_kernels",
    "take_rows",
]
