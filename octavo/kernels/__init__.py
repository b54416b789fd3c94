"""Kernels: sets of implementations of each operation, next to a plain PyTorch reference of the same signature.

Callers import the names below; :mod:`octavo.kernels.dispatch` runs the implementation of the kernel set that
:func:`bind_kernels` bound for the tensors' device. Read ``cpu/`` or ``triton/`` for one set.
"""

from octavo.kernels.attention import (
    NO_TERMS,
    AttentionBackend,
    AttentionInputs,
    AttentionSpec,
    DeviceRows,
    HeadNorms,
    HeadTerms,
    ReferenceAttention,
    RopeTables,
    StepShape,
    attention_backend,
)
from octavo.kernels.basic import (
    activate,
    add_layer_norm,
    add_rms_norm,
    apply_rope,
    gather_rows,
    gelu_tanh_and_mul,
    layer_norm,
    mask_logits,
    rms_norm,
    rotate_heads,
    silu_and_mul,
    square_root,
    xielu,
)
from octavo.kernels.blocks import FORMATS, LANES, block_kernels
from octavo.kernels.cache_scales import CacheScales
from octavo.kernels.deferred_norm import DeferredNorm, defers_norms, rows_of
from octavo.kernels.deferred_output import DeferredOutput, DeferredSum, GemmOutput, output_of
from octavo.kernels.dispatch import CompileOnly, LaunchedKernels, compile_together
from octavo.kernels.head_linear import HeadLinear, head_linear
from octavo.kernels.indexer import choose_tokens
from octavo.kernels.latent_attention import LatentSpec, finish_latent, latent_attention, latent_inputs, store_latent
from octavo.kernels.linear import LinearOp, linear, padded_rows
from octavo.kernels.scaled import FLOAT8, float8_linear, int8_linear, quantize_rows
from octavo.kernels.select import bind_kernels, expect_to_compile, import_kernels
from octavo.kernels.state_space import StateInputs, causal_conv, gated_rms_norm, state_space_scan
from octavo.kernels.step import DeviceState, DraftTensors, DrawTensors, InputTensors, StepKernels, step_kernels
