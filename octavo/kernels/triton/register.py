"""Registers the Triton kernels as the CUDA implementations of the operations in :mod:`octavo.kernels.basic`."""

from octavo.kernels import basic
from octavo.kernels.triton import activation, gather, mask, norm

basic.take_rows.register("cuda")(gather.take_rows)
basic.mask_logits.register("cuda")(mask.mask_logits)
basic.rms_norm.register("cuda")(norm.rms_norm)
basic.add_rms_norm.register("cuda")(norm.add_rms_norm)
basic.silu_and_mul.register("cuda")(activation.silu_and_mul)
basic.gelu_tanh_and_mul.register("cuda")(activation.gelu_tanh_and_mul)
