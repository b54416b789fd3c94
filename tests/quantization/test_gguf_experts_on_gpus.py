"""Experts of a GGUF file that stay packed on devices whose GEMMs unpack groups (``--quantization gguf``)."""

import pytest
import torch
from test_gguf_on_gpus import GPU, blocks, values

from octavo.kernels.experts import ExpertWeights, PlainExperts
from octavo.kernels.packed_experts import dequantize_expert
from octavo.layers.build import Build
from octavo.layers.experts import Experts
from octavo.parallel import TensorParallel
from octavo.quantization.block_config import parse_gguf
from octavo.quantization.expert_matrices import PackedMatrix
from octavo.quantization.gguf_layout import GROUPED_TYPES, TABLE_TYPES
from octavo.records.experts import ExpertSpec, SeparateExperts

NUM_EXPERTS, HIDDEN, SIZE = 2, 256, 512
SPEC = ExpertSpec("silu")
NAMES = "gate_proj", "up_proj", "down_proj"
RANKS = (None, 0, 1)
BITS = {"Q4_0": 5, "Q8_0": 9, "Q4_K": 5.5, "Q5_K": 9.5, "Q6_K": 10, "MXFP4": 4.25}
"""Of a weight and its part of scales and offsets."""

Tensors = dict[str, torch.Tensor]


def build_experts(types: tuple[str, str, str], rank: int | None = None, *, num_ranks: int = 2) -> Experts:
    named = {f"layer.experts.*.{name}": kind for name, kind in zip(NAMES, types, strict=True)}
    tensor_parallel = TensorParallel() if rank is None else TensorParallel(rank, num_ranks)
    build = Build(parse_gguf({"types": named}, GPU), "layer.", tensor_parallel)
    storage = SeparateExperts()
    form = build.expert_form(storage, NUM_EXPERTS)
    return Experts(NUM_EXPERTS, HIDDEN, SIZE, SPEC, storage, tensor_parallel, layouts=build.layout, form=form)


def draw(types: tuple[str, str, str], seed: int = 0) -> tuple[Tensors, Tensors]:
    """What each expert's slots take, rows of bytes or values, and all experts' values, by the names of their layers."""
    given: Tensors = {}
    found: Tensors = {}
    for number, (name, kind) in enumerate(zip(NAMES, types, strict=True)):
        num_outputs, num_inputs = (HIDDEN, SIZE) if name == "down_proj" else (SIZE, HIDDEN)
        seeds = range(seed + 10 * number, seed + 10 * number + NUM_EXPERTS)
        if kind in GROUPED_TYPES:
            raw = [blocks(kind, num_outputs, own, num_inputs) for own in seeds]
            given[name] = torch.stack([torch.from_numpy(rows) for rows in raw])
            found[name] = torch.stack([values(rows, kind) for rows in raw])
        else:
            generator = torch.Generator().manual_seed(seed)
            given[name] = found[name] = torch.randn(NUM_EXPERTS, num_outputs, num_inputs, generator=generator)
    return given, found


def fill(experts: Experts, raw: Tensors) -> None:
    for name, slot in experts.weight_slots("layer.experts"):
        _, _, index, layer, _ = name.split(".")
        slot.fill(raw[layer][int(index)])


def assert_holds(experts: Experts, expected: Tensors, own: slice) -> None:
    wanted = torch.cat((expected["gate_proj"][:, own], expected["up_proj"][:, own]), 1), expected["down_proj"][..., own]
    for matrix, weights in zip((experts._gate_up, experts._down), wanted, strict=True):
        assert isinstance(matrix, PackedMatrix)
        for index, weight in enumerate(weights):
            found = dequantize_expert(matrix.tensors, index, torch.float32)
            torch.testing.assert_close(found, weight, rtol=1e-3, atol=1e-3 * float(weight.abs().max()))


@pytest.mark.parametrize("kind", [kind for kind in GROUPED_TYPES if kind not in TABLE_TYPES])
@pytest.mark.parametrize("rank", RANKS)
def test_the_files_values_are_kept(kind: str, rank: int | None) -> None:
    types = kind, kind, kind
    experts = build_experts(types, rank)
    own = slice(0, SIZE) if rank is None else slice(SIZE // 2 * rank, SIZE // 2 * (rank + 1))
    for seed in (0, 5):  # weights may be updated
        raw, expected = draw(types, seed)
        fill(experts, raw)
        assert_holds(experts, expected, own)


@pytest.mark.parametrize("types", [("Q4_K", "Q4_K", "Q6_K"), ("Q5_K", "Q5_1", "Q8_0"), ("MXFP4", "MXFP4", "Q4_0")])
def test_the_second_weight_may_have_another_type(types: tuple[str, str, str]) -> None:
    experts = build_experts(types)
    raw, expected = draw(types)
    fill(experts, raw)
    assert_holds(experts, expected, slice(0, SIZE))
    count = NUM_EXPERTS * HIDDEN * SIZE
    num_bytes = sum(parameter.nbytes for parameter in experts.parameters())
    assert num_bytes == count * (2 * BITS[types[0]] + BITS[types[2]]) / 8
    with torch.device("meta"):
        planned = build_experts(types)
    assert num_bytes == sum(parameter.nbytes for parameter in planned.parameters())


def test_what_they_compute() -> None:
    types = "Q4_K", "Q4_K", "Q6_K"
    experts = build_experts(types)
    raw, weights = draw(types)
    fill(experts, raw)
    experts.finish_weights()
    generator = torch.Generator().manual_seed(0)
    x, chosen = torch.randn(5, HIDDEN, generator=generator), torch.tensor([[0, 1]] * 3 + [[1, 0]] * 2)
    shares = torch.rand(5, 2, generator=generator)
    gate_up = torch.cat((weights["gate_proj"], weights["up_proj"]), 1)
    expected = PlainExperts(ExpertWeights(gate_up, weights["down_proj"]), SPEC)(x, chosen, shares)
    torch.testing.assert_close(experts(x, chosen, shares), expected, rtol=2e-3, atol=2e-3 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("types", "num_ranks"),
    [
        (("Q4_0", "Q8_0", "Q8_0"), 1),
        (("Q4_0", "Q4_0", "Q3_K"), 1),
        (("IQ4_XS", "IQ4_XS", "IQ4_NL"), 2),
        (("Q4_0", "Q4_0", "Q4_0"), 32),
    ],
    ids=["gate and up differ", "a type without kernels", "tables", "more devices than units"],
)
def test_other_experts_are_dequantised(types: tuple[str, str, str], num_ranks: int) -> None:
    experts = build_experts(types, 0, num_ranks=num_ranks)
    assert experts.stored_as == "" and experts.gate_up_proj.dtype is torch.float32
    raw, weights = draw(types)
    fill(experts, raw)
    own = slice(0, SIZE // num_ranks)
    gate_up = torch.cat((weights["gate_proj"][:, own], weights["up_proj"][:, own]), 1)
    torch.testing.assert_close(experts.gate_up_proj.data, gate_up, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(experts.down_proj.data, weights["down_proj"][..., own], rtol=1e-5, atol=1e-5)
