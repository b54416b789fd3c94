"""Sums of tokens' experts, alone and in the launches that norm or round the stream."""

import pytest
import torch

from octavo.kernels import pair_sum as twins
from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.deferred_output import DeferredSum
from octavo.kernels.pair_sum import PairSum
from octavo.kernels.triton.norm import add_rms_norm, add_rms_norm_of_pairs
from octavo.kernels.triton.pair_sum import sum_pairs
from octavo.kernels.triton.quantize import quantize_normed

EPS = 1e-6


def pairs(device: torch.device, num_tokens: int, hidden: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Results and shares; what lies behind the shares in memory is no number."""
    random = torch.Generator().manual_seed(num_tokens + hidden)
    results = torch.randn(num_tokens * 3, hidden, generator=random).to(device, dtype)
    shares = torch.full((num_tokens + 8, 3), float("nan"))
    shares[:num_tokens] = torch.rand(num_tokens, 3, generator=random)
    return results, shares.to(device)[:num_tokens]


def stream(device: torch.device, num_tokens: int, hidden: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A residual stream, and a norm's weight."""
    random = torch.Generator().manual_seed(1)
    residual = torch.randn(num_tokens, hidden, generator=random).to(device, dtype)
    return residual, (1 + torch.randn(hidden, generator=random) / 8).to(device, dtype)


@pytest.mark.parametrize("is_weighted", [True, False])
@pytest.mark.parametrize(
    ("num_tokens", "hidden", "dtype"),
    [(1, 40, torch.float32), (5, 96, torch.bfloat16), (9, 1100, torch.float16)],
    ids=str,
)
def test_sums(device: torch.device, num_tokens: int, hidden: int, dtype: torch.dtype, is_weighted: bool) -> None:
    results, shares = pairs(device, num_tokens, hidden, dtype)
    given = shares if is_weighted else None
    found, expected = sum_pairs(results, given, 3), twins.sum_pairs.reference(results, given, 3)
    assert found.dtype is dtype
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("is_weighted", [True, False])
@pytest.mark.parametrize(("num_tokens", "hidden"), [(5, 96), (9, 1100)])
def test_a_norm_adds_them_up(device: torch.device, num_tokens: int, hidden: int, is_weighted: bool) -> None:
    """To the bits of a sum and a norm one after another; the sum with the stream is in the stream's memory."""
    results, shares = pairs(device, num_tokens, hidden, torch.bfloat16)
    residual, weight = stream(device, num_tokens, hidden, torch.bfloat16)
    given = shares if is_weighted else None
    expected = add_rms_norm(sum_pairs(results, given, 3), residual.clone(), weight, EPS)
    found = add_rms_norm_of_pairs(results, given, 3, residual, weight, EPS)
    assert found[1].data_ptr() == residual.data_ptr()
    for own, wanted in zip(found, expected, strict=True):
        assert torch.equal(own, wanted)
    twin = twins.add_rms_norm_of_pairs.reference(
        results, given, 3, stream(device, num_tokens, hidden, torch.bfloat16)[0], weight, EPS
    )
    torch.testing.assert_close(found, twin, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("group", [None, 128])
def test_rounding_adds_them_up(device: torch.device, group: int | None) -> None:
    results, shares = pairs(device, 6, 384, torch.bfloat16)
    residual, weight = stream(device, 6, 384, torch.bfloat16)
    plain = DeferredNorm(sum_pairs(results, shares, 3), residual.clone(), weight, EPS)
    norm = DeferredSum(PairSum(results, shares, is_weighted=True)).add_to(residual, weight, EPS)
    assert norm is not None and norm.pairs is not None and norm.num_rows == 6
    expected, found = quantize_normed(plain, group), quantize_normed(norm, group)
    for own, wanted in zip(found, expected, strict=True):
        assert torch.equal(own[:6].float(), wanted[:6].float())
    assert norm.pairs is None and torch.equal(norm.total, plain.total)
