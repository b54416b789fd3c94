"""Reductions in blocks equal those over whole rows, for any width."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo.kernels.row_blocks import argmax
from octavo.sampling import blocks

Argmax = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

WIDTHS = [1, 2, 255, 256, 257, 512, 1000, 5120]


FORMS = [argmax, argmax.reference]


@pytest.mark.parametrize("argmax", FORMS, ids=["kernel", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", WIDTHS)
def test_argmax_takes_the_first_of_equals(argmax: Argmax, width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(width)
    logits = torch.randint(-3, 4, (20, width), generator=generator).to(dtype)
    best, index = argmax(logits)
    assert best.tolist() == logits.float().numpy().max(1).tolist()
    assert index.tolist() == logits.float().numpy().argmax(1).tolist()


@given(st.data(), st.sampled_from(WIDTHS), st.sampled_from(FORMS))
def test_argmax_shows_what_is_not_a_number(data: st.DataObject, width: int, argmax: Argmax) -> None:
    column = data.draw(st.integers(0, width - 1))
    value = data.draw(st.sampled_from([float("nan"), float("inf")]))
    logits = torch.zeros(2, width)
    logits[0, column] = value
    best, index = argmax(logits)
    assert not best[0].isfinite()
    assert index[0] == column
    assert (best[1], index[1]) == (0, 0)


@given(st.data(), st.sampled_from(WIDTHS))
def test_pick_inverts_the_running_sum(data: st.DataObject, width: int) -> None:
    # Whole numbers add up without rounding, so the two-level sum must agree exactly.
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    weights = rng.integers(0, 3, (4, width)).astype(np.float32)
    weights[:, data.draw(st.integers(0, width - 1))] += 1
    uniforms = np.array(data.draw(st.lists(st.floats(0, 1 - 2**-52), min_size=4, max_size=4)))
    picked = blocks.pick(torch.from_numpy(weights), torch.from_numpy(uniforms))
    for i in range(4):
        running = weights[i].astype(np.float64).cumsum()
        assert picked[i] == running.searchsorted(uniforms[i] * running[-1], side="right")


@pytest.mark.parametrize("chance", [0.0, 0.5, 1 - 2**-52])
@pytest.mark.parametrize("width", WIDTHS)
def test_pick_never_takes_weight_zero(width: int, chance: float) -> None:
    generator = torch.Generator().manual_seed(1)
    weights = torch.rand(50, width, generator=generator) ** 20
    weights *= torch.rand(50, width, generator=generator) < 0.05
    weights[:, width // 2] = 1e-30
    picked = blocks.pick(weights, torch.full((50,), chance, dtype=torch.float64))
    assert (weights.gather(1, picked.unsqueeze(1)) > 0).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_pick_survives_hopeless_rows(width: int) -> None:
    weights = torch.zeros(3, width)
    weights[1] = torch.nan
    weights[2, width - 1] = 1
    picked = blocks.pick(weights, torch.full((3,), 0.99, dtype=torch.float64)).tolist()
    assert all(0 <= token < width for token in picked)
    assert picked[2] == width - 1
