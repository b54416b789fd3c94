"""Checkpoints as the tools write them that users meet: names of tensors, keys of configurations, what is left out."""

from pathlib import Path
from typing import Any

import pytest
import torch
from dense_and_sparse import Stored, assert_has, is_usual, load, write
from float8_checkpoints import float8_layer
from test_float8_blocks import COLUMNS, ROWS
from test_float8_blocks import draw as draw_blocks

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def as_transformers(shape: tuple[int, int], random: torch.Generator) -> Stored:
    """Devstral 2 and Ministral 3: one scale, which is called as those of blocks are, and one of activations."""
    tensors, _ = float8_layer(shape, random)
    own = {"weight_scale_inv": tensors["weight_scale"].bfloat16(), "activation_scale": torch.tensor(0.5)}
    return {"weight": tensors["weight"], **own}, tensors["weight"].float() * own["weight_scale_inv"].float()


def in_blocks(name: str, dtype: torch.dtype) -> Any:
    def store(shape: tuple[int, int], random: torch.Generator) -> Stored:
        values, scales, _ = draw_blocks(shape, random)
        scales = torch.exp2(torch.log2(scales).round()).to(dtype)
        spread = scales.float().repeat_interleave(ROWS, 0)[: shape[0]].repeat_interleave(COLUMNS, 1)[:, : shape[1]]
        return {"weight": values, name: scales}, values.float() * spread

    return store


def test_one_scale_by_the_name_of_those_of_blocks(tmp_path: Path) -> None:
    config = FP8 | {"activation_scheme": "static", "weight_block_size": None, "dequantize": False}
    weights = write(tmp_path, config | {"modules_to_not_convert": ["lm_head", "model.vision_tower"]}, as_transformers)
    assert_has(load(tmp_path), weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e8m0fnu], ids=["float32", "exponents"])
@pytest.mark.parametrize("name", ["weight_scale_inv", "weight_scale"])
@pytest.mark.parametrize("is_packed", [False, True], ids=["expanded", "packed"])
def test_scales_of_blocks(name: str, dtype: torch.dtype, is_packed: bool, tmp_path: Path) -> None:
    """DeepSeek-V3.1: powers of two (``scale_fmt``: ``ue8m0``), as numbers or as their exponents."""
    config = FP8 | {"fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [ROWS, COLUMNS]}
    weights = write(tmp_path, config, in_blocks(name, dtype))
    assert_has(load(tmp_path, has_float8=is_packed, has_groups=is_packed), weights)


@pytest.mark.parametrize("ignored", [r"re:.*\.experts\.\d+\.down_proj", "model.layers.1.mlp.experts.*.down_proj"])
@pytest.mark.parametrize("key", ["ignored_layers", "modules_to_not_convert"])
def test_fp8_ignores_by_pattern(key: str, ignored: str, tmp_path: Path) -> None:
    def is_stored(layer: str) -> bool:
        return is_usual(layer) and not (".experts." in layer and layer.endswith("down_proj"))

    weights = write(tmp_path, FP8 | {key: ["lm_head", ignored]}, float8_layer, is_stored)
    assert_has(load(tmp_path), weights)
