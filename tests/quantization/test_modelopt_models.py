"""Whole models in ModelOpt's formats, and 4-bit floats of compressed-tensors."""

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from dequantised_models import assert_computes, layers_of
from float4_checkpoints import compressed_float4, draw_float4, float4_weights, modelopt
from float8_checkpoints import compressed_tensors, float8_layer
from integer_checkpoints import write_layers
from tiny_llama import SETTINGS, write_model

from octavo import LLM
from octavo.errors import UnsupportedModelError, WeightsError
from octavo.quantization.config import SchemeOptions
from octavo.quantization.float8 import Float8Scheme
from octavo.quantization.modelopt import parse_modelopt
from octavo.quantization.scheme import PlainScheme
from octavo.quantization.stored import ExpandedScheme

Stored = tuple[dict[str, torch.Tensor], torch.Tensor]
LAYER = "model.layers.0.mlp.down_proj"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("plain"), hidden_size=64, intermediate_size=96)


def nvfp4(shape: tuple[int, int], random: torch.Generator) -> Stored:
    drawn = draw_float4(shape, random, "nvfp4")
    return modelopt(drawn), drawn.weight


@pytest.mark.parametrize("is_sidecar", [False, True], ids=["config", "sidecar"])
def test_nvfp4(is_sidecar: bool, folder: Path, tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(0)
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head", "*.0.mlp*"]}

    def store(layer: str, shape: tuple[int, int]) -> Stored | None:
        return None if layer == "lm_head" or ".0.mlp." in layer else nvfp4(shape, random)

    weights = write_layers(folder, tmp_path, config, store)
    if is_sidecar:
        (tmp_path / "config.json").write_text((folder / "config.json").read_text())
        own = {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "exclude_modules": config["ignore"]}
        (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": own}))
    layers = layers_of(assert_computes(tmp_path, folder, weights))
    assert isinstance(layers["model.layers.1.mlp.gate_up_proj"].scheme, ExpandedScheme)
    assert isinstance(layers["model.layers.0.mlp.gate_up_proj"].scheme, PlainScheme)


@pytest.mark.parametrize("per_channel", [False, True], ids=["tensor", "channel"])
def test_float8(per_channel: bool, folder: Path, tmp_path: Path) -> None:
    """Each layer's weight is what its tensors stand for; what float8 layers compute is tested elsewhere."""
    random = torch.Generator().manual_seed(0)
    algorithm = "FP8_PER_CHANNEL_PER_TOKEN" if per_channel else "FP8"
    config = {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"]}

    def store(layer: str, shape: tuple[int, int]) -> Stored | None:
        return None if layer == "lm_head" else float8_layer(shape, random, per_channel=per_channel)

    weights = write_layers(folder, tmp_path, config, store)
    llm = assert_computes(tmp_path, folder, weights, tolerance=0.6)
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        layer = layers_of(llm)[f"model.layers.1.{name}"]
        assert isinstance(layer.scheme, Float8Scheme)
        # Rounding keeps ones and zeros.
        found = layer.multiply(torch.eye(layer.in_features)).T
        torch.testing.assert_close(found, weights[f"model.layers.1.{name}.weight"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("place", ["config", "sidecar", "map in the sidecar"])
def test_layers_have_algorithms_of_their_own(place: str, folder: Path, tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(0)
    layers = {f"model.layers.{i}.mlp": {"quant_algo": "NVFP4", "group_size": 16} for i in (0, 1)}
    layers["model.layers.1.self_attn.o_proj"] = {"quant_algo": "FP8"}
    config: dict[str, Any] = {"quant_method": "modelopt_mixed", "quant_algo": "MIXED_PRECISION"}
    config |= {"quantized_layers": layers} if place == "config" else {}

    def store(layer: str, shape: tuple[int, int]) -> Stored | None:
        if layer == "model.layers.1.self_attn.o_proj":
            return float8_layer(shape, random)
        return nvfp4(shape, random) if ".mlp." in layer else None

    weights = write_layers(folder, tmp_path, config, store)
    if place != "config":
        own = {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(own))
    if place == "sidecar":
        shutil.copy(folder / "config.json", tmp_path)
    found = layers_of(assert_computes(tmp_path, folder, weights, tolerance=0.6))
    kinds = {name.removeprefix("model.layers.1."): type(layer.scheme) for name, layer in found.items() if ".1." in name}
    assert kinds == {
        "self_attn.qkv_proj": PlainScheme,
        "self_attn.o_proj": Float8Scheme,
        "mlp.gate_up_proj": ExpandedScheme,
        "mlp.down_proj": ExpandedScheme,
    }


@pytest.mark.parametrize("has_inputs", [False, True], ids=["weights", "activations"])
@pytest.mark.parametrize("has_scales", [False, True], ids=["without their scale", "with their scale"])
@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
def test_float4_of_compressed_tensors(
    kind: Literal["nvfp4", "mxfp4"], has_scales: bool, has_inputs: bool, folder: Path, tmp_path: Path
) -> None:
    random = torch.Generator().manual_seed(0)
    own = float4_weights(kind)
    inputs = {**own, "dynamic": "local" if kind == "nvfp4" else True} if has_inputs else None
    config = compressed_tensors(format=f"{kind}-pack-quantized", weights=own, input_activations=inputs)

    def store(layer: str, shape: tuple[int, int]) -> Stored | None:
        if layer == "lm_head":
            return None
        drawn = draw_float4(shape, random, kind)
        return compressed_float4(drawn, has_inputs=has_scales), drawn.weight

    weights = write_layers(folder, tmp_path, config, store)
    assert_computes(tmp_path, folder, weights)


@pytest.mark.parametrize(
    ("excluded", "layer", "is_plain"),
    [
        ("lm_head", "lm_head", True),
        ("model.layers.0*", LAYER, True),
        ("layers.0.mlp", LAYER, True),
        ("*down_proj", LAYER, True),
        ("model.layers.*.mlp", LAYER, True),
        ("model.layers.1", "model.layers.10.mlp.down_proj", False),
        ("down", LAYER, False),
    ],
)
def test_layers_are_excluded_by_wildcards(excluded: str, layer: str, is_plain: bool) -> None:
    config = parse_modelopt({"quant_algo": "FP8", "ignore": [excluded]}, SchemeOptions())
    assert isinstance(config.scheme(layer), PlainScheme) == is_plain


def test_a_cache_alone() -> None:
    own = {"quant_algo": None, "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    config = parse_modelopt({"quantization": own}, SchemeOptions())
    assert config.description == "" and isinstance(config.scheme(LAYER), PlainScheme)


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ({}, "quant_algo None; supported are FP8"),
        ({"quant_algo": "NVFP4_AWQ"}, "'NVFP4_AWQ'"),
        ({"quant_algo": 8}, "quant_algo 8"),
        ({"quant_algo": "NVFP4", "group_size": 32}, "group_size = 32; it must be 16"),
        ({"quantization": 5}, "quantization = 5; it must be an object"),
        ({"quant_algo": "FP8", "ignore": "lm_head"}, "ignore = 'lm_head'; it must be a list of names"),
        ({"quant_algo": "FP8", "ignore": ["x" * 2000]}, "at most 1000 characters"),
        ({"quant_algo": "MIXED_PRECISION"}, "quantized_layers = None; it must be an object of settings"),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {LAYER: "FP8"}}, "quantized_layers"),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {LAYER: {"quant_algo": "W4A8_AWQ"}}}, "W4A8_AWQ"),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {}}, "quantized_layers = {}"),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": [LAYER]}, "quantized_layers"),
        (
            {"quant_algo": "MIXED_PRECISION", "quantized_layers": {LAYER: {"awq": 1}}},
            r"quantized_layers\['model.layers.0.mlp.down_proj'\]: quant_algo None",
        ),
        (
            {"quant_algo": "MIXED_PRECISION", "quantized_layers": {LAYER: {"quant_algo": "NVFP4", "group_size": 8}}},
            r"down_proj'\]: group_size = 8; it must be 16",
        ),
    ],
)
def test_what_is_rejected(own: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        parse_modelopt(own, SchemeOptions())


def test_weights_and_configuration_must_agree(folder: Path, tmp_path: Path) -> None:
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    write_layers(folder, tmp_path, config, lambda layer, shape: None)
    with pytest.raises(WeightsError, match=r"missing: .*weight_scale.*quantised in another way"):
        LLM(str(tmp_path), **SETTINGS)
