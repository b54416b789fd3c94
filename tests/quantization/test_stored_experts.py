"""Experts of quantised checkpoints, which are expanded as they are loaded."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from float4_checkpoints import draw_float4, modelopt
from float8_checkpoints import compressed_tensors, float8_layer
from integer_checkpoints import awq, compressed, draw, gptq

from octavo.hub.families.sparse import SparseFields
from octavo.layers.build import Build
from octavo.layers.experts import Experts
from octavo.layers.weights import collect_slots
from octavo.models.registry import build_model
from octavo.quantization.config import SchemeOptions
from octavo.quantization.modelopt import parse_modelopt
from octavo.quantization.resolve import parsed_quantization
from octavo.records.experts import ExpertSpec, StackedParts

sys.path.append(str(Path(__file__).parents[1] / "execution"))

from tiny_engine import MAX_LEN, tiny_config

Stored = tuple[dict[str, torch.Tensor], torch.Tensor]
MODULE = "model.layers.0.mlp.experts"


def as_gptq(shape: tuple[int, int], random: torch.Generator) -> Stored:
    drawn = draw(shape, random, group=16, symmetric=False, shuffled=True)
    return gptq(drawn), drawn.weight


def as_awq(shape: tuple[int, int], random: torch.Generator) -> Stored:
    drawn = draw(shape, random, group=16, symmetric=False)
    return awq(drawn), drawn.weight


def as_int8(shape: tuple[int, int], random: torch.Generator) -> Stored:
    drawn = draw(shape, random, bits=8, group=-1)
    return compressed(drawn, symmetric=True, is_packed=False), drawn.weight


def as_float8(shape: tuple[int, int], random: torch.Generator) -> Stored:
    values = torch.randn(shape, generator=random).to(torch.float8_e4m3fn)
    scales = 0.1 + torch.rand(shape[0], 1, generator=random)
    return {"weight": values, "weight_scale": scales}, values.float() * scales


def as_nvfp4(shape: tuple[int, int], random: torch.Generator) -> Stored:
    drawn = draw_float4(shape, random, "nvfp4")
    return modelopt(drawn), drawn.weight


CASES: dict[str, tuple[dict[str, Any], Callable[[tuple[int, int], torch.Generator], Stored]]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": False, "desc_act": True}, as_gptq),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 16}, as_awq),
    "int8": (
        compressed_tensors(
            format="int-quantized", weights={"type": "int"}, input_activations={"type": "int", "num_bits": 8}
        ),
        as_int8,
    ),
    "float8": (compressed_tensors(), as_float8),
    "nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, as_nvfp4),
}


@pytest.mark.parametrize("case", CASES)
def test_experts_have_the_weights_that_their_tensors_stand_for(case: str) -> None:
    raw, store = CASES[case]
    quantization = parsed_quantization(raw["quant_method"], raw, SchemeOptions())
    model = build_model(tiny_config("Qwen3MoeForCausalLM", ("full_attention",), None), Build(quantization), MAX_LEN)
    random = torch.Generator().manual_seed(0)
    slots = collect_slots(model)
    experts = model.get_submodule(MODULE)
    gate_up, down = experts.get_parameter("gate_up_proj"), experts.get_parameter("down_proj")
    size = down.shape[2]
    for index in range(len(down)):
        for name, view in (
            ("gate_proj", gate_up[index, :size]),
            ("up_proj", gate_up[index, size:]),
            ("down_proj", down[index]),
        ):
            tensors, weight = store((view.shape[0], view.shape[1]), random)
            for leaf, tensor in tensors.items():
                for slot in slots.get(f"{MODULE}.{index}.{name}.{leaf}", ()):
                    assert slot.takes(tensor.dtype) and slot.accepts(tuple(tensor.shape))
                    slot.fill(tensor.contiguous())
            torch.testing.assert_close(view, weight)


@pytest.mark.parametrize("is_named_whole", [False, True], ids=["by expert", "by layer"])
def test_experts_of_different_algorithms(is_named_whole: bool) -> None:
    """ModelOpt's mixed precision, by layers of experts or expert by expert."""
    random = torch.Generator().manual_seed(0)
    config = tiny_config("Qwen3MoeForCausalLM", ("full_attention",) * 2, None)
    algorithms = {0: "NVFP4", 1: "FP8"}
    num_experts = config.own_as(SparseFields).experts.routing.num_experts
    modules = [f"model.layers.{layer}.mlp.experts" for layer in range(2)]
    if is_named_whole:
        layers = {module: algorithms[layer] for layer, module in enumerate(modules)}
    else:
        layers = {f"{module}.{index}": algorithms[index % 2] for module in modules for index in range(num_experts)}
    raw = {"quant_algo": "MIXED_PRECISION", "quantized_layers": {name: {"quant_algo": layers[name]} for name in layers}}
    model = build_model(config, Build(parsed_quantization("modelopt", raw, SchemeOptions())), MAX_LEN)
    slots = collect_slots(model)
    for layer, module in enumerate(modules):
        down = model.get_submodule(module).get_parameter("down_proj")
        for index, view in enumerate(down):
            is_float4 = algorithms[layer if is_named_whole else index % 2] == "NVFP4"
            tensors, weight = (as_nvfp4 if is_float4 else float8_layer)((view.shape[0], view.shape[1]), random)
            for leaf, tensor in tensors.items():
                for slot in slots.get(f"{module}.{index}.down_proj.{leaf}", ()):
                    assert slot.takes(tensor.dtype) and slot.accepts(tuple(tensor.shape))
                    slot.fill(tensor.contiguous())
            torch.testing.assert_close(view, weight)


