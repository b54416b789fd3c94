"""Registers the kernel set "cuda": Triton's kernels as implementations of the operations in :mod:`octavo.kernels`.

Triton reads the source of every kernel that a module defines, so a module is imported when a model first needs it.
"""

import torch

from octavo.kernels import basic, experts, grouped, packed_experts, pair_sum, routing, scaled, state_space
from octavo.kernels.attention import attention_backend
from octavo.kernels.deferred_norm import defers_norms
from octavo.kernels.dispatch import Operation
from octavo.kernels.head_linear import head_linear
from octavo.kernels.indexer import choose_tokens
from octavo.kernels.latent_attention import finish_latent, latent_attention, latent_inputs, store_latent
from octavo.kernels.linear import LinearOp, linear
from octavo.kernels.step import StepKernels, step_kernels
from octavo.kernels.triton import compile  # noqa: F401

MODULES: dict[str, tuple[Operation, ...]] = {
    "activation": (basic.silu_and_mul, basic.gelu_tanh_and_mul),
    "experts": (experts.make_experts,),
    "gather": (basic.gather_rows,),
    "grouped": (grouped.grouped_linear,),
    "head_linear": (head_linear,),
    "indexer": (choose_tokens,),
    "latent_attention": (latent_attention,),
    "latent_inputs": (latent_inputs,),
    "latent_store": (store_latent, finish_latent),
    "mask": (basic.mask_logits,),
    "norm": (
        basic.rms_norm,
        basic.add_rms_norm,
        basic.layer_norm,
        basic.add_layer_norm,
        pair_sum.add_rms_norm_of_pairs,
    ),
    "packed_experts": (packed_experts.make_packed_experts,),
    "pair_sum": (pair_sum.sum_pairs,),
    "quantize": (scaled.quantize_rows,),
    "rotate": (basic.rotate_heads,),
    "rotary": (basic.qk_rope_store,),
    "routing": (routing.make_logits, routing.make_router, routing.choose_experts),
    "scaled": (scaled.float8_linear, scaled.int8_linear),
    "state_space_conv": (state_space.causal_conv,),
    "state_space_norm": (state_space.gated_rms_norm,),
    "state_space_scan": (state_space.state_space_scan,),
}
"""Where the implementations are, which are named as their operations."""

for _module, _operations in MODULES.items():
    for _operation in _operations:
        _operation.register_lazily("cuda", f"octavo.kernels.triton.{_module}", _operation.__name__)

defers_norms.register_lazily("cuda", "octavo.kernels.triton.linear", "defers_norms")
attention_backend.register_lazily("cuda", "octavo.kernels.triton.attention", "TritonAttention")
routing.sigmoid.register("cuda")(torch.sigmoid)


@linear.register("cuda")
def _linear(weight: torch.Tensor, bias: torch.Tensor | None, *, deterministic: bool) -> tuple[LinearOp, bool]:
    from octavo.kernels.triton.linear import SmallBatchLinear

    return SmallBatchLinear(weight, bias, deterministic=deterministic), False


@step_kernels.register("cuda")
def _step_kernels(device: torch.device) -> StepKernels:
    from octavo.kernels.triton.step import TritonStepKernels

    return TritonStepKernels()
