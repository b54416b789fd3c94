"""Registers the kernel set "cpu": PyTorch's operations, and the compiled kernels in their place where there are any."""

import octavo.kernels.cpu.attention
import octavo.kernels.cpu.basic
import octavo.kernels.cpu.linear  # noqa: F401
from octavo.kernels.cpu import (
    native_attention,
    native_blocks,
    native_draw,
    native_experts,
    native_indexer,
    native_latent_attention,
    native_linear,
    native_packed_attention,
    native_rows,
    native_state_space,
    native_step,
)
from octavo.platforms.native import native_kernels

if (_native := native_kernels()) is not None:
    native_attention.register(_native)
    native_blocks.register(_native)
    native_draw.register(_native)
    native_experts.register(_native)
    native_indexer.register(_native)
    native_latent_attention.register(_native)
    native_linear.register(_native)
    native_packed_attention.register(_native)
    native_rows.register(_native)
    native_state_space.register(_native)
    native_step.register(_native)
