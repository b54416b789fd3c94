"""Checkpoints as the tools write them that users meet: names of tensors, keys of configurations, what is left out."""

from pathlib import Path
from typing import Any

import pytest
import torch
from dense_and_sparse import HEAD, SIZE, VOCAB, Stored, assert_has, is_usual, load, write
from float8_checkpoints import INPUTS, compressed_tensors, float8_layer
from integer_checkpoints import awq, draw, gptq
from test_float8_blocks import COLUMNS, ROWS
from test_float8_blocks import draw as draw_blocks

from octavo.layers.attention import Attention

PER_TENSOR = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "ch_axis": None, "group_size": None, "is_dynamic": False}
QUARK_FP8 = {"weight": PER_TENSOR, "input_tensors": PER_TENSOR, "output_tensors": None, "bias": None}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def as_transformers(shape: tuple[int, int], random: torch.Generator) -> Stored:
    """Devstral 2 and Ministral 3: one scale, which is called as those of blocks are, and one of activations."""
    tensors, _ = float8_layer(shape, random)
    own = {"weight_scale_inv": tensors["weight_scale"].bfloat16(), "activation_scale": torch.tensor(0.5)}
    return {"weight": tensors["weight"], **own}, tensors["weight"].float() * own["weight_scale_inv"].float()


def by_channel(shape: tuple[int, int], random: torch.Generator) -> Stored:
    return float8_layer(shape, random, per_channel=True)


def as_gptq(shape: tuple[int, int], random: torch.Generator) -> Stored:
    drawn = draw(shape, random)
    return gptq(drawn), drawn.weight


def as_second_gptq(shape: tuple[int, int], random: torch.Generator) -> Stored:
    drawn = draw(shape, random, symmetric=False)
    return gptq(drawn, is_second=True), drawn.weight


def as_awq(shape: tuple[int, int], random: torch.Generator) -> Stored:
    drawn = draw(shape, random, symmetric=False)
    return awq(drawn), drawn.weight


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


@pytest.mark.parametrize("has_queries", [False, True])
def test_quarks_caches_are_outputs_of_layers(has_queries: bool, tmp_path: Path) -> None:
    """amd/Llama-3.1-8B-Instruct-FP8-KV; scales of queries are there in some checkpoints, and not used."""
    cached = ("q_proj", "k_proj", "v_proj") if has_queries else ("k_proj", "v_proj")
    config = {
        "quant_method": "quark",
        "global_quant_config": QUARK_FP8,
        "layer_quant_config": {f"*{name}": QUARK_FP8 | {"output_tensors": PER_TENSOR} for name in cached},
        "layer_type_quant_config": {},
        "exclude": ["lm_head"],
        "export": {"kv_cache_group": ["*k_proj", "*v_proj"], "weight_format": "real_quantized"},
    }
    scales = {
        f"model.layers.{index}.self_attn.{name}.output_scale": torch.tensor(1.0 + 2 * index + number)
        for index in range(2)
        for number, name in enumerate(cached[::-1])
    }
    weights = write(tmp_path, config, float8_layer, more=scales)
    model = load(tmp_path)
    assert_has(model, weights)
    found = [module.scales.given.tolist() for module in model.modules() if isinstance(module, Attention)]
    assert found == [[2, 1], [4, 3]]


def test_a_quark_cache_alone(tmp_path: Path) -> None:
    """Weights are as they were, but for the scales of what keys and values are made of."""
    nothing = dict.fromkeys(QUARK_FP8)
    config = {
        "quant_method": "quark",
        "global_quant_config": nothing,
        "layer_quant_config": {f"*{name}_proj": nothing | {"output_tensors": PER_TENSOR} for name in "kv"},
        "export": {"kv_cache_group": ["*k_proj", "*v_proj"]},
    }
    weights = write(tmp_path, config, float8_layer, lambda layer: False)
    assert_has(load(tmp_path), weights)


def test_scales_of_heads(tmp_path: Path) -> None:
    """llm-compressor writes those of queries, too, where attention is quantised; these are not used."""
    by_head = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, "strategy": "attn_head"}
    config = compressed_tensors(kv_cache_scheme=by_head)
    scales = {
        f"model.layers.{index}.self_attn.{name}_scale": torch.tensor([[[1.0 + index]], [[3.0 + number]]])
        for index in range(2)
        for number, name in enumerate("qkv")
    }
    weights = write(tmp_path, config, by_channel, more=scales)
    model = load(tmp_path)
    assert_has(model, weights)
    found = [module.scales.given[..., 0].tolist() for module in model.modules() if isinstance(module, Attention)]
    assert found == [[[1, 4], [1, 5]], [[2, 4], [2, 5]]]


