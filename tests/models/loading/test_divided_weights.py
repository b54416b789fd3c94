"""Every rank's part of a model's weights, from safetensors and GGUF files."""

from pathlib import Path

import pytest
import torch
from tiny_weights import DEVICE, FAMILIES, GGUF_ARCHITECTURES, tiny, write_gguf, write_safetensors

from octavo.errors import ConfigError
from octavo.layers.build import Build
from octavo.layers.weights import collect_slots
from octavo.models.loading import load_weights
from octavo.models.registry import build_model
from octavo.parallel import TensorParallel

CASES = [*((family, "safetensors") for family in FAMILIES), *((family, "gguf") for family in GGUF_ARCHITECTURES)]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(("family", "kind"), CASES)
def test_ranks_have_their_parts(family: str, size: int, kind: str, tmp_path: Path) -> None:
    """With four ranks, each of the two key/value heads is on two of them."""
    whole = tiny(family, vocab_size=63)
    source = (
        write_gguf(tmp_path / "model.gguf", family, whole.config, whole.weights)
        if kind == "gguf"
        else write_safetensors(tmp_path, whole.weights)
    )
    covered = {name: torch.zeros_like(weight) for name, weight in whole.weights.items()}
    num_bytes = 0
    for rank in range(size):
        with DEVICE:
            model = build_model(whole.config, Build(tensor_parallel=TensorParallel(rank, size)), 64)
        slots = collect_slots(model)
        load_weights(model, source, whole.config, load_format="auto", seed=0, show_progress=False)
        for name, (slot,) in slots.items():
            part = whole.weights[name][slot.source_slice]
            wanted = part if slot.transform is None else slot.transform(part)
            torch.testing.assert_close(slot.view.cpu(), wanted.view(slot.view.shape), rtol=0, atol=1e-6, msg=name)
            covered[name][slot.source_slice] += 1
            num_bytes += slot.view.nbytes
    assert all((count > 0).all() for count in covered.values()), "no rank has some weights"
    assert num_bytes < 2 * sum(weight.nbytes for weight in whole.weights.values())


def test_what_cannot_be_divided_is_rejected() -> None:
    config = tiny("llama").config
    with torch.device("meta"), pytest.raises(ConfigError, match=r"is 3, but the model's 2 key/value heads"):
        build_model(config, Build(tensor_parallel=TensorParallel(0, 3)), 64)
    with torch.device("meta"), pytest.raises(ConfigError, match=r"is 8, but the model's 4 attention heads"):
        build_model(config, Build(tensor_parallel=TensorParallel(0, 8)), 64)
