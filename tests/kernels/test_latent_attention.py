"""Latent attention in plain PyTorch against attention over whole sequences in float64."""

import sys
from dataclasses import replace

import pytest
import torch
from mixer_cases import Lengths, latent_case

from octavo.kernels import LatentSpec, latent_attention, store_latent

STEPS: list[Lengths] = [
    [(1, 1)],
    [(5, 5)],
    [(1, 9), (1, 1), (1, 40), (1, 8), (1, 7)],
    [(1, 30), (1, 4), (9, 9), (3, 20), (2, 2)],
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_padding", [0, 3])
@pytest.mark.parametrize("lengths", STEPS)
def test_a_step_attends_to_its_sequences(lengths: Lengths, num_padding: int, dtype: torch.dtype) -> None:
    case = latent_case(lengths, num_padding=num_padding, dtype=dtype)
    store_latent.reference(case.latent, case.cache, case.inputs.slot_mapping)
    output = latent_attention.reference(case.q, case.cache, case.inputs, case.spec)
    assert output.shape == (case.step.shape.num_tokens, 3, 16) and output.dtype is dtype
    tolerance = 1e-5 if dtype is torch.float32 else 1e-2
    torch.testing.assert_close(output[: len(case.expected)].double(), case.expected, rtol=tolerance, atol=tolerance)
    assert output.isfinite().all()


@pytest.mark.parametrize("num_chosen", [None, 1, 7])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("lengths", STEPS)
def test_sinks_and_chosen_tokens(lengths: Lengths, has_sinks: bool, num_chosen: int | None) -> None:
    case = latent_case(lengths, num_padding=2, has_sinks=has_sinks, num_chosen=num_chosen)
    store_latent.reference(case.latent, case.cache, case.inputs.slot_mapping)
    output = latent_attention.reference(case.q, case.cache, case.inputs, case.spec, **case.options)
    torch.testing.assert_close(output[: len(case.expected)].double(), case.expected, rtol=1e-5, atol=1e-5)
    assert output.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_over_chosen_tokens_do_not_depend_on_the_step(dtype: torch.dtype) -> None:
    case = latent_case([(1, 300), (37, 290), (3, 3)], num_heads=5, has_sinks=True, num_chosen=64, dtype=dtype)
    store_latent.reference(case.latent, case.cache, case.inputs.slot_mapping)
    together = latent_attention.reference(case.q, case.cache, case.inputs, case.spec, **case.options)
    assert case.chosen is not None
    for token, (row, position) in enumerate(case.step.tokens()):
        counts, starts = torch.tensor([1, 1, 1, 0]), torch.tensor([0, 1])
        rows = replace(case.inputs.rows, counts=counts, query_starts=starts, seq_lens=torch.tensor([position + 1]))
        inputs = replace(case.inputs, rows=rows, slots=case.inputs.slots[row : row + 1])
        own = slice(token, token + 1)
        alone = latent_attention.reference(
            case.q[own], case.cache, inputs, case.spec, sinks=case.sinks, chosen=case.chosen[own]
        )
        assert torch.equal(alone[0], together[token])


def test_chunks_in_tiles_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    case = latent_case([(13, 29)])
    store_latent.reference(case.latent, case.cache, case.inputs.slot_mapping)
    whole = latent_attention.reference(case.q, case.cache, case.inputs, case.spec)
    monkeypatch.setattr(sys.modules[LatentSpec.__module__], "_MAX_SCORES", 3 * 29 * 4)
    torch.testing.assert_close(latent_attention.reference(case.q, case.cache, case.inputs, case.spec), whole)


def test_padding_is_stored_nowhere() -> None:
    case = latent_case([(3, 6), (1, 2)], num_padding=2)
    before = case.cache.clone()
    store_latent.reference(case.latent, case.cache, case.inputs.slot_mapping)
    is_written = (case.cache != before).any(-1) & ~case.cache.isnan().any(-1)
    assert int(is_written.sum()) == 4
