"""Float8 weights with a scale per block: of dense layers, of experts, and of the projection of compressed keys."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from dequantised_models import assert_computes, layers_of
from integer_checkpoints import write_layers
from tiny_llama import write_model

from octavo.layers.build import Build
from octavo.layers.experts import Experts
from octavo.layers.linear import Linear
from octavo.layers.weights import collect_slots, finish
from octavo.models.registry import build_model
from octavo.parallel import Section, TensorParallel
from octavo.quantization.config import SchemeOptions
from octavo.quantization.float8_config import parse_float8
from octavo.quantization.stored import ExpandedScheme, PackedScheme
from octavo.records.experts import ExpertSpec, StackedExperts

sys.path.append(str(Path(__file__).parents[1] / "execution"))

from tiny_engine import MAX_LEN, tiny_config

ROWS, COLUMNS = 24, 32
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [ROWS, COLUMNS]}
FP8_IN_GROUPS = {"num_bits": 8, "type": "float", "strategy": "group", "group_size": COLUMNS, "dynamic": True}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [ROWS, COLUMNS]},
            "input_activations": FP8_IN_GROUPS,
        }
    },
    "ignore": ["lm_head"],
}


def draw(shape: tuple[int, ...], random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Float8 values, scales per block of the last two dimensions, and the weight that they stand for."""
    *outer, rows, columns = shape
    values = torch.randn(shape, generator=random).mul_(3).to(torch.float8_e4m3fn)
    scales = 0.02 + 0.1 * torch.rand(*outer, math.ceil(rows / ROWS), math.ceil(columns / COLUMNS), generator=random)
    row_blocks, column_blocks = torch.arange(rows) // ROWS, torch.arange(columns) // COLUMNS
    weight = values.float() * scales[..., row_blocks[:, None], column_blocks]
    return values, scales, weight


@pytest.mark.parametrize(("config", "scale_name"), [(FP8, "weight_scale_inv"), (COMPRESSED, "weight_scale")], ids=str)
def test_dense_models(config: dict[str, Any], scale_name: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "plain", hidden_size=64, intermediate_size=96)
    random = torch.Generator().manual_seed(0)

    def store(layer: str, shape: tuple[int, int]) -> tuple[dict[str, torch.Tensor], torch.Tensor] | None:
        if layer == "lm_head":
            return None
        values, scales, weight = draw(shape, random)
        return {"weight": values, scale_name: scales}, weight

    weights = write_layers(source, tmp_path / "fp8", config, store)
    layers = layers_of(assert_computes(tmp_path / "fp8", source, weights))
    assert isinstance(layers["model.layers.0.mlp.gate_up_proj"].scheme, ExpandedScheme)


def test_devices_with_float8_keep_the_values() -> None:
    build = Build(parse_float8(FP8, SchemeOptions(has_float8=True)))
    layer = build.linear("proj", 64, {"a": 40, "b": 32})
    assert isinstance(layer, Linear) and isinstance(layer.scheme, PackedScheme)
    assert layer.weight.dtype is torch.float8_e4m3fn
    random, weights = torch.Generator().manual_seed(0), []
    slots = dict(layer.weight_slots("proj"))
    for name, size in (("a", 40), ("b", 32)):
        values, scales, weight = draw((size, 64), random)
        slots[f"{name}.weight"].fill(values)
        slots[f"{name}.weight_scale_inv"].fill(scales)
        weights.append(weight)
    layer.finish_weights()
    x = torch.randn(3, 64, generator=random)
    torch.testing.assert_close(layer(x), x @ torch.cat(weights).T)


