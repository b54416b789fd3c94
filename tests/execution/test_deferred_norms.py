"""Norms that are left to the kernel that reads them: models answer as with norms of their own."""

from typing import Any

import pytest
import torch
from engine_requests import engine_request
from tiny_engine import TinyEngine, tiny_config, tiny_model, tokens
from torch import nn

from octavo import kernels
from octavo.kernels import DeferredNorm, GemmOutput, LinearOp, defers_norms, pair_sum
from octavo.kernels.deferred_norm import WeightedRows
from octavo.kernels.experts import GroupedExperts
from octavo.kernels.linear import ComposedLinear
from octavo.kernels.pair_sum import PairSum
from octavo.layers.build import Build
from octavo.layers.experts import Experts
from octavo.layers.linear import RowParallelLinear
from octavo.layers.norm import LayerNorm, RMSNorm, UnitOffsetRMSNorm
from octavo.parallel import TensorParallel
from octavo.records import SamplingParams

FULL = ("full_attention", "full_attention")


def norm_and_multiply(self: LinearOp, norm: DeferredNorm, activation: str = "none") -> torch.Tensor:
    """What a kernel does that norms its rows: the stream's old values stay as they are."""
    norm.settle(norm.x if norm.residual is None else norm.x + norm.residual)
    rows = kernels.rms_norm(norm.total, norm.weight, norm.eps)
    return self(rows) if activation == "none" else self.gated(rows, activation)


