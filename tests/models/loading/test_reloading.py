"""Weights that are loaded again go where the first ones are, so that captured graphs see them."""

from pathlib import Path

import pytest
import torch
from tiny_weights import FAMILIES, SIZES, tiny, write_gguf, write_safetensors

from octavo.hub.config_file import parse_config
from octavo.layers.build import Build
from octavo.layers.weights import collect_slots
from octavo.models.loading import load_weights
from octavo.models.registry import build_model
from octavo.quantization.config import SchemeOptions
from octavo.quantization.float8_config import round_to_float8


def _places(model: torch.nn.Module) -> dict[str, int]:
    return {name: parameter.data_ptr() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("family", FAMILIES)
def test_addresses_stay(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    source = write_safetensors(tmp_path, model.weights)
    load_weights(model.model, source, model.config, load_format="auto", seed=0, show_progress=False)
    places = _places(model.model)
    model.weights.update({name: -2 * weight for name, weight in model.weights.items()})
    write_safetensors(tmp_path, model.weights)
    load_weights(model.model, source, model.config, load_format="auto", seed=0, show_progress=False)
    model.assert_loaded()
    assert _places(model.model) == places


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_addresses_of_float8_weights_stay(kind: str, tmp_path: Path) -> None:
    unquantised = tiny("qwen3")
    config = parse_config(SIZES | FAMILIES["qwen3"])
    model = build_model(config, Build(round_to_float8(SchemeOptions(has_float8=True))), 64)
    places = _places(model)
    for factor in (1, -2):
        weights = {name: factor * weight for name, weight in unquantised.weights.items()}
        if kind == "gguf":
            source = write_gguf(tmp_path / "model.gguf", "qwen3", config, weights)
        else:
            source = write_safetensors(tmp_path, weights)
        report = load_weights(model, source, config, load_format="auto", seed=0, show_progress=False)
        assert _places(model) == places
        layer = model.get_submodule("model.layers.1.mlp.down_proj")
        assert layer.weight.dtype is torch.float8_e4m3fn
        rounded = layer.weight.float() * layer.weight_scale[:, None]
        torch.testing.assert_close(rounded, weights["model.layers.1.mlp.down_proj.weight"], rtol=0.0625, atol=0.01)
    assert report.num_bytes == sum(parameter.nbytes for parameter in model.parameters())
    assert all(slot.takes(torch.float32) for places in collect_slots(model).values() for slot in places)
