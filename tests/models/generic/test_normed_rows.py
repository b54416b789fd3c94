"""Norms of single rows that are left to what reads them: models answer as with norms of their own."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from launches import ATTENTION, NORMED_ATTENTION, check_layer, layer_launches
from library_models import GEMMA2, LLAMA, MIXTRAL, QWEN3, config_of

from octavo import kernels
from octavo.hub import ModelConfig
from octavo.kernels import DeferredNorm, LinearOp, defers_norms
from octavo.layers.build import Build
from octavo.layers.norm import RMSNorm
from octavo.layers.weights import collect_slots, finish
from octavo.models.base import CausalLM
from octavo.models.generic import replace
from octavo.models.generic.lazy import NormedRow, as_rows, value_of
from octavo.models.generic.residual import ResidualStream
from octavo.models.generic.trace import trace
from octavo.models.registry import build_model
from octavo.records import SamplingParams

sys.path.append(str(Path(__file__).parents[2] / "execution"))
from engine_requests import engine_request
from tiny_engine import MAX_LEN, VOCAB, TinyEngine, tokens

QWEN3_MOE = (transformers.Qwen3MoeConfig, "Qwen3MoeForCausalLM")
DEEPSEEK = (transformers.DeepseekV3Config, "DeepseekV3ForCausalLM")
FEW_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    "head_dim": 8,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
PRE_NORM = ["gemm", "normed gated gemm", "gemm", "normed gemm"]
SANDWICH_NORM = ["gemm", "rms_norm", "normed gated gemm", "gemm", "rms_norm", "normed gemm"]
EXPERTS = ["gemm", "normed router", "experts", "normed gemm"]


@pytest.fixture
def defers_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(defers_norms.bound, "cpu", lambda device, x: len(x) == 1)


def random_model(config: ModelConfig) -> CausalLM:
    random = torch.Generator().manual_seed(0)
    model = build_model(config, Build(), MAX_LEN)
    for name, slots in collect_slots(model).items():
        noise = torch.randn(slots[0].source_shapes[0], generator=random)
        values = 1 + 0.1 * noise if "norm" in name else noise / noise.shape[-1] ** 0.5
        for slot in slots:
            slot.fill(values)
    finish(model)
    return model


def norm_and_multiply(self: LinearOp, norm: DeferredNorm, activation: str = "none") -> torch.Tensor:
    """What a kernel does that norms its row: the stream's old values stay as they are."""
    norm.settle(norm.x if norm.residual is None else norm.x + norm.residual)
    rows = kernels.rms_norm(norm.total, norm.weight, norm.eps)
    return self(rows) if activation == "none" else self.gated(rows, activation)