@pytest.mark.parametrize(
    ("changes", "is_stored"),
    [
        (
            {"extra_config": {r".*self_attn\..*": {"bits": 16}}},
            lambda layer: is_usual(layer) and ".self_attn." not in layer,
        ),
        ({"block_name_to_quantize": "model.layers.1"}, lambda layer: is_usual(layer) and ".layers.1." in layer),
        (
            {"extra_config": {"model.layers.0.mlp.up_proj": {"bits": 16}, "layers.1.+q_proj": {"bits": 16}}},
            lambda layer: is_usual(layer) and not layer.endswith(("0.mlp.up_proj", "1.self_attn.q_proj")),
        ),
    ],
    ids=["pattern", "block", "name"],
)
def test_auto_round_quantises_blocks_and_exceptions(changes: dict[str, Any], is_stored: Any, tmp_path: Path) -> None:
    """Blocks by the beginnings of names; exceptions by patterns that may begin anywhere."""
    config = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True, "autoround_version": "0.8"}
    config |= {"block_name_to_quantize": "model.layers.0,model.layers.1"} | changes
    weights = write(tmp_path, config, as_gptq, is_stored)
    assert_has(load(tmp_path), weights)


@pytest.mark.parametrize("keys", [("checkpoint_format", "format"), ("format",)], ids=str)
def test_gptq_formats_by_any_key(keys: tuple[str, ...], tmp_path: Path) -> None:
    """Zeros differ by one between the two formats, which no shape would tell."""
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, **dict.fromkeys(keys, "gptq_v2")}
    weights = write(tmp_path, config, as_second_gptq)
    assert_has(load(tmp_path), weights)


@pytest.mark.parametrize("blocks", [None, [["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]]], ids=str)
def test_gptq_rules_by_pattern(blocks: Any, tmp_path: Path) -> None:
    """GPTQModel: the head in 8 bits, some layers in other groups, with zeros or in act-order, others left out."""
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "lm_head": True}
    config["dynamic"] = {
        "lm_head": {"bits": 8, "group_size": 64},
        r"+:.*\.0\.mlp\.down_proj": {"group_size": -1, "sym": False, "desc_act": True},
        r"-:.*\.mlp\.experts\..*": {},
        r"-:.*\.mlp\.gate$": {},
    }
    config["modules_in_block_to_quantize"] = blocks

    def store(shape: tuple[int, int], random: torch.Generator) -> Stored:
        own: dict[str, Any] = {}
        if shape[0] == VOCAB:
            own = {"bits": 8, "group": 64}
        elif shape[1] == SIZE:
            own = {"group": -1, "symmetric": False}
        drawn = draw(shape, random, **own)
        return gptq(drawn), drawn.weight

    def is_stored(layer: str) -> bool:
        is_included = blocks is None or layer.endswith(("q_proj", "k_proj", "v_proj", "0.mlp.down_proj"))
        return layer == HEAD or (is_usual(layer) and ".experts." not in layer and is_included)

    weights = write(tmp_path, config, store, is_stored)
    assert_has(load(tmp_path), weights)


def test_awq_of_gptqmodel(tmp_path: Path) -> None:
    config = {"quant_method": "awq", "bits": 4, "group_size": 32, "checkpoint_format": "gemm", "zero_point": True}
    config["dynamic"] = {r"-:.*\.experts\..*": {}, r"+:.*o_proj": {"group_size": 32}}
    weights = write(tmp_path, config, as_awq, lambda layer: is_usual(layer) and ".experts." not in layer)
    assert_has(load(tmp_path), weights)


@pytest.mark.parametrize(
    "groups",
    [
        {},
        {"attention": {"targets": ["LlamaAttention"], "weights": None, "input_activations": INPUTS}},
        {"attention": {"targets": [r"re:.*self_attn$"], "weights": None, "input_activations": INPUTS}},
    ],
    ids=["nothing", "class", "pattern"],
)
def test_a_cache_of_compressed_tensors_alone(groups: dict[str, Any], tmp_path: Path) -> None:
    scheme = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, "strategy": "tensor"}
    config = compressed_tensors(kv_cache_scheme=scheme, config_groups=groups)
    scales = {
        f"model.layers.{index}.self_attn.{name}_scale": torch.tensor([3.0]) for index in range(2) for name in "kv"
    }
    weights = write(tmp_path, config, by_channel, lambda layer: False, more=scales)
    model = load(tmp_path)
    assert_has(model, weights)
    found = [module.scales.given.tolist() for module in model.modules() if isinstance(module, Attention)]
    assert found == [[3, 3], [3, 3]]
