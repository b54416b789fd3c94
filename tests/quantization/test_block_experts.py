"""Experts that stay blocks of integers on CPUs: rounded as they are loaded, a GGUF file's, or a checkpoint's."""

from collections.abc import Callable
from typing import Any

import gguf
import pytest
import torch
from gguf import quants
from integer_checkpoints import awq, draw, gptq
from test_packed_expert_layers import (
    RANKS,
    SPEC,
    Stored,
    build_experts,
    check_interleaved,
    load,
    own_inputs,
    stacked_float4,
)
from test_stored_experts import CASES as STORED_CASES

from octavo.kernels import block_kernels
from octavo.kernels.block_experts import PlainBlockExperts, dequantize_expert
from octavo.layers.build import Build
from octavo.layers.experts import Experts
from octavo.parallel import TensorParallel
from octavo.platforms.native import native_kernels
from octavo.quantization.block_config import parse_gguf
from octavo.quantization.config import QuantizationConfig, SchemeOptions
from octavo.quantization.expert_matrices import BlockMatrix
from octavo.quantization.resolve import parsed_quantization, rounded_quantization
from octavo.records.experts import ExpertStorage, SeparateExperts, StackedExperts

pytestmark = pytest.mark.skipif(native_kernels() is None, reason="needs compiled kernels; run on an AMD EPYC")

from test_experts import DOWN, GATE, HIDDEN, NUM_EXPERTS, SIZE, STORED, STORED_NAMES, UP  # noqa: E402

CPU = SchemeOptions(has_blocks=True)
SEPARATE = SeparateExperts()
PARTS = {"gate_proj": GATE, "up_proj": UP, "down_proj": DOWN}


def values(experts: Experts) -> tuple[torch.Tensor, torch.Tensor]:
    """What the stored weights stand for, ``[E, out, in]``."""
    found = []
    for matrix in (experts._gate_up, experts._down):
        assert isinstance(matrix, BlockMatrix)
        found.append(torch.stack([dequantize_expert(matrix.tensors, index) for index in range(NUM_EXPERTS)]))
    return found[0], found[1]


def rounded(name: str, weight: torch.Tensor) -> torch.Tensor:
    """A weight ``[out, in]`` as it is made at load."""
    kernels = block_kernels(torch.device("cpu"))
    assert kernels is not None
    shape = weight.shape[0], weight.shape[1]
    packed = kernels.quantize(weight.contiguous(), name)
    return kernels.linear(packed, name, shape, None, torch.float32).rows(torch.arange(shape[0]))


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize(("storage", "tensors"), STORED, ids=STORED_NAMES)
@pytest.mark.parametrize("name", ["int8", "int4", "mxfp4"])
def test_weights_are_rounded_as_they_are_loaded(
    name: str, storage: ExpertStorage, tensors: dict[str, torch.Tensor], rank: int | None
) -> None:
    experts = build_experts(storage, rounded_quantization(name, CPU), rank)
    assert experts.stored_as == name
    own = own_inputs(rank)
    for scale in (1.0, 0.5):  # weights may be updated
        load(experts, {key: scale * tensor for key, tensor in tensors.items()})
        gate_up, down = values(experts)
        for index in range(NUM_EXPERTS):
            expected = torch.cat((GATE[index, own], UP[index, own])) * scale
            torch.testing.assert_close(gate_up[index], rounded(name, expected))
            torch.testing.assert_close(down[index], rounded(name, DOWN[index, :, own] * scale))


@pytest.mark.parametrize("is_plain", [False, True])
def test_what_they_compute(is_plain: bool) -> None:
    storage, tensors = STORED[1]
    experts = build_experts(storage, rounded_quantization("int8", CPU), None)
    experts.is_plain = is_plain
    load(experts, tensors)
    experts.finish_weights()
    assert isinstance(experts._op, PlainBlockExperts) == is_plain
    generator = torch.Generator().manual_seed(0)
    x, chosen = torch.randn(5, HIDDEN, generator=generator), torch.tensor([[0, 1]] * 3 + [[1, 2]] * 2)
    shares = torch.rand(5, 2, generator=generator)
    exact = Experts(NUM_EXPERTS, HIDDEN, SIZE, SPEC, storage, TensorParallel())
    load(exact, tensors)
    exact.finish_weights()
    y, expected = experts(x, chosen, shares), exact(x, chosen, shares)
    assert (y - expected).square().mean() < 2e-4 * expected.square().mean()
    with torch.device("meta"):
        planned = build_experts(storage, rounded_quantization("int8", CPU), None)
    bytes_of = {name: parameter.nbytes for name, parameter in experts.named_parameters()}
    assert bytes_of == {name: parameter.nbytes for name, parameter in planned.named_parameters()}
    assert sum(bytes_of.values()) == 3 * NUM_EXPERTS * SIZE * HIDDEN * 34 // 32, "as planned on the meta device"


def gguf_types(**types: str) -> QuantizationConfig:
    return parse_gguf({"types": {f"layer.experts.*.{name}": kind for name, kind in types.items()}}, CPU)


