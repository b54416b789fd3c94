"""Norms that are left to the kernel that reads them: models answer as with norms of their own."""

import pytest
import torch
from engine_requests import engine_request
from tiny_engine import TinyEngine, tiny_config, tiny_model, tokens

from octavo import kernels
from octavo.kernels import DeferredNorm, LinearOp, defers_norms
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
