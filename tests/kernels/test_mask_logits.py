"""Masks of allowed tokens on a CPU, against the plain twin."""

import pytest
import torch

from octavo.kernels import basic


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 100, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rules_out_what_is_not_allowed(vocab_size: int, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(5, vocab_size + 3, generator=random).to(dtype)[:, :vocab_size]
    rows = torch.tensor([4, 0, 2])
    masks = torch.randint(-(1 << 31), 1 << 31, (3, -(-vocab_size // 32)), generator=random).to(torch.int32)
    expected = logits.clone()
    basic.mask_logits.reference(expected, rows, masks)
    basic.mask_logits(logits, rows, masks)
    assert torch.equal(logits, expected)
    assert not torch.isinf(logits[1]).any()
