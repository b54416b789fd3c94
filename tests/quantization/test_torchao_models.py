"""Whole models in torchao's formats, and what is rejected of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from dequantised_models import assert_computes, layers_of
from integer_checkpoints import Drawn, compressed, draw, write_layers
from tiny_llama import write_model

from octavo.errors import UnsupportedModelError
from octavo.platforms.cpu import CpuPlatform
from octavo.quantization.config import SchemeOptions
from octavo.quantization.float8 import Float8Scheme
from octavo.quantization.scheme import PlainScheme
from octavo.quantization.stored import ExpandedScheme, Int8Scheme, PackedScheme
from octavo.quantization.torchao import parse_torchao

Stored = tuple[dict[str, torch.Tensor], torch.Tensor]


def typed(kind: str, version: int | None = 2, **values: Any) -> dict[str, Any]:
    """A serialised object of torchao."""
    return {"_type": kind, "_data": values} | ({} if version is None else {"_version": version})


def member(kind: str, name: str) -> dict[str, Any]:
    return {"_type": kind, "_data": name}


def config(quant_type: Any, **changes: Any) -> dict[str, Any]:
    return {"quant_method": "torchao", "quant_type": {"default": quant_type}, "modules_to_not_convert": None, **changes}


ROW, TENSOR = typed("PerRow", 1, dim=-1), typed("PerTensor", 1)
INT8 = typed("Int8WeightOnlyConfig", group_size=None, granularity=ROW)
INT8_DYNAMIC = typed(
    "Int8DynamicActivationInt8WeightConfig", act_mapping_type=member("MappingType", "SYMMETRIC"), granularity=[ROW, ROW]
)


def intx(bits: int) -> dict[str, Any]:
    return typed(
        "IntxWeightOnlyConfig",
        weight_dtype=member("torch.dtype", f"int{bits}"),
        granularity=typed("PerGroup", 1, group_size=32),
        mapping_type=member("MappingType", "ASYMMETRIC"),
        intx_packing_format=member("IntxPackingFormat", "UNPACKED_TO_INT8"),
    )


INTX = intx(4)
INT4 = typed("Int4WeightOnlyConfig", group_size=32, int4_packing_format=member("Int4PackingFormat", "PLAIN"))
FLOAT8 = typed("Float8WeightOnlyConfig", weight_dtype=member("torch.dtype", "float8_e4m3fn"), granularity=ROW)
FLOAT8_DYNAMIC = typed(
    "Float8DynamicActivationFloat8WeightConfig",
    weight_dtype=member("torch.dtype", "float8_e4m3fn"),
    granularity=[TENSOR, TENSOR],
    packing_format=member("Float8PackingFormat", "PLAIN"),
)


def renamed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A layer's tensors by the names of a flattened tensor subclass."""
    ends = {"weight": "qdata", "weight_scale": "scale", "weight_zero_point": "zero_point"}
    return {f"_weight_{ends[name]}": tensor for name, tensor in tensors.items()}


def stored_int8(shape: tuple[int, int], random: torch.Generator) -> Stored:
    """Symmetric; zeros are there all the same."""
    drawn = draw(shape, random, bits=8, group=-1, dtype=torch.float32)
    tensors = compressed(drawn, symmetric=False, is_packed=False)
    return renamed(tensors), drawn.weight


def stored_intx(shape: tuple[int, int], random: torch.Generator, bits: int = 4) -> Stored:
    drawn = draw(shape, random, bits=bits, symmetric=False, dtype=torch.bfloat16)
    return renamed(compressed(drawn, symmetric=False, is_packed=False)), drawn.weight


def stored_int4(shape: tuple[int, int], random: torch.Generator) -> Stored:
    """Zeros are what an integer of 0 stands for, and no whole number of steps."""
    drawn: Drawn = draw(shape, random, dtype=torch.float32)
    zeros = torch.randn(drawn.scales.shape, generator=random).to(torch.bfloat16) / 16
    signed = (drawn.integers - 8) & 15
    packed = (signed[:, ::2] | (signed[:, 1::2] << 4)).to(torch.uint8).view(torch.int8)
    own = {"weight": packed, "weight_scale": drawn.scales.T, "weight_zero_point": zeros.T}
    return renamed(own), drawn.weight + zeros.float().repeat_interleave(32, 1)


def stored_float8(shape: tuple[int, int], random: torch.Generator, *, is_whole: bool = False) -> Stored:
    values = torch.randn(shape, generator=random).to(torch.float8_e4m3fn)
    scales = 0.05 + 0.05 * torch.rand(1 if is_whole else shape[0], 1, generator=random)
    return renamed({"weight": values, "weight_scale": scales}), values.float() * scales


def store(kind: str, shape: tuple[int, int], random: torch.Generator) -> Stored:
    """A random layer in the format of a case."""
    if "float8" in kind:
        return stored_float8(shape, random, is_whole="dynamic" in kind)
    if kind in WIDTHS:
        return stored_intx(shape, random, WIDTHS[kind])
    return {"int8": stored_int8, "intx": stored_intx, "int4": stored_int4}[kind.removesuffix("-dynamic")](shape, random)


