"""Rotary pairs that checkpoints interleave, split as they are loaded, however the weight is stored and divided."""

from dataclasses import dataclass, field

import pytest
import torch
from gguf import quants
from gguf.constants import GGMLQuantizationType

from octavo.kernels import apply_rope
from octavo.kernels.scaled import quantize_rows
from octavo.layers.build import Build
from octavo.layers.linear import Linear
from octavo.layers.weights import collect_slots, finish
from octavo.parallel import Section, TensorParallel
from octavo.platforms.native import native_kernels
from octavo.quantization.blocks import BlockScheme
from octavo.quantization.config import QuantizationConfig
from octavo.quantization.float8 import Float8Scheme
from octavo.quantization.scheme import LinearScheme, PlainScheme
from octavo.quantization.slot import SplitPairs, WeightSlot

HEADS, HEAD_DIM, ROTARY, INPUTS = 4, 16, 12, 64
needs_kernels = pytest.mark.skipif(native_kernels() is None, reason="needs compiled kernels; run on an AMD EPYC")


@dataclass(frozen=True, slots=True)
class _Always(QuantizationConfig):
    """Every layer has one scheme."""

    plain: PlainScheme = field(default_factory=PlainScheme)
    one: LinearScheme = field(default_factory=PlainScheme)

    @property
    def description(self) -> str:
        return ""

    def scheme(self, name: str) -> LinearScheme:
        return self.one


SCHEMES = [
    PlainScheme(),
    Float8Scheme("plain"),
    Float8Scheme("channel"),
    Float8Scheme("tensor"),
    pytest.param(BlockScheme("int8"), marks=needs_kernels),
    pytest.param(BlockScheme("Q4_0"), marks=needs_kernels),
]


@pytest.mark.parametrize("rank", [None, 0, 1])
@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: f"{type(scheme).__name__}")
def test_rows_are_reordered_however_they_are_stored(scheme: LinearScheme, is_fused: bool, rank: int | None) -> None:
    weight = torch.randn(2 * HEADS * HEAD_DIM, INPUTS, generator=torch.Generator().manual_seed(0))
    bias = torch.randn(len(weight), generator=torch.Generator().manual_seed(1))
    order = SplitPairs(HEAD_DIM, ROTARY)
    half = len(weight) // 2
    reordered, reordered_bias = weight.clone(), bias.clone()
    reordered[:half], reordered_bias[:half] = order(weight[:half]), order(bias[:half])
    one = _layer(scheme, is_fused, rank, ROTARY, weight, bias)
    other = _layer(scheme, is_fused, rank, 0, reordered, reordered_bias)
    x = torch.randn(3, INPUTS, generator=torch.Generator().manual_seed(2))
    assert torch.equal(one(x), other(x))
    again = one(x).clone()
    _fill(one, weight, bias)
    assert torch.equal(one(x), again), "weights can be updated in place"


def test_scores_are_those_of_interleaved_rotation() -> None:
    q, k = torch.randn(2, 5, 1, HEAD_DIM)
    angles = torch.randn(5, 1, ROTARY // 2)
    cos, sin = angles.cos(), angles.sin()
    tables = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)

    def interleaved(x: torch.Tensor) -> torch.Tensor:
        even, odd = x[..., :ROTARY:2], x[..., 1:ROTARY:2]
        rotated = torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)
        return torch.cat((rotated, x[..., ROTARY:]), -1)

    def split(x: torch.Tensor) -> torch.Tensor:
        return apply_rope(SplitPairs(HEAD_DIM, ROTARY)(x.flatten(1).T).T[:, None], *tables)

    torch.testing.assert_close((split(q) * split(k)).sum(-1), (interleaved(q) * interleaved(k)).sum(-1))


def _layer(
    scheme: LinearScheme, is_fused: bool, rank: int | None, rotary: int, weight: torch.Tensor, bias: torch.Tensor
) -> Linear:
    """A layer of a projection whose rows are interleaved and one whose rows are not."""
    tp = TensorParallel() if rank is None else TensorParallel(rank, 2)
    sections = {"q": Section(HEADS * HEAD_DIM, HEAD_DIM, rotary), "v": Section(HEADS * HEAD_DIM, HEAD_DIM)}
    parts = list(sections.values()) if is_fused else sections
    layer = Build(_Always(one=scheme), tensor_parallel=tp).linear("qv", INPUTS, parts, bias=True, split="column")
    assert isinstance(layer, Linear) and layer.scheme == scheme
    _fill(layer, weight, bias)
    return layer


def _fill(layer: Linear, weight: torch.Tensor, bias: torch.Tensor) -> None:
    halves = {"q": slice(0, len(weight) // 2), "v": slice(len(weight) // 2, None), "qv": slice(None)}
    for name, slots in collect_slots(layer).items():
        part, _, leaf = name.rpartition(".")
        rows = halves[part or "qv"]
        for slot in slots:
            slot.fill(_stored(layer.scheme, slot, leaf, weight[rows], bias[rows]))
    finish(layer)


def _stored(
    scheme: LinearScheme, slot: WeightSlot, leaf: str, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """A checkpoint's tensor."""
    if leaf == "bias":
        return bias
    if slot.raw_type:
        return torch.from_numpy(quants.quantize(weight.numpy(), GGMLQuantizationType[slot.raw_type]))
    if isinstance(scheme, Float8Scheme) and scheme.source != "plain":
        is_whole = scheme.source == "tensor"
        values, scales = quantize_rows(weight.reshape(1, -1) if is_whole else weight)
        return values.view(weight.shape) if leaf == "weight" else scales.view(() if is_whole else (-1,))
    return weight