@pytest.mark.parametrize("gemms_norm", [False, True])
@pytest.mark.parametrize("max_rows", [1, 8])
@pytest.mark.parametrize(
    ("architecture", "num_deferred"),
    [
        ("LlamaForCausalLM", 4),
        ("Qwen3MoeForCausalLM", 4),
        ("DeepseekV2ForCausalLM", 6),  # those of compressed queries, too
        ("DeepseekV32ForCausalLM", 5),  # but where an indexer reads these as well
        ("Gemma3ForCausalLM", 4),  # those before its attention and feed-forward parts; no GEMM reads the others
        ("Mamba2ForCausalLM", 2),
    ],
)
def test_models_answer_alike(
    architecture: str, num_deferred: int, max_rows: int, gemms_norm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(architecture, FULL, None)
    model = tiny_model(config)
    sampling = SamplingParams(temperature=0, max_tokens=6)
    requests = [engine_request(name, range(3, last), sampling) for name, last in (("a", 12), ("b", 14))[:max_rows]]
    expected = {name: tokens(answer) for name, answer in TinyEngine(config, model).run(requests).items()}

    deferred: list[DeferredNorm] = []
    original = DeferredNorm.__init__

    def note(self: DeferredNorm, *args: object) -> None:
        deferred.append(self)
        original(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(DeferredNorm, "__init__", note)
    monkeypatch.setitem(defers_norms.bound, "cpu", lambda device, x: len(x) <= max_rows)
    if gemms_norm:
        monkeypatch.setattr(LinearOp, "normed", norm_and_multiply)
    answers = TinyEngine(config, model).run(requests)
    assert {name: tokens(answer) for name, answer in answers.items()} == expected
    assert max(len(norm.x) for norm in deferred) == min(max_rows, len(requests))
    assert len(deferred) % num_deferred == 0 and deferred  # a step that is replayed defers nothing again


def add_and_weigh(self: LinearOp, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> WeightedRows:
    """What a kernel does that adds its outputs to the stream."""
    residual.add_(self(x))
    squares = residual.float().square().unflatten(1, (-1, 16)).sum(-1)
    return WeightedRows((residual.float() * weight.float()).to(residual.dtype), squares)


def multiply_weighted(self: LinearOp, norm: DeferredNorm, activation: str = "none") -> torch.Tensor | None:
    """What a kernel does that reads weighted rows: with parts of their sums of squares, and nothing else of them."""
    if norm.weighted is None:
        return None
    rates = torch.rsqrt(norm.weighted.squares.sum(1, keepdim=True) / norm.weighted.values.shape[1] + norm.eps)
    rows = (norm.weighted.values.float() * rates).to(norm.x.dtype)
    return self(rows) if activation == "none" else self.gated(rows, activation)


@pytest.mark.parametrize("gemms_norm", [False, True])
@pytest.mark.parametrize(
    ("architecture", "num_added"),
    [
        ("LlamaForCausalLM", 3),  # all but the last layer's, which the final norm adds
        ("Qwen3ForCausalLM", 3),
        ("Qwen3MoeForCausalLM", 0),  # experts read normed rows
        ("Gemma3ForCausalLM", 0),  # a norm comes between
    ],
)
def test_models_answer_alike_where_gemms_add_to_the_stream(
    architecture: str, num_added: int, gemms_norm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(architecture, FULL, None)
    model = tiny_model(config)
    sampling = SamplingParams(temperature=0, max_tokens=6)
    requests = [engine_request(name, range(3, last), sampling) for name, last in (("a", 12), ("b", 14))]
    expected = {name: tokens(answer) for name, answer in TinyEngine(config, model).run(requests).items()}
    added: list[torch.Tensor] = []

    def note(self: LinearOp, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> WeightedRows:
        added.append(x)
        return add_and_weigh(self, x, residual, weight)

    monkeypatch.setattr(LinearOp, "added", note)
    if gemms_norm:
        monkeypatch.setattr(LinearOp, "normed", multiply_weighted)
    answers = TinyEngine(config, model).run(requests)
    assert {name: tokens(answer) for name, answer in answers.items()} == expected
    assert len(added) % max(num_added, 1) == 0 and bool(added) == bool(num_added)


@pytest.mark.parametrize(
    ("architecture", "num_left"),
    [
        ("Qwen3MoeForCausalLM", 1),  # the last layer's sum is read by a norm that returns what it adds as well
        ("DeepseekV2ForCausalLM", 0),  # others are added to it
    ],
)
def test_sums_of_experts_are_left_to_norms(architecture: str, num_left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Experts, "is_plain", True)
    config = tiny_config(architecture, FULL, None)
    model = tiny_model(config)
    requests = [engine_request("a", range(3, 12), SamplingParams(temperature=0, max_tokens=6))]
    expected = {name: tokens(answer) for name, answer in TinyEngine(config, model).run(requests).items()}
    made: list[PairSum] = []
    in_norms: list[int] = []

    def leave(self: GroupedExperts, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> PairSum:
        results = [
            torch.cat([self.run(int(expert), row[None]) for expert in own]) for row, own in zip(x, chosen, strict=True)
        ]
        made.append(PairSum(torch.cat(results), shares, is_weighted=True))
        return made[-1]

    def note(results: torch.Tensor, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
        in_norms.append(len(results))
        return pair_sum.add_rms_norm_of_pairs.reference(results, *args)

    monkeypatch.setattr(GroupedExperts, "__call__", leave)
    monkeypatch.setitem(pair_sum.add_rms_norm_of_pairs.bound, "cpu", note)
    answers = TinyEngine(config, model).run(requests)
    assert {name: tokens(answer) for name, answer in answers.items()} == expected
    assert made and not any(pairs.is_open for pairs in made), "their memory is let go"
    assert len(in_norms) == num_left * len(made) // 2


@pytest.mark.parametrize("kind", [RMSNorm, LayerNorm, UnitOffsetRMSNorm])
def test_norms_add_outputs_that_no_gemm_adds(kind: type[RMSNorm | LayerNorm]) -> None:
    norm, layer = kind(32, 1e-6), nn.Linear(64, 32)
    x, residual = torch.randn(3, 64), torch.randn(3, 32)
    output = GemmOutput(ComposedLinear(layer), x)
    with torch.inference_mode():
        expected = norm.enter(layer(x), residual.clone())
        for deferred in (norm.enter(output, residual.clone()), norm.into(nn.Identity(), output, residual.clone())):
            assert all(map(torch.equal, deferred, expected))


def test_parts_of_sums_are_not_added() -> None:
    """Where devices have parts of a layer's inputs, their sum is added to the stream."""
    together = TensorParallel(0, 2, None)
    layer = Build(tensor_parallel=together).linear("o_proj", 64, 32, bias=False, split="row")
    assert isinstance(layer, RowParallelLinear)
    layer.defer_output()
    assert not layer._defers_output
