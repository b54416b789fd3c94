"""Experts that stay quantised: rounded while they are loaded, or as checkpoints have them; whole, and divided."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from float4_checkpoints import MAGNITUDES, draw_float4, modelopt
from float8_checkpoints import compressed_tensors, float8_layer
from integer_checkpoints import awq, compressed, draw, gptq

from octavo.hub.stored_layers import StoredLayers
from octavo.kernels.experts import ExpertWeights, PlainExperts
from octavo.kernels.grouped import dequantize, round_weight
from octavo.kernels.packed_experts import dequantize_expert
from octavo.kernels.scaled import quantize_rows
from octavo.layers.build import Build
from octavo.layers.experts import Experts
from octavo.parallel import TensorParallel
from octavo.quantization.config import QuantizationConfig, SchemeOptions
from octavo.quantization.expert_matrices import PackedMatrix
from octavo.quantization.found_layers import FoundLayers
from octavo.quantization.modelopt import parse_modelopt
from octavo.quantization.resolve import parsed_quantization, rounded_quantization
from octavo.quantization.slot import WeightSlot
from octavo.records.experts import ExpertSpec, ExpertStorage, SeparateExperts, StackedExperts

sys.path.append(str(Path(__file__).parents[1] / "layers"))

from test_experts import DOWN, GATE, HIDDEN, NUM_EXPERTS, SIZE, STORED, STORED_NAMES, UP

SPEC = ExpertSpec("silu")
GPU = SchemeOptions(has_float8=True, has_groups=True)
RANKS = (None, 0, 1)
Stored = tuple[dict[str, torch.Tensor], torch.Tensor]


def build_experts(storage: ExpertStorage, quantization: QuantizationConfig, rank: int | None) -> Experts:
    tensor_parallel = TensorParallel() if rank is None else TensorParallel(rank, 2)
    build = Build(quantization, "layer.", tensor_parallel)
    form = build.expert_form(storage, NUM_EXPERTS)
    return Experts(NUM_EXPERTS, HIDDEN, SIZE, SPEC, storage, tensor_parallel, layouts=build.layout, form=form)


def load(experts: Experts, tensors: dict[str, torch.Tensor]) -> None:
    slots: dict[str, list[WeightSlot]] = {}
    for name, slot in experts.weight_slots("layer.experts"):
        slots.setdefault(name, []).append(slot)
    assert slots.keys() == tensors.keys()
    for name, places in slots.items():
        for slot in places:
            assert slot.accepts(tuple(tensors[name].shape)) and slot.takes(tensors[name].dtype)
            slot.fill(tensors[name].contiguous())


def values(experts: Experts) -> tuple[torch.Tensor, torch.Tensor]:
    """What the stored weights stand for, ``[E, out, in]``."""
    found = []
    for matrix in (experts._gate_up, experts._down):
        assert isinstance(matrix, PackedMatrix)
        found.append(
            torch.stack([dequantize_expert(matrix.tensors, expert, torch.float32) for expert in range(NUM_EXPERTS)])
        )
    return found[0], found[1]


def own_inputs(rank: int | None) -> slice:
    """Of three units of 32, the first rank has one."""
    return {None: slice(0, SIZE), 0: slice(0, 32), 1: slice(32, SIZE)}[rank]


def rounded(name: str, weight: torch.Tensor, group: int) -> torch.Tensor:
    """A weight ``[out, in]`` as the formats define it."""
    if name == "fp8":
        found, scales = quantize_rows(weight)
        return found.float() * scales
    return dequantize(round_weight(weight, name, group), torch.float32)  # type: ignore[arg-type]


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize(("storage", "tensors"), STORED, ids=STORED_NAMES)
@pytest.mark.parametrize("name", ["fp8", "mxfp4"])
def test_weights_are_rounded_as_they_are_loaded(
    name: str, storage: ExpertStorage, tensors: dict[str, torch.Tensor], rank: int | None
) -> None:
    experts = build_experts(storage, rounded_quantization(name, GPU), rank)
    own = own_inputs(rank)
    for scale in (1.0, 0.5):  # weights may be updated
        load(experts, {key: scale * tensor for key, tensor in tensors.items()})
        gate_up, down = values(experts)
        for index in range(NUM_EXPERTS):
            expected = torch.cat((GATE[index, own], UP[index, own])) * scale
            torch.testing.assert_close(gate_up[index], rounded(name, expected, 32))
            torch.testing.assert_close(down[index], rounded(name, DOWN[index, :, own] * scale, 32))


@pytest.mark.parametrize("name", ["fp8", "int8", "int4", "mxfp4"])
def test_what_they_compute(name: str) -> None:
    size = 128  # a group of integers
    build = Build(rounded_quantization(name, GPU), "layer.")
    storage = StackedExperts()
    experts = Experts(2, size, size, SPEC, storage, TensorParallel(), bias=True, form=build.expert_form(storage, 2))
    generator = torch.Generator().manual_seed(0)
    for _, slot in experts.weight_slots("layer.experts"):
        slot.fill(torch.randn(slot.source_shapes[0], generator=generator) / 8)
    experts.finish_weights()
    gate_up, down = (
        torch.stack([dequantize_expert(matrix.tensors, index, torch.float32) for index in range(2)])
        for matrix in (experts._gate_up, experts._down)
        if isinstance(matrix, PackedMatrix)
    )
    x = torch.randn(5, size, generator=generator)
    chosen, shares = torch.tensor([[0, 1]] * 3 + [[1, 0]] * 2), torch.rand(5, 2, generator=generator)
    expected = PlainExperts(ExpertWeights(gate_up, down, experts.gate_up_bias, experts.down_bias), SPEC)
    torch.testing.assert_close(experts(x, chosen, shares), expected(x, chosen, shares))
    assert experts.stored_as == {"fp8": "float8"}.get(name, name)


def as_gptq(shape: tuple[int, int], random: torch.Generator) -> Stored:
    drawn = draw(shape, random, group=32, symmetric=False)
    return gptq(drawn), drawn.weight


def as_awq(shape: tuple[int, int], random: torch.Generator) -> Stored:
    drawn = draw(shape, random, group=32, symmetric=False)
    return awq(drawn), drawn.weight


def as_int4(shape: tuple[int, int], random: torch.Generator) -> Stored:
    drawn = draw(shape, random, group=32)
    return compressed(drawn, symmetric=True, is_packed=True), drawn.weight


def as_int8(shape: tuple[int, int], random: torch.Generator) -> Stored:
    drawn = draw(shape, random, bits=8, group=-1)
    return compressed(drawn, symmetric=True, is_packed=False), drawn.weight


def as_channels(shape: tuple[int, int], random: torch.Generator) -> Stored:
    tensors, weight = float8_layer(shape, random, per_channel=True)
    return tensors | {"weight_scale": tensors["weight_scale"][:, None]}, weight


def as_tensors(shape: tuple[int, int], random: torch.Generator) -> Stored:
    tensors, weight = float8_layer(shape, random)
    return {key: tensor for key, tensor in tensors.items() if key != "input_scale"}, weight


def as_blocks(shape: tuple[int, int], random: torch.Generator) -> Stored:
    rows, columns = shape
    found = torch.randn(shape, generator=random).to(torch.float8_e4m3fn)
    scales = 0.02 + 0.1 * torch.rand(-(-rows // 24), columns // 32, generator=random)
    spread = scales.repeat_interleave(24, 0)[:rows].repeat_interleave(32, 1)
    return {"weight": found, "weight_scale_inv": scales}, found.float() * spread


def as_mxfp4(shape: tuple[int, int], random: torch.Generator) -> Stored:
    drawn = draw_float4(shape, random, "mxfp4")
    return {"weight": drawn.packed, "weight_scale": drawn.scales}, drawn.weight


def as_nvfp4(shape: tuple[int, int], random: torch.Generator) -> Stored:
    drawn = draw_float4(shape, random, "nvfp4")
    return {leaf: tensor for leaf, tensor in modelopt(drawn).items() if leaf != "input_scale"}, drawn.weight


BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [24, 32]}
MXFP4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
CASES: dict[str, tuple[dict[str, Any], Callable[[tuple[int, int], torch.Generator], Stored], str, bool]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}, as_gptq, "int4", False),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32}, as_awq, "int4", False),
    "w4a16": (
        compressed_tensors(
            format="pack-quantized",
            weights={"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32},
            input_activations=None,
        ),
        as_int4,
        "int4",
        False,
    ),
    "int8": (
        compressed_tensors(
            format="int-quantized", weights={"type": "int"}, input_activations={"type": "int", "num_bits": 8}
        ),
        as_int8,
        "int8",
        False,
    ),
    "float8 channels": (compressed_tensors(), as_channels, "float8", True),
    "float8 tensors": ({"quant_method": "fp8"}, as_tensors, "float8", True),
    "float8 blocks": (BLOCKS, as_blocks, "float8", True),
    "mxfp4": ({"quant_method": "quark", "global_quant_config": {"weight": MXFP4}}, as_mxfp4, "mxfp4", False),
    "nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, as_nvfp4, "nvfp4", False),
}


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("case", CASES)
def test_formats_of_checkpoints_are_kept(case: str, rank: int | None) -> None:
    raw, store, stored_as, rounds = CASES[case]
    quantization = parsed_quantization(raw["quant_method"], raw, GPU)
    experts = build_experts(SeparateExperts(), quantization, rank)
    assert experts.stored_as == stored_as
    random = torch.Generator().manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    weights: dict[str, list[torch.Tensor]] = {"gate_proj": [], "up_proj": [], "down_proj": []}
    for index in range(NUM_EXPERTS):
        for name, found in weights.items():
            parts, weight = store((HIDDEN, SIZE) if name == "down_proj" else (SIZE, HIDDEN), random)
            needed = {leaf for leaf in parts if leaf not in ("g_idx", "weight_shape")}
            tensors |= {f"layer.experts.{index}.{name}.{leaf}": parts[leaf] for leaf in parts}
            assert needed
            found.append(weight)
    names = [name for name, _ in experts.weight_slots("layer.experts")]
    load(experts, {name: tensors[name] for name in names})
    gate_up, down = values(experts)
    own = own_inputs(rank)
    for index, (gate, up, inner) in enumerate(zip(*weights.values(), strict=True)):
        torch.testing.assert_close(gate_up[index], torch.cat((gate[own], up[own])), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(down[index], inner[:, own], rtol=1e-3, atol=1e-3)
    assert (experts._form is not None and experts._form.kind == "float8" and experts._form.rounds_inputs) == rounds


def stacked_float4() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """gpt-oss's tensors of a layer's experts, and their values, ``[E, out, in]``."""
    random = torch.Generator().manual_seed(1)
    shapes = {"gate_up_proj": (2 * SIZE, HIDDEN), "down_proj": (HIDDEN, SIZE)}
    tensors, weights = {}, {}
    for name, shape in shapes.items():
        drawn = [draw_float4(shape, random, "mxfp4") for _ in range(NUM_EXPERTS)]
        blocks = torch.stack([own.packed for own in drawn]).unflatten(2, (-1, 16))
        tensors |= {
            f"layer.experts.{name}_blocks": blocks,
            f"layer.experts.{name}_scales": torch.stack([own.scales for own in drawn]),
        }
        weights[name] = torch.stack([own.weight for own in drawn])
    return tensors, weights


def check_interleaved(
    found: tuple[torch.Tensor, torch.Tensor], weights: dict[str, torch.Tensor], rank: int | None
) -> None:
    """Hold a device's part against weights whose gates and up projections alternate."""
    gate_up, down = found
    own = own_inputs(rank)
    gate, up = weights["gate_up_proj"][:, ::2], weights["gate_up_proj"][:, 1::2]
    assert torch.equal(gate_up, torch.cat((gate[:, own], up[:, own]), 1))
    assert torch.equal(down, weights["down_proj"][..., own])


