"""The projections of latent attention to keys and values follow their weights."""

import pytest
import torch

from octavo.layers.latent_attention import _Expansion
from octavo.layers.weights import collect_slots, finish

HEADS, KEY_DIM, VALUE_DIM, RANK = 4, 6, 5, 16


@pytest.mark.parametrize("own", [range(4), range(1, 3)])
def test_new_weights_are_used(own: range) -> None:
    """Twice: compiled kernels free the weight's memory once they have packed it."""
    module = _Expansion(HEADS, own, (KEY_DIM, VALUE_DIM), RANK, None)
    for seed in (0, 1):
        random = torch.Generator().manual_seed(seed)
        weight = torch.randn(HEADS * (KEY_DIM + VALUE_DIM), RANK, generator=random)
        (slot,) = collect_slots(module)[".weight"]
        slot.fill(weight)
        finish(module)
        keys, values = weight.view(HEADS, -1, RANK)[own.start : own.stop].split((KEY_DIM, VALUE_DIM), 1)
        queries = torch.randn(3, len(own), KEY_DIM, generator=random)
        latents = torch.randn(3, len(own), RANK, generator=random)
        found = module.to_latents(queries, queries.new_empty(3, len(own), RANK))
        torch.testing.assert_close(found, torch.einsum("thk,hkr->thr", queries, keys))
        found = module.to_values(latents, latents.new_empty(3, len(own), VALUE_DIM))
        torch.testing.assert_close(found, torch.einsum("thr,hvr->thv", latents, values))
