"""Kernels: per-device implementations of each operation, next to a plain PyTorch reference of the same signature.

Callers import the names below; :mod:`octavo.kernels.dispatch` picks the implementation by the tensors' device, and
:mod:`octavo.kernels.select` picks attention and GEMMs once at startup. Read ``cpu/`` or ``triton/`` for one device.
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
from octavo.kernels.linear import LinearOp
from octavo.kernels.select import attention_backend, linear, load_kernels, padded_rows

__all__ = [
    "AttentionBackend",
    "AttentionInputs",
    "AttentionSpec",
    "DeviceRows",
    "HeadNorms",
    "LinearOp",
    "ReferenceAttention",
    "RopeTables",
    "StepShape",
    "add_rms_norm",
    "apply_rope",
    "attention_backend",
    "gelu_tanh_and_mul",
    "linear",
    "load_kernels",
    "mask_logits",
    "padded_rows",
    "rms_norm",
    "silu_and_mul",
    "take_rows",
]