@pytest.mark.parametrize("rank", RANKS)
def test_stacked_blocks_of_4_bit_floats(rank: int | None) -> None:
    tensors, weights = stacked_float4()
    quantization = parsed_quantization("mxfp4", {"quant_method": "mxfp4"}, GPU)
    experts = build_experts(StackedExperts(is_interleaved=True, is_mxfp4=True), quantization, rank)
    load(experts, tensors)
    check_interleaved(values(experts), weights, rank)


@pytest.mark.parametrize("rank", RANKS)
def test_stacked_float8_blocks(rank: int | None) -> None:
    random = torch.Generator().manual_seed(1)
    tensors, weights = {}, {}
    for name, shape in {"gate_up_proj": (2 * SIZE, HIDDEN), "down_proj": (HIDDEN, SIZE)}.items():
        parts = [as_blocks(shape, random) for _ in range(NUM_EXPERTS)]
        tensors |= {
            f"layer.experts.{name}": torch.stack([own["weight"].view(torch.uint8) for own, _ in parts]).view(
                torch.float8_e4m3fn
            ),
            f"layer.experts.{name}_scale_inv": torch.stack([own["weight_scale_inv"] for own, _ in parts]),
        }
        weights[name] = torch.stack([weight for _, weight in parts])
    experts = build_experts(StackedExperts(), parsed_quantization("fp8", BLOCKS, GPU), rank)
    load(experts, tensors)
    gate_up, down = values(experts)
    own = own_inputs(rank)
    gate, up = weights["gate_up_proj"].chunk(2, 1)
    torch.testing.assert_close(gate_up, torch.cat((gate[:, own], up[:, own]), 1))
    torch.testing.assert_close(down, weights["down_proj"][..., own])


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_stacked_nvfp4(is_transposed: bool, rank: int | None) -> None:
    random = torch.Generator().manual_seed(1)
    tensors, weights = {}, {}
    for name, shape in {"gate_up_proj": (2 * SIZE, HIDDEN), "down_proj": (HIDDEN, SIZE)}.items():
        parts = [as_nvfp4(shape, random) for _ in range(NUM_EXPERTS)]
        for leaf in parts[0][0]:
            stacked = torch.stack([own[leaf] for own, _ in parts])
            end = "" if leaf == "weight" else f"_{leaf}"
            turned = stacked.mT if is_transposed and stacked.ndim == 3 else stacked
            tensors[f"layer.experts.{name}{end}"] = turned
        weights[name] = torch.stack([weight for _, weight in parts])
    storage = StackedExperts(is_transposed=is_transposed)
    experts = build_experts(storage, parse_modelopt({"quant_algo": "NVFP4"}, GPU), rank)
    load(experts, tensors)
    gate_up, down = values(experts)
    own = own_inputs(rank)
    gate, up = weights["gate_up_proj"].chunk(2, 1)
    torch.testing.assert_close(gate_up, torch.cat((gate[:, own], up[:, own]), 1))
    torch.testing.assert_close(down, weights["down_proj"][..., own])
    assert experts.stored_as == "nvfp4"


