"""Which layers are quantised by the names of their tensors, from an index or the files themselves."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from octavo.hub.stored_layers import StoredLayers, stored_layers

NAMES = (
    *("model.embed_tokens.weight", "model.norm.weight", "model.layers.0.mlp.gate.weight"),
    *("model.layers.0.o_proj.weight", "model.layers.0.o_proj.bias"),
    *("model.layers.0.q_proj.weight", "model.layers.0.q_proj.weight_scale"),
    *("model.layers.0.k_proj.qweight", "model.layers.0.k_proj.bias"),
    *("model.layers.0.v_proj.weight", "model.layers.0.v_proj.weight.quant_state.bitsandbytes__nf4"),
    *("lm_head.weight", "lm_head.weight.absmax"),
)
UNQUANTIZED = {"model.embed_tokens", "model.norm", "model.layers.0.mlp.gate", "model.layers.0.o_proj"}
FOUND = StoredLayers(frozenset(UNQUANTIZED), frozenset({"lm_head"}))


@pytest.mark.parametrize("form", ["one file", "two files", "index"])
def test_layers_are_told_by_their_tensors(form: str, tmp_path: Path) -> None:
    tensors = {name: torch.zeros(1) for name in NAMES}
    if form == "one file":
        save_file(tensors, tmp_path / "model.safetensors")
    elif form == "two files":
        for number, own in enumerate((NAMES[:6], NAMES[6:])):
            save_file({name: tensors[name] for name in own}, tmp_path / f"model-{number}.safetensors")
    else:
        index = {"weight_map": dict.fromkeys(NAMES, "model-1.safetensors")}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert stored_layers(tmp_path) == FOUND


@pytest.mark.parametrize("content", [b"", b"\xff" * 9, (4).to_bytes(8, "little") + b"null"])
@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_what_cannot_be_read_tells_nothing(name: str, content: bytes, tmp_path: Path) -> None:
    """Loading the weights says what is wrong with them."""
    (tmp_path / name).write_bytes(content)
    assert stored_layers(tmp_path) == StoredLayers() == stored_layers(tmp_path / "missing")


def test_experts_that_are_stored_together(tmp_path: Path) -> None:
    names = ["a.experts.gate_up_proj", "a.experts.gate_up_proj_bias"]
    names += ["a.experts.down_proj", "a.experts.down_proj_scale_inv", "b.experts.mlp.w1"]
    names += ["c.experts.0.up_proj.weight", "c.experts.0.up_proj.weight_scale", "c.experts.0.gate_proj.weight"]
    names += ["d.experts.0.up_proj.qweight"]
    save_file({name: torch.zeros(1) for name in names}, tmp_path / "model.safetensors")
    found = stored_layers(tmp_path).unquantized
    assert found >= {"a.experts.gate_up_proj", "b.experts.mlp.w1", "c.experts", "c.experts.0.gate_proj"}
    assert found.isdisjoint({"a.experts.down_proj", "a.experts", "c.experts.0.up_proj", "d.experts"})


def test_notes_on_a_file_are_no_layer(tmp_path: Path) -> None:
    """So a checkpoint of which no layer is quantised does not count as one that left all of them as they are."""
    save_file({"model.norm.weight": torch.zeros(1)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert stored_layers(tmp_path) == StoredLayers()
