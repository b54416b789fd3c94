"""Matrices that are rounded or packed while they are loaded arrive in pieces, and become what the whole one becomes."""

from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType
from tiny_weights import Tiny, tiny, write_gguf, write_safetensors

from octavo.models.loading import gguf_weights, load_weights, safetensors_files
from octavo.platforms.native import native_kernels
from octavo.quantization.block_config import parse_gguf, round_to_int4, round_to_int8
from octavo.quantization.config import SchemeOptions

pytestmark = pytest.mark.skipif(native_kernels() is None, reason="needs compiled kernels; run on an AMD EPYC")

OPTIONS = SchemeOptions(has_blocks=True)
ROUNDINGS = {"int8": round_to_int8(OPTIONS), "int4": round_to_int4(OPTIONS)}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of one or two panels of the tiny model's matrices, whose rows have 64 or 96 values."""
    monkeypatch.setattr(gguf_weights, "_PIECE", 16 * 96)
    monkeypatch.setattr(gguf_weights, "_BUFFER_BYTES", 32 * 64)
    monkeypatch.setattr(safetensors_files, "CHUNK_BYTES", 5000)


def assert_loaded(model: Tiny, source_of: dict[str, torch.Tensor]) -> None:
    """Check every tensor against one that is filled at once."""
    for name, (slot,) in model.slots.items():
        wanted = replace(slot, view=torch.zeros_like(slot.view))
        wanted.fill(source_of[name])
        assert torch.equal(slot.view, wanted.view), name


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_rounded_weights(rounding: str, form: str, tmp_path: Path) -> None:
    model = tiny("qwen3", torch.bfloat16, ROUNDINGS[rounding])
    if form == "gguf":
        source = write_gguf(tmp_path / "model.gguf", "qwen3", model.config, model.weights)
    else:
        source = write_safetensors(tmp_path, model.weights)
    load_weights(model.model, source, model.config, load_format="auto", seed=0, show_progress=False)
    assert model.slots["model.embed_tokens.weight"][0].view.dtype is torch.uint8
    assert_loaded(model, model.weights)


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_1", "Q8_0"])
def test_weights_of_a_file_as_they_are(kind: str, tmp_path: Path) -> None:
    matrices = [name.removesuffix(".weight") for name, weight in tiny("qwen3").weights.items() if weight.dim() == 2]
    model = tiny("qwen3", torch.bfloat16, parse_gguf({"types": dict.fromkeys(matrices, kind)}, OPTIONS))
    source = write_gguf(tmp_path / "model.gguf", "qwen3", model.config, model.weights, kind)
    load_weights(model.model, source, model.config, load_format="auto", seed=0, show_progress=False)
    raw = {
        name: torch.from_numpy(gguf.quants.quantize(weight.numpy(), GGMLQuantizationType[kind]))
        if weight.dim() == 2
        else weight
        for name, weight in model.weights.items()
    }
    assert_loaded(model, raw)
