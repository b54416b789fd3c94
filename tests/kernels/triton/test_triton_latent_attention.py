"""Latent attention in Triton against attention over whole sequences in float64."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1]))
from mixer_cases import Lengths, latent_case

from octavo.kernels.triton import latent_attention as triton_latent
from octavo.kernels.triton.latent_attention import latent_attention
from octavo.kernels.triton.latent_store import store_latent

STEPS: list[Lengths] = [
    [(1, 1)],
    [(5, 5)],
    [(1, 9), (1, 1), (1, 40), (1, 8)],
    [(1, 30), (1, 4), (9, 9), (3, 20), (2, 2)],
]


@pytest.mark.sample(8)
@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("num_heads", [3, 20])
@pytest.mark.parametrize("lengths", STEPS)
def test_a_step_attends_to_its_sequences(
    lengths: Lengths, num_heads: int, num_splits: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_latent, "choose_splits", lambda *_: num_splits)
    case = latent_case(lengths, num_heads=num_heads, num_padding=2, device=device)
    store_latent(case.latent, case.cache, case.inputs.slot_mapping)
    output = latent_attention(case.q, case.cache, case.inputs, case.spec)
    assert output.shape == (case.step.shape.num_tokens, num_heads, 16)
    output = output[: len(case.expected)].double().cpu()
    torch.testing.assert_close(output, case.expected, rtol=1e-5, atol=1e-5)


@pytest.mark.sample(10)
@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("num_chosen", [None, 1, 40])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("lengths", STEPS)
def test_sinks_and_chosen_tokens(
    lengths: Lengths,
    has_sinks: bool,
    num_chosen: int | None,
    num_splits: int,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triton_latent, "choose_splits", lambda *_: num_splits)
    case = latent_case(lengths, num_heads=20, num_padding=2, has_sinks=has_sinks, num_chosen=num_chosen, device=device)
    store_latent(case.latent, case.cache, case.inputs.slot_mapping)
    output = latent_attention(case.q, case.cache, case.inputs, case.spec, **case.options)
    output = output[: len(case.expected)].double().cpu()
    torch.testing.assert_close(output, case.expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", [(16, 8), (24, 16)])
def test_sizes_and_types(sizes: tuple[int, int], device: torch.device) -> None:
    rank, rope_dim = sizes
    lengths = [(1, 70), (1, 3), (4, 50)]
    case = latent_case(lengths, rank=rank, rope_dim=rope_dim, block_size=16, dtype=torch.float16, device=device)
    store_latent(case.latent, case.cache, case.inputs.slot_mapping)
    output = latent_attention(case.q, case.cache, case.inputs, case.spec)
    torch.testing.assert_close(output.double().cpu(), case.expected, rtol=2e-2, atol=2e-2)


def test_vectors_are_stored_as_the_twin_does(device: torch.device) -> None:
    case = latent_case([(3, 6), (1, 2)], num_padding=2, device=device)
    expected = case.cache.clone()
    store_latent_twin = sys.modules[type(case.spec).__module__].store_latent.reference
    store_latent_twin(case.latent, expected, case.inputs.slot_mapping)
    store_latent(case.latent, case.cache, case.inputs.slot_mapping)
    torch.testing.assert_close(case.cache, expected, rtol=0, atol=0, equal_nan=True)
