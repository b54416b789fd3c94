"""Registers the kernel set "cuda": Triton's kernels as implementations of the operations in :mod:`octavo.kernels`."""

import torch

from octavo.kernels import basic, experts, grouped, packed_experts, routing, scaled, state_space
from octavo.kernels.attention import attention_backend
from octavo.kernels.indexer import choose_tokens
from octavo.kernels.latent_attention import latent_attention, store_latent
from octavo.kernels.linear import LinearOp, linear
from octavo.kernels.step import StepKernels, step_kernels
from octavo.kernels.triton import activation, compile, gather, mask, norm, rotary  # noqa: F401
from octavo.kernels.triton import experts as triton_experts
from octavo.kernels.triton import grouped as triton_grouped
from octavo.kernels.triton import indexer as triton_indexer
from octavo.kernels.triton import latent_attention as triton_latent
from octavo.kernels.triton import packed_experts as triton_packed_experts
from octavo.kernels.triton import routing as triton_routing
from octavo.kernels.triton import scaled as triton_scaled
from octavo.kernels.triton.attention import TritonAttention
from octavo.kernels.triton.linear import SmallBatchLinear
from octavo.kernels.triton.state_space_conv import causal_conv
from octavo.kernels.triton.state_space_norm import gated_rms_norm
from octavo.kernels.triton.state_space_scan import state_space_scan
from octavo.kernels.triton.step import TritonStepKernels

basic.gather_rows.register("cuda")(gather.gather_rows)
basic.mask_logits.register("cuda")(mask.mask_logits)
basic.rms_norm.register("cuda")(norm.rms_norm)
basic.add_rms_norm.register("cuda")(norm.add_rms_norm)
basic.layer_norm.register("cuda")(norm.layer_norm)
basic.add_layer_norm.register("cuda")(norm.add_layer_norm)
basic.silu_and_mul.register("cuda")(activation.silu_and_mul)
basic.gelu_tanh_and_mul.register("cuda")(activation.gelu_tanh_and_mul)
basic.qk_rope_store.register("cuda")(rotary.qk_rope_store)
scaled.quantize_rows.register("cuda")(triton_scaled.quantize_rows)
scaled.float8_linear.register("cuda")(triton_scaled.float8_linear)
scaled.int8_linear.register("cuda")(triton_scaled.int8_linear)
grouped.grouped_linear.register("cuda")(triton_grouped.grouped_linear)
experts.make_experts.register("cuda")(triton_experts.make_experts)
packed_experts.make_packed_experts.register("cuda")(triton_packed_experts.make_packed_experts)
routing.make_logits.register("cuda")(triton_routing.make_logits)
routing.make_router.register("cuda")(triton_routing.make_router)
routing.sigmoid.register("cuda")(torch.sigmoid)
routing.choose_experts.register("cuda")(triton_routing.choose_experts)
attention_backend.register("cuda")(TritonAttention)
store_latent.register("cuda")(triton_latent.store_latent)
latent_attention.register("cuda")(triton_latent.latent_attention)
choose_tokens.register("cuda")(triton_indexer.choose_tokens)
state_space.causal_conv.register("cuda")(causal_conv)
state_space.state_space_scan.register("cuda")(state_space_scan)
state_space.gated_rms_norm.register("cuda")(gated_rms_norm)


@linear.register("cuda")
def _linear(weight: torch.Tensor, bias: torch.Tensor | None, *, deterministic: bool) -> tuple[LinearOp, bool]:
    return SmallBatchLinear(weight, bias, deterministic=deterministic), False


@step_kernels.register("cuda")
def _step_kernels(device: torch.device) -> StepKernels:
    return TritonStepKernels()
