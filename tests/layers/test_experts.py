"""Experts hold the same weights whatever form a checkpoint stores them in, and each device its part of them."""

from typing import Any

import pytest
import torch

from octavo.kernels.experts import ExpertWeights, PlainExperts, make_experts
from octavo.layers.experts import Experts, Mxfp4Experts
from octavo.parallel import TensorParallel
from octavo.platforms.native import native_kernels
from octavo.quantization.slot import WeightSlot
from octavo.records.experts import ExpertSpec, ExpertStorage, SeparateExperts, StackedExperts, StackedParts

NUM_EXPERTS, HIDDEN, SIZE = 3, 64, 96
SPEC = ExpertSpec("silu")


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


GATE, UP = random(1, NUM_EXPERTS, SIZE, HIDDEN), random(2, NUM_EXPERTS, SIZE, HIDDEN)
DOWN = random(3, NUM_EXPERTS, HIDDEN, SIZE)
GATE_BIAS, UP_BIAS, DOWN_BIAS = (
    random(4, NUM_EXPERTS, SIZE),
    random(5, NUM_EXPERTS, SIZE),
    random(6, NUM_EXPERTS, HIDDEN),
)


def load(experts: Experts, tensors: dict[str, torch.Tensor]) -> None:
    slots: dict[str, list[WeightSlot]] = {}
    for name, slot in experts.weight_slots("layer.experts"):
        slots.setdefault(name, []).append(slot)
    assert slots.keys() == tensors.keys()
    for name, places in slots.items():
        for slot in places:
            assert tuple(tensors[name].shape) in slot.source_shapes and slot.takes(tensors[name].dtype)
            slot.fill(tensors[name])


