"""Whole models in Quark's format, and what is rejected of it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from dequantised_models import assert_computes, layers_of
from float4_checkpoints import draw_float4
from float6_checkpoints import draw_float6
from float8_checkpoints import float8_layer
from integer_checkpoints import draw, write_layers
from integer_checkpoints import quark as quark_integers
from tiny_llama import write_model

from octavo.errors import UnsupportedModelError
from octavo.platforms.cpu import CpuPlatform
from octavo.quantization.config import SchemeOptions
from octavo.quantization.float8 import Float8Scheme
from octavo.quantization.quark import parse_quark
from octavo.quantization.quark_integers import QuarkIntegers
from octavo.quantization.scheme import PlainScheme
from octavo.quantization.stored import ExpandedScheme, PackedScheme

Stored = tuple[dict[str, torch.Tensor], torch.Tensor]
FLOAT8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "ch_axis": None, "group_size": None, "is_dynamic": False}
MXFP4 = {"dtype": "fp4", "qscheme": "per_group", "ch_axis": -1, "group_size": 32, "scale_format": "e8m0"}
BY_TENSOR = {"weight": FLOAT8, "input_tensors": FLOAT8, "output_tensors": None, "bias": None}
BY_CHANNEL = BY_TENSOR | {
    "weight": FLOAT8 | {"qscheme": "per_channel", "ch_axis": 0},
    "input_tensors": FLOAT8 | {"qscheme": "per_channel", "ch_axis": 1, "is_dynamic": True},
}
BY_BLOCK = BY_TENSOR | {"weight": MXFP4, "input_tensors": MXFP4 | {"is_dynamic": True}}
BY_PATTERN = {"*mlp.*": BY_BLOCK, "re:.*layers\\.1\\.self_attn\\.o_proj": BY_CHANNEL}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("plain"), hidden_size=64, intermediate_size=96)


def quark(**changes: Any) -> dict[str, Any]:
    return {
        "quant_method": "quark",
        "global_quant_config": BY_TENSOR,
        "layer_quant_config": {},
        "layer_type_quant_config": {},
        "exclude": ["lm_head"],
        "export": {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"},
        "algo_config": None,
        **changes,
    }


def mxfp4(shape: tuple[int, int], random: torch.Generator) -> Stored:
    drawn = draw_float4(shape, random, "mxfp4")
    return {"weight": drawn.packed, "weight_scale": drawn.scales}, drawn.weight


@pytest.mark.parametrize("is_packed", [False, True])
def test_mxfp4(is_packed: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuPlatform, "has_blocks", lambda self: False)
    random = torch.Generator().manual_seed(0)
    config = quark(global_quant_config=BY_BLOCK, exclude=["lm_head", "*.self_attn.*"])
    weights = write_layers(
        folder, tmp_path, config, lambda layer, shape: mxfp4(shape, random) if ".mlp." in layer else None
    )
    settings = {"quantization": "quark"} if is_packed else {}
    layers = layers_of(assert_computes(tmp_path, folder, weights, **settings))
    wanted = PackedScheme if is_packed else ExpandedScheme
    assert isinstance(layers["model.layers.0.mlp.down_proj"].scheme, wanted)
    assert isinstance(layers["model.layers.0.self_attn.o_proj"].scheme, PlainScheme)


INTEGERS = {"qscheme": "per_group", "ch_axis": -1, "group_size": 32, "is_dynamic": False, "zero_point_type": "int32"}


@pytest.mark.parametrize(
    ("kind", "symmetric", "packing"),
    [
        ("int4", True, "reorder"),
        ("int4", False, "order"),
        ("uint4", False, "reorder"),
        ("uint4", True, "order"),
        ("int8", True, "reorder"),
        ("uint8", False, "reorder"),
    ],
)
@pytest.mark.parametrize("is_packed", [False, True], ids=["expanded", "packed"])
def test_integers_in_groups(
    is_packed: bool,
    kind: str,
    symmetric: bool,
    packing: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files have zeros of symmetric weights, too."""
    monkeypatch.setattr(CpuPlatform, "has_blocks", lambda self: False)
    random = torch.Generator().manual_seed(0)
    weights = INTEGERS | {"dtype": kind, "symmetric": symmetric}
    config = quark(global_quant_config=BY_TENSOR | {"weight": [weights], "input_tensors": None})
    config["export"] |= {"pack_method": packing}

    def store(layer: str, shape: tuple[int, int]) -> Stored | None:
        if layer == "lm_head":
            return None
        drawn = draw(shape, random, bits=int(kind[-1]), symmetric=symmetric)
        return quark_integers(drawn, kind, has_zeros=True, interleaved=packing == "reorder"), drawn.weight

    expected = write_layers(folder, tmp_path, config, store)
    settings = {"quantization": "quark"} if is_packed else {}
    layers = layers_of(assert_computes(tmp_path, folder, expected, **settings))
    wanted = PackedScheme if is_packed else ExpandedScheme
    assert isinstance(layers["model.layers.1.mlp.down_proj"].scheme, wanted)