def gguf_tensors(**types: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Rows of bytes by their names, and the values of all experts by layer."""
    tensors, found = {}, {}
    for name, part in PARTS.items():
        kind = gguf.GGMLQuantizationType[types[name]]
        raw = [quants.quantize(part[index].contiguous().numpy(), kind) for index in range(NUM_EXPERTS)]
        tensors |= {f"layer.experts.{index}.{name}.weight": torch.from_numpy(rows) for index, rows in enumerate(raw)}
        found[name] = torch.stack([torch.from_numpy(quants.dequantize(rows, kind)) for rows in raw])
    return tensors, found


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("up", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"])
def test_a_files_blocks_stay(up: str, rank: int | None) -> None:
    types = {"gate_proj": up, "up_proj": up, "down_proj": "Q8_0"}
    experts = build_experts(SEPARATE, gguf_types(**types), rank)
    assert experts.stored_as == (up if up == "Q8_0" else f"{up} and Q8_0")
    tensors, expected = gguf_tensors(**types)
    for name, slot in experts.weight_slots("layer.experts"):
        assert slot.takes(torch.float32, types[name.split(".")[-2]]) and not slot.takes(torch.float32, "Q2_K")
        slot.fill(tensors[name])
    own = own_inputs(rank)
    gate_up, down = values(experts)
    torch.testing.assert_close(
        gate_up, torch.cat((expected["gate_proj"][:, own], expected["up_proj"][:, own]), 1), rtol=1e-6, atol=1e-9
    )
    torch.testing.assert_close(down, expected["down_proj"][..., own], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("rank", RANKS)
def test_stacked_blocks_of_4_bit_floats_stay(rank: int | None) -> None:
    quantization = parsed_quantization("mxfp4", {"quant_method": "mxfp4"}, CPU)
    assert quantization.description == "mxfp4 experts, activations in 8 bits"
    experts = build_experts(StackedExperts(is_interleaved=True, is_mxfp4=True), quantization, rank)
    assert experts.stored_as == "MXFP4"
    tensors, weights = stacked_float4()
    load(experts, tensors)
    check_interleaved(values(experts), weights, rank)


@pytest.mark.parametrize(
    "types",
    [
        {"gate_proj": "Q4_0", "up_proj": "Q8_0", "down_proj": "Q8_0"},
        {"gate_proj": "Q4_0", "up_proj": "Q4_0"},
        {"gate_proj": "Q4_0", "up_proj": "Q4_0", "down_proj": "Q3_K"},
        {"gate_proj": "Q4_K", "up_proj": "Q4_K", "down_proj": "Q4_K"},
    ],
    ids=["gate and up differ", "values", "a type without kernels", "sizes that do not fit"],
)
def test_other_files_are_dequantised(types: dict[str, str]) -> None:
    experts = build_experts(SEPARATE, gguf_types(**types), None)
    assert experts.stored_as == "" and experts.gate_up_proj.dtype is torch.float32


def as_gptq(shape: tuple[int, int], random: torch.Generator) -> Stored:
    drawn = draw(shape, random, group=32, symmetric=False)
    return gptq(drawn), drawn.weight


def as_gptq_of_all_inputs(shape: tuple[int, int], random: torch.Generator) -> Stored:
    drawn = draw(shape, random, group=-1)
    return gptq(drawn), drawn.weight


def as_awq(shape: tuple[int, int], random: torch.Generator) -> Stored:
    drawn = draw(shape, random, group=32, symmetric=False)
    return awq(drawn), drawn.weight


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False}
CHECKPOINTS: dict[str, tuple[dict[str, Any], Callable[[tuple[int, int], torch.Generator], Stored], str]] = {
    "gptq": (GPTQ, as_gptq, "Q4_1"),
    "gptq of all inputs": (GPTQ | {"group_size": -1, "sym": True}, as_gptq_of_all_inputs, "Q4_0"),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32}, as_awq, "Q4_1"),
    "int8": (*STORED_CASES["int8"], "Q8_0"),
    "nvfp4": (*STORED_CASES["nvfp4"], "nvfp4"),
}


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("case", CHECKPOINTS)
def test_a_checkpoints_integers_stay(case: str, rank: int | None) -> None:
    raw, store, name = CHECKPOINTS[case]
    experts = build_experts(SEPARATE, parsed_quantization(raw["quant_method"], raw, CPU), rank)
    assert experts.stored_as == name
    random, tensors, expected = torch.Generator().manual_seed(0), {}, {}
    for index in range(NUM_EXPERTS):
        for layer, part in PARTS.items():
            found, expected[index, layer] = store((part.shape[1], part.shape[2]), random)
            tensors |= {f"layer.experts.{index}.{layer}.{leaf}": tensor for leaf, tensor in found.items()}
    slots = [name for name, _ in experts.weight_slots("layer.experts")]
    load(experts, {name: tensor for name, tensor in tensors.items() if name in slots})
    own = own_inputs(rank)
    gate_up, down = values(experts)
    for index in range(NUM_EXPERTS):
        wanted = torch.cat((expected[index, "gate_proj"][own], expected[index, "up_proj"][own]))
        torch.testing.assert_close(gate_up[index], wanted, rtol=2e-3, atol=2e-3)  # scales are float16
        torch.testing.assert_close(down[index], expected[index, "down_proj"][:, own], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    "raw",
    [
        GPTQ | {"desc_act": True},
        GPTQ | {"group_size": 16},
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    ],
    ids=["act-order", "groups of 16", "nf4"],
)
def test_what_no_block_holds_is_expanded(raw: dict[str, Any]) -> None:
    build = Build(parsed_quantization(raw["quant_method"], raw, CPU), "layer.")
    assert build.expert_form(SEPARATE, NUM_EXPERTS) is None


def test_stacked_tensors_of_a_quantised_checkpoint_are_values() -> None:
    raw = CHECKPOINTS["awq"][0]
    build = Build(parsed_quantization("awq", raw, CPU), "layer.")
    assert build.expert_form(StackedExperts(), NUM_EXPERTS) is None


def test_more_devices_than_units_need_values() -> None:
    form = Build(rounded_quantization("int8", CPU), "layer.").expert_form(SEPARATE, NUM_EXPERTS)
    for size, name in ((3, "int8"), (4, "")):
        experts = Experts(NUM_EXPERTS, HIDDEN, SIZE, SPEC, SEPARATE, TensorParallel(0, size), form=form)
        assert experts.stored_as == name