def test_excluded_experts_are_values() -> None:
    raw = CASES["gptq"][0] | {"dynamic": {r"-:.*\.experts\.": {}}}
    build = Build(parsed_quantization("gptq", raw, SchemeOptions()))
    slots = collect_slots(build_model(tiny_config("Qwen3MoeForCausalLM", ("full_attention",), None), build, MAX_LEN))
    assert f"{MODULE}.0.gate_proj.weight" in slots and f"{MODULE}.0.gate_proj.qweight" not in slots
    assert "model.layers.0.self_attn.o_proj.qweight" in slots


@pytest.mark.parametrize("form", ["stacked", "stacked, one factor", "each"])
def test_nvfp4_of_step35(form: str) -> None:
    """Step 3.5's experts come in stacks of each layer's, or one by one; some have bounded gates."""
    random = torch.Generator().manual_seed(0)
    num_experts, hidden, size = 3, 64, 32
    config = parse_modelopt({"quant_algo": "NVFP4"}, SchemeOptions())
    storage = StackedParts("gate_proj", "up_proj", "down_proj")
    spec = ExpertSpec("swiglu_step", limit=7.0)
    experts = Experts(num_experts, hidden, size, spec, storage, Build().tensor_parallel, layouts=config.layout)
    tensors: dict[str, torch.Tensor] = {}
    weights: dict[str, list[torch.Tensor]] = {}
    for name, shape in (("gate_proj", (size, hidden)), ("up_proj", (size, hidden)), ("down_proj", (hidden, size))):
        drawn = [draw_float4(shape, random, "nvfp4") for _ in range(num_experts)]
        if form == "stacked, one factor":
            drawn = [each._replace(factor=drawn[0].factor) for each in drawn]
        weights[name] = [each.weight for each in drawn]
        own = [modelopt(each) for each in drawn]
        for leaf in ("weight", "weight_scale", "weight_scale_2"):
            if form == "each":
                tensors |= {f"moe.experts.{index}.{name}.{leaf}": each[leaf] for index, each in enumerate(own)}
            else:
                tensors[f"moe.{name}.{leaf}"] = torch.stack([each[leaf] for each in own])
        if form == "stacked, one factor":
            tensors[f"moe.{name}.weight_scale_2"] = drawn[0].factor
    experts.fit("moe.experts", tensors.__contains__)
    slots = dict(experts.weight_slots("moe.experts"))
    assert slots.keys() == tensors.keys()
    for name, slot in slots.items():
        assert slot.takes(tensors[name].dtype) and slot.accepts(tuple(tensors[name].shape))
        slot.fill(tensors[name])
    gates, ups = experts.gate_up_proj.chunk(2, 1)
    for name, found in (("gate_proj", gates), ("up_proj", ups), ("down_proj", experts.down_proj)):
        torch.testing.assert_close(found.data, torch.stack(weights[name]))
    experts.finish_weights()
    x = torch.randn(5, hidden, generator=random)
    y = experts(x, torch.zeros(5, 1, dtype=torch.int64), torch.ones(5, 1))
    gate, up, down = (weights[name][0] for name in ("gate_proj", "up_proj", "down_proj"))
    bounded = torch.nn.functional.silu(x @ gate.T).clamp(max=7) * (x @ up.T).clamp(-7, 7)
    torch.testing.assert_close(y, bounded @ down.T, rtol=1e-3, atol=1e-3)
