"""Masks of allowed tokens, applied to logits."""

import torch
import triton
import triton.language as tl

from octavo.kernels.triton.launch import dependent_launch

_WORDS = 64
"""Mask words per program; each word covers 32 tokens."""


def mask_logits(logits: torch.Tensor, rows: torch.Tensor, masks: torch.Tensor) -> None:
    """Mask tokens that are not allowed; see :func:`octavo.kernels.basic.mask_logits`."""
    vocab_size = logits.shape[1]
    _mask_kernel[(len(rows), triton.cdiv(masks.shape[1], _WORDS))](
        logits,
        logits.stride(0),
        rows,
        masks,
        masks.shape[1],
        vocab_size,
        WORDS=_WORDS,
        num_warps=8,
        **dependent_launch(logits.device),
    )


@triton.jit(do_not_specialize=["num_words", "vocab_size"])
def _mask_kernel(logits, stride, rows, masks, num_words, vocab_size, WORDS: tl.constexpr, PDL: tl.constexpr):
    """A program masks ``32 · WORDS`` tokens of one row; grid (masked rows, blocks of words)."""
    index = tl.program_id(0)
    words = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    tokens = words[:, None] * 32 + tl.arange(0, 32)[None, :]
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.load(rows + index).to(tl.int64)
    mask = tl.load(masks + index.to(tl.int64) * num_words + words, words < num_words, other=-1)
    is_ruled_out = (mask[:, None] >> tl.arange(0, 32)[None, :]) & 1 == 0
    # Logits are never read: minus infinity is stored where the mask bit is 0.
    nothing = tl.full((WORDS, 32), float("-inf"), logits.dtype.element_ty)
    tl.store(logits + row * stride + tokens, nothing, is_ruled_out & (tokens < vocab_size))