def test_words_that_the_last_outputs_do_not_fill() -> None:
    drawn = draw((13, 64), torch.Generator().manual_seed(0), symmetric=False)
    layout = QuarkIntegers(4, 32, is_signed=False, has_zeros=True)
    tensors = quark_integers(drawn, "uint4", has_zeros=True)
    assert all(tensors[name].shape in stored.shapes for name, stored in layout.tensors((13, 64)).items())
    torch.testing.assert_close(layout.read(tensors, (13, 64)).values(), drawn.weight, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["e3m2", "e2m3"])
def test_mxfp6(kind: str, folder: Path, tmp_path: Path) -> None:
    """Activations are not rounded."""
    random = torch.Generator().manual_seed(0)
    weights = MXFP4 | {"dtype": f"fp6_{kind}"}
    config = quark(global_quant_config=BY_TENSOR | {"weight": weights, "input_tensors": weights | {"is_dynamic": True}})
    expected = write_layers(
        folder, tmp_path, config, lambda layer, shape: None if layer == "lm_head" else draw_float6(shape, random, kind)
    )
    layers = layers_of(assert_computes(tmp_path, folder, expected))
    layer = layers["model.layers.1.mlp.down_proj"]
    found = layer.multiply(torch.eye(layer.in_features)).T
    torch.testing.assert_close(found, expected["model.layers.1.mlp.down_proj.weight"], rtol=0, atol=0)


def test_layers_have_settings_by_pattern(folder: Path, tmp_path: Path) -> None:
    """Float8 by tensor but where a pattern says otherwise; each weight is what its tensors stand for."""
    random = torch.Generator().manual_seed(0)

    def store(layer: str, shape: tuple[int, int]) -> Stored | None:
        if layer == "lm_head":
            return None
        if ".mlp." in layer:
            return mxfp4(shape, random)
        return float8_layer(shape, random, per_channel=layer == "model.layers.1.self_attn.o_proj")

    weights = write_layers(folder, tmp_path, quark(layer_quant_config=BY_PATTERN), store)
    layers = layers_of(assert_computes(tmp_path, folder, weights, tolerance=0.6))
    for name, scheme in (
        ("model.layers.0.self_attn.o_proj", Float8Scheme("tensor")),
        ("model.layers.1.self_attn.o_proj", Float8Scheme("channel")),
    ):
        layer = layers[name]
        assert layer.scheme == scheme
        # Rounding keeps ones and zeros.
        found = layer.multiply(torch.eye(layer.in_features)).T
        torch.testing.assert_close(found, weights[f"{name}.weight"], rtol=1e-5, atol=1e-5)
    assert isinstance(layers["model.layers.1.mlp.gate_up_proj"].scheme, ExpandedScheme)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"global_quant_config": BY_TENSOR | {"weight": {"dtype": "int8", "qscheme": "per_tensor"}}},
            r"global_quant_config .*dtype 'int8', qscheme 'per_tensor'.*supported are fp8_e4m3 and int8",
        ),
        ({"global_quant_config": BY_TENSOR | {"weight": [MXFP4, FLOAT8]}}, "dtype 'fp4'.*and dtype 'fp8_e4m3'"),
        ({"global_quant_config": BY_TENSOR | {"output_tensors": FLOAT8}}, "outputs dtype 'fp8_e4m3'"),
        ({"global_quant_config": None}, "global_quant_config = None; it must be an object"),
        ({"layer_quant_config": {"*q_proj": BY_TENSOR | {"bias": FLOAT8}}}, r"\*q_proj .*biases dtype"),
        ({"layer_type_quant_config": {"Linear": BY_TENSOR}}, r"types of layers \(\['Linear'\]\)"),
        ({"export": {"kv_cache_group": ["*k_proj"]}}, "keys and values, but no layer of theirs has output_tensors"),
        ({"kv_cache_quant_config": {"*k_proj": FLOAT8}}, "keys and values, but no layer of theirs has output_tensors"),
        ({"global_quant_config": BY_BLOCK | {"weight": MXFP4 | {"dtype": "fp6_e4m1"}}}, "dtype 'fp6_e4m1'"),
        ({"global_quant_config": BY_BLOCK | {"weight": INTEGERS | {"dtype": "int4"}}}, "dtype 'int4'.*activations dty"),
        (
            {"global_quant_config": {"weight": INTEGERS | {"dtype": "uint4", "zero_point_type": "float32"}}},
            "dtype 'uint4'.*activations not quantised",
        ),
        ({"global_quant_config": {"weight": INTEGERS | {"dtype": "int4", "group_size": 0}}}, "group_size 0"),
        (
            {"global_quant_config": BY_TENSOR | {"weight": FLOAT8 | {"qscheme": "per_block", "block_size": [128]}}},
            "qscheme 'per_block'",
        ),
        ({"export": {"pack_method": "shuffle"}}, "pack_method = 'shuffle'; it must be 'reorder' or 'order'"),
        ({"export": {"weight_format": "fake_quantized"}}, "weight_format = 'fake_quantized'; it must be"),
        ({"algo_config": [{"name": "rotation"}]}, r"rotated \(rotation\)"),
        ({"exclude": "lm_head"}, "exclude = 'lm_head'; it must be a list of names"),
    ],
)
def test_what_is_rejected(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        parse_quark(quark(**changes), SchemeOptions())