WIDTHS = {f"int{bits}": bits for bits in (1, 2, 3, 5, 6, 7)}
CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "int8": (INT8, PackedScheme),
    "int8-dynamic": (INT8_DYNAMIC, Int8Scheme),
    "intx": (INTX, PackedScheme),
    "int4": (INT4, PackedScheme),
    **{name: (intx(bits), PackedScheme) for name, bits in WIDTHS.items()},
    "float8": (FLOAT8, ExpandedScheme),
    "float8-dynamic": (FLOAT8_DYNAMIC, Float8Scheme),
}


@pytest.mark.parametrize("case", CASES)
def test_models(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuPlatform, "has_blocks", lambda self: False)
    source = write_model(tmp_path / "plain", hidden_size=64, intermediate_size=96)
    random = torch.Generator().manual_seed(0)
    quant_type, scheme = CASES[case]
    weights = write_layers(
        source,
        tmp_path / "own",
        config(quant_type),
        lambda layer, shape: None if layer == "lm_head" else store(case, shape, random),
    )
    # Random layers amplify rounded activations; packed minimums of INT4 are rounded to float16.
    tolerance = 0.6 if "dynamic" in case else 2e-2 if case == "int4" else 1e-3
    llm = assert_computes(tmp_path / "own", source, weights, tolerance=tolerance, quantization="torchao")
    name = "model.layers.1.mlp.down_proj"
    layer = layers_of(llm)[name]
    assert isinstance(layer.scheme, scheme)
    found = layer.multiply(torch.eye(layer.in_features)).T  # rounding keeps ones and zeros
    torch.testing.assert_close(found, weights[f"{name}.weight"], rtol=1e-5, atol=5e-4 if case == "int4" else 1e-5)


def test_layers_differ_by_name(tmp_path: Path) -> None:
    """Names go before patterns, which match names of layers or of weights as a whole; the head, too."""
    by_name = {
        "_default": INT8,
        "model.layers.0.mlp.down_proj": None,
        r"re:model\.layers\.0\..*": INTX,
        r"re:.*1\.self_attn\.[qkv]_proj\.weight": FLOAT8,
    }
    random = torch.Generator().manual_seed(0)
    kinds = {"model.layers.0.mlp.down_proj": None, "model.layers.0.": "intx", "model.layers.1.self_attn": "float8"}

    def own(layer: str, shape: tuple[int, int]) -> Stored | None:
        kind = next((kind for start, kind in kinds.items() if layer.startswith(start)), "int8")
        kind = "int8" if layer.endswith("1.self_attn.o_proj") else kind
        return None if kind is None else store(kind, shape, random)

    source = write_model(tmp_path / "plain", hidden_size=64, intermediate_size=96)
    whole = config(typed("FqnToConfig", 1, fqn_to_config=by_name), modules_to_not_convert=[])
    weights = write_layers(source, tmp_path / "own", whole, own)
    layers = layers_of(assert_computes(tmp_path / "own", source, weights))
    assert isinstance(layers["model.layers.0.mlp.down_proj"].scheme, PlainScheme)
    assert isinstance(layers["lm_head"].scheme, ExpandedScheme)


def test_float8_weights_stay_where_the_device_takes_them() -> None:
    gpu = SchemeOptions(has_float8=True)
    assert isinstance(parse_torchao(config(FLOAT8), gpu).scheme("model.layers.0.mlp.up_proj"), PackedScheme)
    found = parse_torchao(config(FLOAT8_DYNAMIC), gpu)
    assert found.scheme("model.layers.0.mlp.up_proj") == Float8Scheme(
        "tensor", is_native=True, weight_name="_weight_qdata", scale_name="_weight_scale"
    )
    assert isinstance(found.scheme("lm_head"), PlainScheme)


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ({"quant_type": "int8_weight_only"}, "quant_type 'int8_weight_only', which is stored by pickle"),
        (config(typed("Int8WeightOnlyConfig", 1, group_size=None)), "Int8WeightOnlyConfig of version 1"),
        (
            config(typed("Int4WeightOnlyConfig", group_size=128, int4_packing_format=member("F", "TILE_PACKED_TO_4D"))),
            "int4_packing_format 'TILE_PACKED_TO_4D'",
        ),
        (
            config(typed("IntxWeightOnlyConfig", weight_dtype=member("torch.dtype", "uint4"))),
            r"weight_dtype 'uint4'.*not supported",
        ),
        (config(typed("Float8WeightOnlyConfig", granularity=typed("PerBlock", 1))), "granularity 'PerBlock'"),
        (config(typed("UIntXWeightOnlyConfig")), "UIntXWeightOnlyConfig"),
        (config("int8"), "quant_type = 'int8'; it must be an object"),
        (config(typed("FqnToConfig", 1)), "fqn_to_config = None"),
        ({"quant_type": None}, "quant_type = None"),
    ],
)
def test_what_is_rejected(raw: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        parse_torchao(raw, SchemeOptions())
