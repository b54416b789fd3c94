"""Layers and whole models of INT8 weights whose activations are rounded to INT8."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from dequantised_models import assert_computes, layers_of
from integer_checkpoints import Drawn, compressed, draw, write_layers
from tiny_llama import SETTINGS, write_model

from octavo import LLM
from octavo.kernels.scaled import INT8, quantize_rows
from octavo.layers.build import Build
from octavo.layers.linear import Linear
from octavo.layers.weights import finish
from octavo.parallel import TensorParallel
from octavo.quantization.compressed_tensors import parse_compressed_tensors
from octavo.quantization.config import SchemeOptions
from octavo.quantization.quark import parse_quark
from octavo.quantization.stored import ExpandedScheme, Int8Scheme, PackedScheme, RepackedScheme

WEIGHTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
INPUTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
QUARK_WEIGHTS = {"dtype": "int8", "qscheme": "per_channel", "ch_axis": 0, "symmetric": True, "is_dynamic": False}
QUARK_INPUTS = {"dtype": "int8", "qscheme": "per_tensor", "symmetric": True, "is_dynamic": False}


def compressed_config(weights: dict[str, Any] | None = None, inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    group = {
        "targets": ["Linear"],
        "weights": WEIGHTS | (weights or {}),
        "input_activations": INPUTS | (inputs or {}),
        "format": "int-quantized",
    }
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


def quark_config(**changes: Any) -> dict[str, Any]:
    own = {"weight": QUARK_WEIGHTS | changes, "input_tensors": QUARK_INPUTS, "output_tensors": None, "bias": None}
    return {"quant_method": "quark", "global_quant_config": own, "exclude": ["lm_head"]}


CASES: dict[str, dict[str, Any]] = {
    "token": compressed_config(),
    "tensor": compressed_config({"strategy": "tensor"}, {"strategy": "tensor", "dynamic": False}),
    "packed": compressed_config(),
    "quark": quark_config(),
    "quark-tensor": quark_config(qscheme="per_tensor"),
}
CASES["packed"]["config_groups"]["group_0"]["format"] = "pack-quantized"


def write(source: Path, folder: Path, case: str) -> dict[str, torch.Tensor]:
    """Write a model; returns the weights that it stands for."""
    random = torch.Generator().manual_seed(0)
    is_whole = "tensor" in case

    def store(layer: str, shape: tuple[int, int]) -> tuple[dict[str, torch.Tensor], torch.Tensor] | None:
        if layer == "lm_head":
            return None
        drawn = draw(shape, random, bits=8, group=-1, dtype=torch.float32)
        if is_whole:
            drawn = drawn._replace(scales=drawn.scales[:1].expand_as(drawn.scales))
        tensors = compressed(drawn, symmetric=True, is_packed=case == "packed")
        if is_whole:
            tensors["weight_scale"] = drawn.scales[0, 0]
        if case != "token":  # what static activations and Quark's writer add
            tensors |= {"input_scale": torch.tensor(0.01), "weight_zero_point": torch.zeros(shape[0], dtype=torch.int8)}
        return tensors, drawn.weight

    return write_layers(source, folder, CASES[case], store)


@pytest.mark.parametrize("case", CASES)
def test_models_are_near_the_dequantised_weights(case: str, tmp_path: Path) -> None:
    """Static scales are not used: 0.01, which the checkpoint says, would clip most activations."""
    source = write_model(tmp_path / "plain", hidden_size=64, intermediate_size=96)
    weights = write(source, tmp_path / "int8", case)
    method = CASES[case]["quant_method"]
    assert_computes(tmp_path / "int8", source, weights)
    # Random layers amplify rounding; logits have a spread above 2.
    llm = assert_computes(tmp_path / "int8", source, weights, tolerance=0.5, quantization=method)
    layer = layers_of(llm)["model.layers.1.self_attn.o_proj"]
    assert isinstance(layer.scheme, Int8Scheme)
    weight = weights["model.layers.1.self_attn.o_proj.weight"]
    x = torch.randn(5, layer.in_features, generator=torch.Generator().manual_seed(1))
    values, scales = quantize_rows.reference(x, INT8)
    torch.testing.assert_close(layer.multiply(x), values.float() @ weight.T * scales, rtol=1e-5, atol=1e-5)
    assert torch.equal(layer.multiply(x)[3:4], layer.multiply(x[3:4]))


def test_random_weights(tmp_path: Path) -> None:
    source = write_model(tmp_path / "plain", hidden_size=64, intermediate_size=96)
    raw = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(raw | {"quantization_config": compressed_config()}))
    settings = SETTINGS | {"quantization": "compressed-tensors"}
    llm = LLM(str(source), load_format="dummy", skip_tokenizer_init=True, **settings)
    layer = layers_of(llm)["model.layers.0.self_attn.o_proj"]
    assert layer.multiply(torch.eye(layer.in_features)).std().item() == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize(
    ("config", "options", "wanted"),
    [
        (compressed_config(), SchemeOptions(), Int8Scheme),
        (compressed_config(), SchemeOptions(has_blocks=True), Int8Scheme),
        (compressed_config({"strategy": "group", "group_size": 32}), SchemeOptions(has_blocks=True), RepackedScheme),
        (compressed_config(), SchemeOptions(expands=True), ExpandedScheme),
        (compressed_config(inputs={"symmetric": False}), SchemeOptions(), PackedScheme),
        (compressed_config({"symmetric": False}), SchemeOptions(), PackedScheme),
        (compressed_config({"strategy": "group", "group_size": 32}), SchemeOptions(), PackedScheme),
        (compressed_config({"num_bits": 4}), SchemeOptions(), PackedScheme),
        (quark_config(), SchemeOptions(), Int8Scheme),
    ],
)
def test_activations_are_rounded_where_that_is_what_the_weights_were_made_for(
    config: dict[str, Any], options: SchemeOptions, wanted: type
) -> None:
    parse = parse_quark if config["quant_method"] == "quark" else parse_compressed_tensors
    found = parse(config, options)
    assert type(found.scheme("model.layers.0.mlp.down_proj")) is wanted
    assert ("by token" in found.description) == (wanted is Int8Scheme)


def fill(layer: Linear, names: str, drawn: dict[str, Drawn]) -> Linear:
    for name, slot in layer.weight_slots(names):
        part, leaf = name.split(".")
        slot.fill(compressed(drawn[part], symmetric=True, is_packed=False)[leaf])
    finish(layer)
    return layer


def test_layers_are_divided_and_filled_again() -> None:
    """Each half of the inputs is rounded with scales of its own."""
    random = torch.Generator().manual_seed(0)
    drawn = {name: draw((16, 64), random, bits=8, group=-1) for name in ("gate", "up", "down")}
    x = torch.randn(3, 64, generator=random)
    halves: list[torch.Tensor] = []
    total = torch.zeros(3, 16)
    for rank in range(2):
        tp = TensorParallel(rank, 2)
        build = Build(parse_compressed_tensors(compressed_config(), SchemeOptions()), tensor_parallel=tp)
        layer = build.linear("gate_up", 64, {"gate": 16, "up": 16}, split="column", head_size=4)
        assert isinstance(layer, Linear)
        negative = {name: own._replace(scales=-own.scales) for name, own in drawn.items()}
        first = fill(layer, "gate_up", drawn)(x)
        assert torch.equal(fill(layer, "gate_up", negative)(x), -first)
        halves.append(first.unflatten(1, (2, 8)))
        down = build.linear("down", 64, 16, split="row")
        assert isinstance(down, Linear)
        total += Linear.forward(fill(down, "down", drawn), x.chunk(2, 1)[rank])
    expected = [x @ drawn[name].weight.T for name in ("gate", "up")]
    torch.testing.assert_close(torch.cat(halves, 2), torch.stack(expected, 1), rtol=0, atol=0.1)
    torch.testing.assert_close(total, x @ drawn["down"].weight.T, rtol=0, atol=0.1)