def alternating(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Rows (or biases) of two tensors by turns."""
    return torch.stack((first, second), 2).flatten(1, 2)


def separate() -> dict[str, torch.Tensor]:
    parts = {"w1": GATE, "w3": UP, "w2": DOWN}
    return {
        f"layer.experts.{index}.{name}.weight": part[index]
        for name, part in parts.items()
        for index in range(NUM_EXPERTS)
    }


STORED: list[tuple[ExpertStorage, dict[str, torch.Tensor]]] = [
    (SeparateExperts("w1", "w3", "w2"), separate()),
    (
        StackedExperts("input_linear.weight", "output_linear.weight"),
        {"layer.input_linear.weight": torch.cat((GATE, UP), 1), "layer.output_linear.weight": DOWN},
    ),
    (
        StackedParts("w1", "w3", "w2"),
        {"layer.w1.weight": GATE, "layer.w3.weight": UP, "layer.w2.weight": DOWN},
    ),
    (
        StackedExperts(is_transposed=True),
        {
            "layer.experts.gate_up_proj": torch.cat((GATE, UP), 1).mT.contiguous(),
            "layer.experts.down_proj": DOWN.mT.contiguous(),
        },
    ),
    (
        StackedExperts(is_transposed=True, is_interleaved=True),
        {
            "layer.experts.gate_up_proj": alternating(GATE, UP).mT.contiguous(),
            "layer.experts.down_proj": DOWN.mT.contiguous(),
        },
    ),
]
STORED_NAMES = ["separate", "stacked", "parts", "transposed", "interleaved"]


@pytest.mark.parametrize("rank", [0, 1, None])
@pytest.mark.parametrize(("storage", "tensors"), STORED, ids=STORED_NAMES)
def test_every_form(storage: ExpertStorage, tensors: dict[str, torch.Tensor], rank: int | None) -> None:
    experts = Experts(NUM_EXPERTS, HIDDEN, SIZE, SPEC, storage, part(rank))
    load(experts, tensors)
    own = rows_of(rank)
    assert torch.equal(experts.gate_up_proj, torch.cat((GATE[:, own], UP[:, own]), 1))
    assert torch.equal(experts.down_proj, DOWN[..., own])


def part(rank: int | None) -> TensorParallel:
    return TensorParallel() if rank is None else TensorParallel(rank, 2)


def rows_of(rank: int | None) -> slice:
    return slice(None) if rank is None else slice(rank * SIZE // 2, (rank + 1) * SIZE // 2)


@pytest.mark.parametrize("rank", [0, 1])
def test_biases_of_a_part(rank: int) -> None:
    storage, tensors = STORED[-1]
    biases = {"gate_up_proj_bias": alternating(GATE_BIAS, UP_BIAS), "down_proj_bias": DOWN_BIAS}
    experts = Experts(NUM_EXPERTS, HIDDEN, SIZE, SPEC, storage, part(rank), bias=True)
    load(experts, tensors | {f"layer.experts.{name}": bias for name, bias in biases.items()})
    own = rows_of(rank)
    assert experts.gate_up_bias is not None and experts.down_bias is not None
    assert torch.equal(experts.gate_up_bias, torch.cat((GATE_BIAS[:, own], UP_BIAS[:, own]), 1))
    assert torch.equal(experts.down_bias, DOWN_BIAS if rank == 0 else torch.zeros_like(DOWN_BIAS))


def packed(seed: int, *shape: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random blocks and scales, and the values that they stand for, ``[E, out, in]``."""
    random_ints = torch.Generator().manual_seed(seed)
    blocks = torch.randint(256, (*shape[:-1], shape[-1] // 32, 16), generator=random_ints, dtype=torch.uint8)
    scales = torch.randint(120, 130, (*shape[:-1], shape[-1] // 32), generator=random_ints, dtype=torch.uint8)
    sizes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    halves = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2).long()
    values = torch.where(halves >= 8, -1.0, 1.0) * sizes[halves % 8] * 2.0 ** (scales.float() - 127)[..., None]
    return blocks, scales, values.flatten(-2)


@pytest.mark.parametrize("rank", [0, 1, None])
@pytest.mark.parametrize("scales_first", [False, True])
def test_mxfp4(rank: int | None, scales_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    outer, outer_scales, gate_up = packed(1, NUM_EXPERTS, 2 * SIZE, HIDDEN)
    inner, inner_scales, down = packed(2, NUM_EXPERTS, HIDDEN, SIZE)
    storage = StackedExperts(is_interleaved=True, is_mxfp4=True)
    experts = Mxfp4Experts(NUM_EXPERTS, HIDDEN, SIZE, SPEC, storage, part(rank))
    tensors = {
        "layer.experts.gate_up_proj_blocks": outer,
        "layer.experts.gate_up_proj_scales": outer_scales,
        "layer.experts.down_proj_blocks": inner,
        "layer.experts.down_proj_scales": inner_scales,
    }
    # Weights may be updated. What packs them for the GEMMs is not looked at here.
    monkeypatch.setattr("octavo.layers.experts.make_experts", lambda gate_up, weights, spec, deterministic: None)
    for _ in range(2):
        load(experts, dict(sorted(tensors.items(), reverse=scales_first)))
        experts.finish_weights()
        experts.finish_weights()
    own = rows_of(rank)
    expected = torch.cat((gate_up[:, ::2][:, own], gate_up[:, 1::2][:, own]), 1)
    assert torch.equal(experts.gate_up_proj, expected)
    assert torch.equal(experts.down_proj, down[..., own])


def _one(x: torch.Tensor, expert: int, share: float, spec: ExpertSpec) -> torch.Tensor:
    """What one expert makes of one token."""
    x = x * share if spec.weighs_inputs else x
    gate, up = GATE[expert] @ x + GATE_BIAS[expert], UP[expert] @ x + UP_BIAS[expert]
    if spec.activation != "silu":
        up = up.clamp(-spec.limit, spec.limit)
    if spec.activation == "swiglu_step":
        gate = (gate * gate.sigmoid()).clamp(max=spec.limit)
        y = DOWN[expert] @ (gate * up) + DOWN_BIAS[expert]
        return y * share
    if spec.activation != "silu":
        gate = gate.clamp(max=spec.limit)
    if spec.activation == "clamped_swiglu":
        up = up + 1
    inner = gate * (spec.alpha * gate).sigmoid() * up
    y = DOWN[expert] @ inner + DOWN_BIAS[expert]
    return y if spec.weighs_inputs else y * share


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        ExpertSpec("silu", weighs_inputs=True),
        ExpertSpec("clamped_swiglu", 1.7, 2.0),
        ExpertSpec("clamped_silu", limit=2.0),
        ExpertSpec("swiglu_step", limit=2.0),
    ],
    ids=["silu", "weighs inputs", "clamped", "clamped silu", "swiglu step"],
)
def test_the_reference_is_a_sum_over_each_tokens_experts(spec: ExpertSpec) -> None:
    weights = ExpertWeights(torch.cat((GATE, UP), 1), DOWN, torch.cat((GATE_BIAS, UP_BIAS), 1), DOWN_BIAS)
    x, shares = random(7, 5, HIDDEN), random(8, 5, 2)
    chosen = torch.tensor([[0, 1], [1, 0], [2, 1], [0, 2], [0, 1]])
    expected = [
        sum((_one(x[token], int(expert), float(share), spec) for expert, share in zip(*row, strict=True)), _zero())
        for token, row in enumerate(zip(chosen, shares, strict=True))
    ]
    found = PlainExperts(weights, spec)(x, chosen, shares)
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-4, atol=1e-3)


def _zero() -> Any:
    return torch.zeros(HIDDEN)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spec", [SPEC, ExpertSpec("clamped_swiglu", 1.7, 2.0)], ids=["silu", "clamped"])
@pytest.mark.parametrize("size", [SIZE, 40], ids=["packed in place", "packed elsewhere"])
def test_on_cpus(dtype: torch.dtype, spec: ExpertSpec, size: int) -> None:
    weights = ExpertWeights(random(1, 4, 2 * size, HIDDEN), random(2, 4, HIDDEN, size), None, random(3, 4, HIDDEN))
    in_type = ExpertWeights(*(None if part is None else part.to(dtype) for part in weights))  # type: ignore[arg-type]
    x, shares = random(4, 40, HIDDEN), random(5, 40, 2).softmax(-1)
    chosen = random(6, 40, 4).topk(2).indices
    expected = PlainExperts(weights, spec)(x, chosen, shares)
    run = make_experts(in_type.gate_up, in_type, spec)
    found = run(x.to(dtype), chosen, shares)
    scale = expected.abs().max().item()
    torch.testing.assert_close(
        found.float() / scale, expected / scale, rtol=0, atol=1e-5 if dtype.itemsize == 4 else 2e-2
    )
    if native_kernels() is not None:
        for count in (1, 2, 7):
            assert torch.equal(run(x[:count].to(dtype), chosen[:count], shares[:count]), found[:count])