VALUES = {
    "stacked": {"layer.experts.gate_up_proj", "layer.experts.down_proj"},
    "separate": {"layer.experts", "layer.experts.0.gate_proj", "layer.experts.0.up_proj", "layer.experts.0.down_proj"},
}


@pytest.mark.parametrize("name", ["gptq", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("stored", VALUES)
def test_values_in_the_files_stay_values(stored: str, name: str) -> None:
    """Whatever the configuration says."""
    raw = CASES[name][0]
    declared = parsed_quantization(raw["quant_method"], raw, GPU)
    assert build_experts(StackedExperts(), FoundLayers(GPU.plain, declared, StoredLayers()), None).stored_as
    found = FoundLayers(GPU.plain, declared, StoredLayers(frozenset(VALUES[stored])))
    experts = build_experts(StackedExperts(), found, None)
    assert experts.stored_as == ""
    if stored == "stacked":
        random = torch.Generator().manual_seed(1)
        shapes = {"gate_up_proj": (NUM_EXPERTS, 2 * SIZE, HIDDEN), "down_proj": (NUM_EXPERTS, HIDDEN, SIZE)}
        tensors = {f"layer.experts.{name}": torch.randn(shape, generator=random) for name, shape in shapes.items()}
        experts.fit("layer.experts", tensors.__contains__)
        load(experts, tensors)
        torch.testing.assert_close([experts.gate_up_proj.data, experts.down_proj.data], [*tensors.values()])


def test_files_of_a_model_without_its_head() -> None:
    """Their names lack the first part of those that the whole model has."""
    declared = parsed_quantization("fp8", {"quant_method": "fp8"}, GPU)
    stored = StoredLayers(
        frozenset({"layers.0.self_attn.q_proj", "layers.0.mlp.experts", "layers.1.experts.down_proj"})
    )
    found = FoundLayers(GPU.plain, declared, stored)
    plain = {"0.self_attn.q_proj", "0.mlp.experts.gate_up_proj", "1.experts.down_proj", "1.experts.down_proj.weight"}
    quantised = {"1.self_attn.q_proj", "1.mlp.experts.gate_up_proj", "0.experts.down_proj", "0.mlp.q_proj"}
    for name in plain | quantised:
        assert (found.scheme(f"model.layers.{name}") == GPU.plain) == (name in plain)
        assert (found.layout(f"model.layers.{name}") is None) == (name in plain)


def test_values_are_rounded_to_nvfp4() -> None:
    """To the nearest of the format's values, times the scale that makes a group's largest magnitude 6."""
    experts = build_experts(StackedExperts(), parse_modelopt({"quant_algo": "NVFP4"}, GPU), None)
    random = torch.Generator().manual_seed(1)
    shapes = {"gate_up_proj": (NUM_EXPERTS, 2 * SIZE, HIDDEN), "down_proj": (NUM_EXPERTS, HIDDEN, SIZE)}
    tensors = {f"layer.experts.{name}": torch.randn(shape, generator=random) for name, shape in shapes.items()}
    tensors["layer.experts.down_proj"][0, 0] = 0
    experts.fit("layer.experts", tensors.__contains__)
    load(experts, tensors)
    table = torch.tensor([sign * size for sign in (1, -1) for size in MAGNITUDES])
    for given, found in zip(tensors.values(), values(experts), strict=True):
        groups = given.unflatten(2, (-1, 16))
        wanted = groups.abs().amax(-1) / 6
        factors = wanted.amax(-1, keepdim=True) / 448
        scales = ((wanted / factors.clamp(min=1e-30)).to(torch.float8_e4m3fn).float() * factors)[..., None]
        nearest = (groups[..., None] - table * scales[..., None]).abs().argmin(-1)
        torch.testing.assert_close(found, (table[nearest] * scales).flatten(2))


def test_experts_that_are_not_stored_alike_are_expanded() -> None:
    raw = CASES["gptq"][0] | {"dynamic": {r"-:.*experts\.1\..*": {}}}
    experts = build_experts(SeparateExperts(), parsed_quantization("gptq", raw, GPU), None)
    assert experts.stored_as == ""
    names = {name for name, _ in experts.weight_slots("layer.experts")}
    assert "layer.experts.1.gate_proj.weight" in names and "layer.experts.0.gate_proj.qweight" in names


@pytest.mark.parametrize("rank", RANKS)
def test_the_second_weight_may_have_another_format(rank: int | None) -> None:
    dynamic = {r"+:.*\.down_proj": {"bits": 8, "group_size": 16}}
    raw = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "dynamic": dynamic}
    experts = build_experts(SeparateExperts(), parsed_quantization("gptq", raw, GPU), rank)
    assert experts.stored_as == "int4 and int8"
    random = torch.Generator().manual_seed(0)
    tensors, weights = {}, []
    for index in range(NUM_EXPERTS):
        drawn = {name: draw((SIZE, HIDDEN), random, group=32) for name in ("gate_proj", "up_proj")}
        drawn["down_proj"] = draw((HIDDEN, SIZE), random, bits=8, group=16)
        weights.append([own.weight for own in drawn.values()])
        for name, own in drawn.items():
            tensors |= {f"layer.experts.{index}.{name}.{leaf}": tensor for leaf, tensor in gptq(own).items()}
    names = [name for name, _ in experts.weight_slots("layer.experts")]
    load(experts, {name: tensors[name] for name in names})
    gate_up, down = values(experts)
    own = own_inputs(rank)
    for index, (gate, up, inner) in enumerate(weights):
        torch.testing.assert_close(gate_up[index], torch.cat((gate[own], up[own])), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(down[index], inner[:, own], rtol=1e-3, atol=1e-3)
