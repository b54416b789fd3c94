"""What a layer with the library's modules launches: the same operations as a family's own, where their parts allow."""

from typing import Any

import pytest
import torch
import transformers
from launches import ATTENTION, NORMED_ATTENTION, check_layer, layer_launches
from library_models import GEMMA2, LLAMA, MIXTRAL, QWEN3, config_of

from octavo.layers.norm import RMSNorm
from octavo.models.generic.residual import ResidualStream
from octavo.models.generic.trace import trace

PRE_NORM = ["gemm", "add_rms_norm", "gated gemm", "gemm", "add_rms_norm", "gemm"]
SANDWICH_NORM = ["gemm", "rms_norm", "add_rms_norm", "gated gemm", "gemm", "rms_norm", "add_rms_norm", "gemm"]
EXPERTS = ["gemm", "add_rms_norm", "router", "experts", "add_rms_norm", "gemm"]
PARALLEL = ["gemm", "gated gemm", "gemm", "aten.add", "add_layer_norm", "gemm"]
GEMMA3 = (transformers.Gemma3TextConfig, "Gemma3ForCausalLM")


@pytest.mark.parametrize(
    ("model", "changes", "expected"),
    [
        (LLAMA, {}, [ATTENTION, *PRE_NORM]),
        (QWEN3, {}, [NORMED_ATTENTION, *PRE_NORM]),
        ((transformers.Phi3Config, "Phi3ForCausalLM"), {}, [ATTENTION, *PRE_NORM]),
        (GEMMA2, {}, [ATTENTION, *SANDWICH_NORM]),
        (GEMMA3, {"layer_types": ["full_attention"] * 2}, [NORMED_ATTENTION, *SANDWICH_NORM]),
        (MIXTRAL, {"num_local_experts": 4}, [ATTENTION, *EXPERTS]),
        (
            (transformers.Qwen3MoeConfig, "Qwen3MoeForCausalLM"),
            {"num_experts": 4, "num_experts_per_tok": 2},
            [NORMED_ATTENTION, *EXPERTS],
        ),
        ((transformers.GlmConfig, "GlmForCausalLM"), {}, [ATTENTION, *PRE_NORM]),
        ((transformers.CohereConfig, "CohereForCausalLM"), {}, [ATTENTION, *PARALLEL]),
        (
            (transformers.Starcoder2Config, "Starcoder2ForCausalLM"),
            {},
            [ATTENTION, "gemm", "add_layer_norm", "gemm", "activate", "gemm", "add_layer_norm", "gemm"],
        ),
    ],
)
def test_layers_launch_what_their_family_launches(
    model: Any, changes: dict[str, Any], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_layer(model, changes, expected, monkeypatch)


def test_norms_of_the_sum_of_parallel_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(transformers.GPTNeoXConfig, "GPTNeoXForCausalLM")
    parts = [ATTENTION, "gemm", "layer_norm", "gemm", "activate", "gemm"]
    assert layer_launches(config, monkeypatch)[:8] == [*parts, "aten.add", "add_layer_norm"]


def test_a_sum_whose_parts_are_read_again_is_computed_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = transformers.models.llama.modeling_llama.LlamaDecoderLayer

    def forward(self: Any, x: torch.Tensor, **options: Any) -> torch.Tensor:
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(x), **options)
        return x + self.mlp(self.post_attention_layernorm(x + attended))

    assert "layers.0.post_attention_layernorm" in trace(config_of(*LLAMA), 64).joined_norms
    monkeypatch.setattr(layer, "forward", forward)
    assert trace(config_of(*LLAMA), 64).joined_norms == {"layers.1.input_layernorm", "norm"}


