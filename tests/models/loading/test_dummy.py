"""Random weights."""

from pathlib import Path

import pytest
import torch
from tiny_weights import FAMILIES, Tiny, folder_of, tiny

from octavo.models.loading import load_weights


def load(model: Tiny, seed: int) -> dict[str, torch.Tensor]:
    source = folder_of(Path("nothing"))
    load_weights(model.model, source, model.config, load_format="dummy", seed=seed, show_progress=False)
    return {name: slot.view for name, (slot,) in model.slots.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_is_small_and_every_norm_one(family: str) -> None:
    for name, slot in load(tiny(family, torch.bfloat16), seed=1).items():
        if name.endswith("norm.weight"):
            assert (slot == 1).all(), name
        else:
            assert 0 < slot.float().abs().max() < 0.2, name


def test_the_seed_decides() -> None:
    first, again, other = (load(tiny("llama"), seed) for seed in (5, 5, -6))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])
