"""The constants of query heads: which of them a device has, and ALiBi's slopes."""

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from octavo.layers.build import Build
from octavo.layers.head_terms import AttentionTerms, alibi_slopes
from octavo.layers.weights import collect_slots
from octavo.parallel import TensorParallel


@pytest.mark.parametrize("num_heads", [1, 2, 3, 5, 8, 12, 20, 71, 112])
def test_slopes_are_those_of_blooms_and_mpts_models(num_heads: int) -> None:
    slopes = alibi_slopes(num_heads)
    bloom = build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32)[:, 0, 1]
    mpt = build_mpt_alibi_tensor(num_heads, 2).view(num_heads, 2)
    torch.testing.assert_close(slopes, bloom, rtol=1e-6, atol=0)
    torch.testing.assert_close(slopes, mpt[:, 1] - mpt[:, 0], rtol=1e-6, atol=0)
    steep = build_mpt_alibi_tensor(num_heads, 2, alibi_bias_max=16).view(num_heads, 2)
    torch.testing.assert_close(alibi_slopes(num_heads, 16.0), steep[:, 1] - steep[:, 0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_device_has_the_terms_of_its_heads(rank: int) -> None:
    build = Build(tensor_parallel=TensorParallel(rank, 2))
    holder = torch.nn.Module()
    holder.terms = AttentionTerms(6, build, has_sinks=True, slopes=alibi_slopes(6))
    (slot,) = collect_slots(holder)["sinks"]
    sinks = torch.randn(6).bfloat16()
    slot.fill(sinks)
    terms, own = holder.terms.values(), slice(3 * rank, 3 * rank + 3)
    assert terms.sinks is not None and terms.slopes is not None
    assert terms.sinks.dtype is terms.slopes.dtype is torch.float32
    assert torch.equal(terms.sinks.bfloat16(), sinks[own])
    assert torch.equal(terms.slopes, alibi_slopes(6)[own])


def test_terms_that_a_model_lacks_are_none() -> None:
    terms = AttentionTerms(4, Build())
    assert terms.values().are_none
    assert not collect_slots(terms)
