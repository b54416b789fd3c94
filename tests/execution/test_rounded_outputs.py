"""Outputs that a float8 GEMM rounds for the next one: models of float8 answer as with launches that round."""

import pytest
import torch
from engine_requests import engine_request
from tiny_engine import TinyEngine, tiny_config, tiny_model, tokens

from octavo import kernels
from octavo.kernels import DeferredNorm, GemmOutput, LinearOp, quantize_rows, rows_of
from octavo.kernels.linear import GATES, RoundedRows, RoundingLinearOp
from octavo.layers.linear import Linear
from octavo.records import SamplingParams


def rounded(x: torch.Tensor) -> RoundedRows:
    return RoundedRows(*quantize_rows(x), x.dtype)


class RoundingTwin(RoundingLinearOp):
    """A GEMM of float8 that rounds its outputs, in plain PyTorch; counts how often it does."""

    num_gated = 0

    def __init__(self, weight: torch.Tensor) -> None:
        values, scales = quantize_rows(weight)
        self._weight = values.double() * scales

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        y = self.of_rounded(rounded(x.flatten(0, -2))).view(*x.shape[:-1], -1)
        return y if out is None else out.copy_(y)

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        return GATES[activation](self(x))

    def of_rounded(self, x: RoundedRows) -> torch.Tensor:
        return (x.values.double() * x.scales @ self._weight.T).to(x.dtype)

    def gated_rounded(self, x: torch.Tensor | DeferredNorm, activation: str) -> RoundedRows | None:
        RoundingTwin.num_gated += 1
        return rounded(self.gated(rows_of(x), activation))


class SilentTwin(RoundingTwin):
    """The same where no kernel rounds outputs."""

    def gated_rounded(self, x: torch.Tensor | DeferredNorm, activation: str) -> RoundedRows | None:
        return None


def answers(architecture: str, twin: type[RoundingTwin], only: str = "") -> dict[str, list[int]]:
    """Those of a tiny model whose layers, or those of a name, have a twin's GEMM."""
    config = tiny_config(architecture, ("full_attention", "full_attention"), None)
    model = tiny_model(config)
    generator = torch.Generator().manual_seed(0)
    for name, layer in model.named_modules():
        if type(layer) is Linear and only in name:
            weight = torch.randn(layer.out_features, layer.in_features, generator=generator)
            layer._gemm = twin(weight / layer.in_features**0.5)
    sampling = SamplingParams(temperature=0, max_tokens=6)
    requests = [engine_request(name, range(3, last), sampling) for name, last in (("a", 12), ("b", 14))]
    with torch.inference_mode():
        return {name: tokens(answer) for name, answer in TinyEngine(config, model).run(requests).items()}


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
def test_models_answer_alike(architecture: str) -> None:
    expected = answers(architecture, SilentTwin)
    RoundingTwin.num_gated = 0
    assert answers(architecture, RoundingTwin) == expected
    assert RoundingTwin.num_gated > 0 and RoundingTwin.num_gated % 2 == 0, "in both layers"


def test_rows_are_rounded_only_for_a_gemm_that_reads_them() -> None:
    """Where down is of another kind, its inputs stay as they are; where only down is float8, nobody rounds for it."""
    RoundingTwin.num_gated = 0
    for only in ("gate_up_proj", "down_proj"):
        assert answers("LlamaForCausalLM", RoundingTwin, only) == answers("LlamaForCausalLM", SilentTwin, only)
    assert RoundingTwin.num_gated == 0


def test_an_output_of_rounded_rows() -> None:
    """It is computed where nothing adds it, and left to :meth:`LinearOp.added` by nothing."""
    weight, x = torch.randn(32, 64), torch.randn(3, 64)
    gemm: LinearOp = SilentTwin(weight)
    output = GemmOutput(gemm, rounded(x))
    assert output.add_to(torch.randn(3, 32), torch.ones(32), 1e-6) is None
    assert torch.equal(kernels.output_of(output), gemm(x))