@pytest.mark.usefixtures("defers_rows")
@pytest.mark.parametrize(
    ("model", "changes", "expected"),
    [
        (LLAMA, {}, [ATTENTION, *PRE_NORM]),
        (QWEN3, {}, [NORMED_ATTENTION, *PRE_NORM]),
        ((transformers.Phi3Config, "Phi3ForCausalLM"), {}, [ATTENTION, *PRE_NORM]),
        (MIXTRAL, {"num_local_experts": 4}, [ATTENTION, *EXPERTS]),
        (QWEN3_MOE, FEW_EXPERTS, [NORMED_ATTENTION, *EXPERTS]),
    ],
)
def test_layers_launch_what_their_family_launches(
    model: Any, changes: dict[str, Any], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_layer(model, changes, expected, monkeypatch)


@pytest.mark.usefixtures("defers_rows")
def test_norms_without_a_gemm_behind_them_are_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert layer_launches(config_of(*GEMMA2), monkeypatch) == [ATTENTION, *SANDWICH_NORM]


@pytest.mark.parametrize("gemms_norm", [False, True])
@pytest.mark.parametrize("are_merged", [False, True])
@pytest.mark.parametrize(
    ("model", "changes", "num_deferred"),
    [(LLAMA, {}, 4), (QWEN3, {}, 4), (QWEN3_MOE, FEW_EXPERTS, 4), (GEMMA2, {}, 4), (DEEPSEEK, LATENT, 6)],
)
def test_models_answer_alike(
    model: Any,
    changes: dict[str, Any],
    num_deferred: int,
    are_merged: bool,
    gemms_norm: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not are_merged:  # several linear layers read a norm
        monkeypatch.setattr(replace, "_merge", lambda *_: None)
    config = config_of(*model, vocab_size=VOCAB, **changes)
    octavo = random_model(config)
    request = engine_request("a", range(3, 12), SamplingParams(temperature=0, max_tokens=6))
    expected = tokens(TinyEngine(config, octavo).run([request])["a"])

    deferred: set[str] = set()
    paths = {id(module.weight): path for path, module in octavo.named_modules() if isinstance(module, RMSNorm)}
    original = DeferredNorm.__init__

    def note(self: DeferredNorm, x: Any, residual: Any, weight: torch.Tensor, eps: float) -> None:
        deferred.add(paths[id(weight)])
        original(self, x, residual, weight, eps)

    monkeypatch.setattr(DeferredNorm, "__init__", note)
    monkeypatch.setitem(defers_norms.bound, "cpu", lambda device, x: len(x) == 1)
    if gemms_norm:
        monkeypatch.setattr(LinearOp, "normed", norm_and_multiply)
    assert tokens(TinyEngine(config, octavo).run([request])["a"]) == expected
    assert len(deferred) == num_deferred


LAYER = transformers.models.llama.modeling_llama.LlamaDecoderLayer


@pytest.mark.parametrize(
    ("change", "is_deferrable"),
    [
        (lambda total, normed, mlp: total + mlp(normed), True),
        (lambda total, normed, mlp: total + mlp(normed) * normed, True),
        (lambda total, normed, mlp: total + normed * mlp(normed), True),
        (lambda total, normed, mlp: total + mlp(normed * 2), False),
        (lambda total, normed, mlp: total + mlp(normed.mul_(2)), False),
        (lambda total, normed, mlp: total.mul_(2) + mlp(normed), False),
        (lambda total, normed, mlp: (total + mlp(normed)) + normed, False),
    ],
)
def test_norms_that_something_reads_in_another_way(
    change: Any, is_deferrable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self: Any, x: torch.Tensor, **options: Any) -> torch.Tensor:
        total = x + self.self_attn(hidden_states=self.input_layernorm(x), **options)[0]
        return change(total, self.post_attention_layernorm(total), self.mlp)

    monkeypatch.setattr(LAYER, "forward", forward)
    assert ("layers.0.post_attention_layernorm" in trace(config_of(*LLAMA), 64).deferrable) == is_deferrable


@pytest.mark.usefixtures("defers_rows")
class TestNormedRow:
    norm = RMSNorm(3, 1e-6)
    residual = torch.tensor([[[1.0, 2.0, 3.0]]])
    addend = torch.tensor([[[0.5, -1.0, 4.0]]])
    total = residual + addend
    expected = norm(total)

    def _stream_and_row(self) -> tuple[ResidualStream, torch.Tensor]:
        stream = ResidualStream.of(self.residual.clone(), self.addend.clone())
        row = stream.normed(self.norm, defers=True)
        assert isinstance(row, NormedRow)
        return stream, row

    def test_it_has_its_form_before_it_is_computed(self) -> None:
        _, row = self._stream_and_row()
        assert (row.shape, row.dtype, row.device.type, row.dim()) == ((1, 1, 3), torch.float32, "cpu", 3)
        for view in (row.view(-1, 3), row.reshape(1, 3), torch.reshape(row, (3,))):
            assert isinstance(view, NormedRow)
            assert isinstance(as_rows(view), DeferredNorm)
        assert type(row.view(3, 1)) is torch.Tensor

    def test_other_code_finds_a_tensor(self) -> None:
        stream, row = self._stream_and_row()
        view = row.view(-1, 3)
        torch.testing.assert_close(row * 2, self.expected * 2)
        torch.testing.assert_close(torch.cat([view, view]), self.expected[0].repeat(2, 1))
        torch.testing.assert_close(value_of([row]), [self.expected])
        torch.testing.assert_close(stream.value(), self.total)

    def test_the_sum_is_there_whatever_has_read_the_norm(self) -> None:
        stream, row = self._stream_and_row()
        torch.testing.assert_close(stream + self.addend + 0.0, self.total + self.addend)
        torch.testing.assert_close(row + 0.0, self.expected)
        stream, row = self._stream_and_row()
        torch.testing.assert_close(stream.normed(self.norm), self.expected)
        torch.testing.assert_close(row + 0.0, self.expected)
        stream, row = self._stream_and_row()
        norm = as_rows(row)
        assert isinstance(norm, DeferredNorm)
        norm.settle(self.total[0])
        torch.testing.assert_close(stream + 0.0, self.total)
        torch.testing.assert_close(row + 0.0, self.expected)

    def test_changes_in_place_are_seen_by_all(self) -> None:
        _, row = self._stream_and_row()
        view = row.view(-1, 3)
        row *= 2
        torch.testing.assert_close(as_rows(view), self.expected[0] * 2)

    def test_several_rows_are_not_deferred(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(defers_norms.bound, "cpu", lambda device, x: True)
        x = self.residual.repeat(1, 2, 1)
        assert NormedRow.defer(self.norm, x) is None
        assert type(ResidualStream.of(x, x.clone()).normed(self.norm, defers=True)) is torch.Tensor