@pytest.mark.parametrize("num_inputs", [20, 64, 84])
def test_sizes_need_not_be_multiples_of_a_block(num_inputs: int) -> None:
    layer = Build(parse_float8(FP8, SchemeOptions(has_float8=True))).linear("proj", num_inputs, 77)
    random = torch.Generator().manual_seed(0)
    values, scales, weight = draw((77, num_inputs), random)
    slots = dict(layer.weight_slots("proj"))
    slots["proj.weight"].fill(values)
    slots["proj.weight_scale_inv"].fill(scales)
    finish(layer)
    x = torch.randn(84, num_inputs, generator=random)
    torch.testing.assert_close(layer(x), x @ weight.T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("has_float8", [True, False])
def test_one_tensor_of_several_parts_is_divided_part_by_part(rank: int, has_float8: bool) -> None:
    """Blocks of scales begin elsewhere than parts, and than what a device has of them."""
    options, tp = SchemeOptions(has_float8=has_float8), TensorParallel(rank, 2)
    sections = [Section(size, 8) for size in (48, 16, 16)]
    layer = Build(parse_float8(FP8, options), tensor_parallel=tp).linear("qkv_proj", 64, sections, split="column")
    random = torch.Generator().manual_seed(0)
    values, scales, weight = draw((80, 64), random)
    for name, slot in layer.weight_slots("qkv_proj"):
        tensor = {"qkv_proj.weight": values, "qkv_proj.weight_scale_inv": scales}[name]
        assert slot.accepts(tuple(tensor.shape))
        slot.fill(tensor)
    finish(layer)
    own = torch.cat([part.chunk(2)[rank] for part in weight.split((48, 16, 16))])
    x = torch.randn(3, 64, generator=random)
    torch.testing.assert_close(layer(x), x @ own.T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("architecture", "module", "parameters"),
    [
        ("Qwen3MoeForCausalLM", "model.layers.0.mlp.experts", ("gate_up_proj", "down_proj")),
        ("DeepseekV2ForCausalLM", "model.layers.1.self_attn.kv_b_proj", ("weight",)),
        ("DeepseekV2ForCausalLM", "model.layers.1.mlp.experts", ("gate_up_proj", "down_proj")),
    ],
)
def test_what_is_no_linear_layer_is_expanded(architecture: str, module: str, parameters: tuple[str, ...]) -> None:
    config = tiny_config(architecture, ("full_attention",) * 2, None)
    random = torch.Generator().manual_seed(0)
    plain = build_model(config, Build(), MAX_LEN)
    stored = build_model(config, Build(parse_float8(FP8 | {"ignored_layers": ["o_proj"]}, SchemeOptions())), MAX_LEN)
    slots = collect_slots(stored)
    for name, places in collect_slots(plain).items():
        shape = places[0].source_shapes[0]
        tensors = {name: torch.randn(shape, generator=random)}
        weight = tensors[name]
        if f"{name}_scale_inv" in slots:
            values, scales, weight = draw(shape, random)
            tensors = {name: values, f"{name}_scale_inv": scales}
        for key, tensor in tensors.items():
            for slot in slots[key]:
                assert slot.takes(tensor.dtype) and slot.accepts(tuple(tensor.shape))
                slot.fill(tensor)
        for slot in places:
            slot.fill(weight)
    for parameter in parameters:
        found, expected = (model.get_submodule(module).get_parameter(parameter) for model in (stored, plain))
        assert any(name.startswith(module) and name.endswith("_scale_inv") for name in slots)
        torch.testing.assert_close(found, expected)


def test_stacked_experts() -> None:
    layouts = parse_float8(FP8, SchemeOptions()).layout
    experts = Experts(3, 64, 48, ExpertSpec("silu"), StackedExperts(), Build().tensor_parallel, layouts=layouts)
    random = torch.Generator().manual_seed(0)
    slots = dict(experts.weight_slots("mlp.experts"))
    for name, shape, parameter in (
        ("mlp.experts.gate_up_proj", (3, 96, 64), experts.gate_up_proj),
        ("mlp.experts.down_proj", (3, 64, 48), experts.down_proj),
    ):
        values, scales, weight = draw(shape, random)
        slots[f"{name}_scale_inv"].fill(scales)
        slots[name].fill(values)
        torch.testing.assert_close(parameter.data, weight)
    finish(experts)
