"""Masks of allowed tokens in Triton, against the plain twin."""

import pytest
import torch

from octavo.kernels import basic
from octavo.kernels.triton import mask


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 100, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rules_out_what_is_not_allowed(vocab_size: int, dtype: torch.dtype, device: torch.device) -> None:
    random = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(5, vocab_size + 3, generator=random).to(device, dtype)[:, :vocab_size]
    rows = torch.tensor([4, 0, 2], device=device)
    words = torch.randint(-(1 << 31), 1 << 31, (3, -(-vocab_size // 32)), generator=random)
    masks = words.to(torch.int32).to(device)
    expected = logits.clone()
    basic.mask_logits.reference(expected, rows, masks)
    mask.mask_logits(logits, rows, masks)
    assert torch.equal(logits, expected)
    for index, row in enumerate(rows.tolist()):
        allowed = [bool(words[index, token // 32] >> (token % 32) & 1) for token in range(vocab_size)]
        assert (logits[row] != float("-inf")).tolist() == allowed