def test_nothing_is_joined_where_a_part_changes_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = transformers.models.llama.modeling_llama.LlamaDecoderLayer

    def forward(self: Any, x: torch.Tensor, **options: Any) -> torch.Tensor:
        total = x + self.self_attn(hidden_states=self.input_layernorm(x), **options)[0]
        x.zero_()
        return total + self.mlp(self.post_attention_layernorm(total))

    monkeypatch.setattr(layer, "forward", forward)
    assert not trace(config_of(*LLAMA), 64).joined_norms


def test_norms_of_heads_that_something_else_reads_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = transformers.models.qwen3.modeling_qwen3.Qwen3Attention
    usual = attention.forward

    def forward(self: Any, hidden_states: torch.Tensor, **options: Any) -> Any:
        seen: list[torch.Tensor] = []
        hook = self.k_norm.register_forward_hook(lambda _, inputs, output: seen.append(output))
        result, weights = usual(self, hidden_states, **options)
        hook.remove()
        return result + seen[0].sum((-2, -1))[..., None], weights

    found = trace(config_of(*QWEN3), 64).attention
    assert found[1].sources == ("layers.1.self_attn.q_norm", "layers.1.self_attn.k_norm")
    monkeypatch.setattr(attention, "forward", forward)
    assert {call.sources for call in trace(config_of(*QWEN3), 64).attention} == {None}


def test_norms_of_keys_that_are_values_as_well_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    file = transformers.models.qwen3.modeling_qwen3

    def forward(self: Any, hidden_states: torch.Tensor, position_embeddings: Any, **options: Any) -> Any:
        shape = *hidden_states.shape[:-1], -1, self.head_dim
        query = self.q_norm(self.q_proj(hidden_states).view(shape)).transpose(1, 2)
        value = key = self.k_norm(self.k_proj(hidden_states).view(shape)).transpose(1, 2)
        query, key = file.apply_rotary_pos_emb(query, key, *position_embeddings)
        attend = file.ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        attended, _ = attend(self, query, key, value, options["attention_mask"], scaling=self.scaling)
        return self.o_proj(attended.reshape(*hidden_states.shape[:-1], -1)), None

    monkeypatch.setattr(file.Qwen3Attention, "forward", forward)
    assert {call.sources for call in trace(config_of(*QWEN3), 64).attention} == {None}


class TestResidualStream:
    residual = torch.tensor([[[1.0, 2.0, 3.0]]])
    addend = torch.tensor([[[0.5, -1.0, 4.0]]])
    total = residual + addend

    def _stream(self) -> torch.Tensor:
        return ResidualStream.of(self.residual.clone()) + self.addend.clone()

    def test_a_norm_computes_it(self) -> None:
        norm, stream = RMSNorm(3, 1e-6), self._stream()
        assert isinstance(stream, ResidualStream)
        torch.testing.assert_close(stream.normed(norm), norm(self.total))
        torch.testing.assert_close(stream.normed(norm), norm(self.total))
        torch.testing.assert_close(stream.value(), self.total)

    def test_other_code_finds_a_tensor(self) -> None:
        stream = self._stream()
        assert (stream.shape, stream.dtype, stream.size(-1), stream.dim()) == ((1, 1, 3), torch.float32, 3, 3)
        assert type(stream[0]) is type(stream * 2) is type(torch.cat([stream, stream])) is torch.Tensor
        torch.testing.assert_close(stream * 2, self.total * 2)
        torch.testing.assert_close(self.addend + stream, self.total + self.addend, check_stride=False)
        torch.testing.assert_close(stream + 1.0, self.total + 1.0)

    def test_changes_in_place_are_seen_by_all(self) -> None:
        stream = self._stream()
        other = stream
        stream += self.addend
        torch.testing.assert_close(other * 1, self.total + self.addend)
        torch.testing.assert_close(stream * 1, self.total + self.addend)

    def test_sums_of_another_form_are_computed_at_once(self) -> None:
        assert type(ResidualStream.of(self.residual) + self.addend[0]) is torch.Tensor
        assert type(ResidualStream.of(self.residual) + self.addend.double()) is torch.Tensor
