"""What a run without values shows of a model, and what it rejects."""

from typing import Any

import pytest
import torch
import transformers
from library_models import GEMMA2, LLAMA, MIXTRAL, QWEN3, config_of
from transformers import masking_utils

from octavo.errors import UnsupportedModelError
from octavo.models.generic.behaviour import Rotation
from octavo.models.generic.masks import Mask, read_mask
from octavo.models.generic.trace import trace


def test_attention_calls_of_a_model_with_windows_and_caps() -> None:
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
    config = config_of(*GEMMA2, query_pre_attn_scalar=24, attn_logit_softcapping=30.0, **layers)
    first, second = trace(config, 64).attention
    assert (first.name, first.window, second.window) == ("layers.0.self_attn", 9, None)
    assert (first.num_heads, first.num_kv_heads, first.key_dim, first.value_dim) == (4, 2, 12, 12)
    assert (first.scale, first.softcap) == (24**-0.5, 30.0)
    assert first.rotation == Rotation(12)


def test_layers_that_read_the_same_tensor() -> None:
    found = trace(config_of(*QWEN3), 64).shared_inputs
    assert found[0] == tuple(f"layers.0.self_attn.{name}_proj" for name in "qkv")
    assert found[1] == ("layers.0.mlp.gate_proj", "layers.0.mlp.up_proj")


def test_the_usual_rotation_is_left_to_octavo() -> None:
    for model in (LLAMA, QWEN3, MIXTRAL):
        assert {call.rotation for call in trace(config_of(*model), 64).attention} == {Rotation(12)}


def test_rotation_of_neighbours_is_left_to_octavo_where_layers_make_them() -> None:
    cohere, glm = (transformers.CohereConfig, "CohereForCausalLM"), (transformers.GlmConfig, "GlmForCausalLM")
    for model, expected in (
        (cohere, Rotation(12, is_interleaved=True, has_interleaved_tables=True)),
        (glm, Rotation(6, is_interleaved=True)),
    ):
        assert {call.rotation for call in trace(config_of(*model), 64).attention} == {expected}
    config = config_of(*cohere, use_qk_norm=True)
    assert {(call.rotation, call.sources) for call in trace(config, 64).attention} == {(None, None)}


def test_rotation_of_a_part_that_is_cut_out_of_heads_is_left_to_octavo() -> None:
    config = config_of(transformers.PhiConfig, "PhiForCausalLM")
    assert {call.rotation for call in trace(config, 64).attention} == {Rotation(6)}


def test_experts_are_traced_without_values() -> None:
    assert len(trace(config_of(*MIXTRAL, num_local_experts=4), 64).attention) == 2


@pytest.mark.parametrize(
    ("kind", "architecture", "changes", "reason"),
    [
        (transformers.GPTNeoConfig, "GPTNeoForCausalLM", {"attention_types": [[["global"], 2]]}, "no interface"),
        (transformers.RecurrentGemmaConfig, "RecurrentGemmaForCausalLM", {}, "recurrent state"),
        (
            transformers.Llama4TextConfig,
            "Llama4ForCausalLM",
            {"attention_chunk_size": 16},
            "its attention masks",
        ),
        (transformers.DogeConfig, "DogeForCausalLM", {}, "computes with attention masks"),
    ],
)
def test_what_cannot_be_served_is_rejected_by_name(
    kind: Any, architecture: str, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{architecture} cannot be used: .*{reason}"):
        trace(config_of(kind, architecture, **changes), 64)


def test_tokens_that_meet_outside_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shifting(torch.nn.Module):
        def __init__(self, config: Any) -> None:
            super().__init__()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.nn.functional.pad(x[:, :-1], (0, 0, 1, 0))

    monkeypatch.setattr(transformers.models.llama.modeling_llama, "LlamaMLP", Shifting)
    with pytest.raises(UnsupportedModelError, match="mixes tokens outside of attention"):
        trace(config_of(*LLAMA), 64)


def test_positions_that_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = transformers.LlamaModel.forward

    def counting(self: Any, input_ids: torch.Tensor, position_ids: Any = None, **options: Any) -> Any:
        return forward(self, input_ids, position_ids=torch.arange(input_ids.shape[1])[None], **options)

    monkeypatch.setattr(transformers.LlamaModel, "forward", counting)
    with pytest.raises(UnsupportedModelError, match="does not take its tokens' positions"):
        trace(config_of(*LLAMA), 64)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (masking_utils.causal_mask_function, Mask()),
        (masking_utils.sliding_window_causal_mask_function(7), Mask(7)),
        (masking_utils.sliding_window_causal_mask_function(4096), Mask(4096)),
        (masking_utils.sliding_window_causal_mask_function(1), Mask(1)),
        (masking_utils.bidirectional_mask_function, Mask(is_bidirectional=True)),
        (lambda batch, head, query, key: (query - key).abs() < 8, Mask(8, is_bidirectional=True)),
    ],
)
def test_masks_are_read_off_their_functions(function: Any, expected: Mask) -> None:
    assert read_mask(mask_function=function) == expected


@pytest.mark.parametrize(
    "function",
    [
        masking_utils.chunked_causal_mask_function(16, torch.zeros(1, dtype=torch.int64)),
        lambda batch, head, query, key: (query - key < 8) & (key - query < 5),
        lambda batch, head, query, key: key <= query + 1,
        lambda batch, head, query, key: (query + key) % 2 == 0,
    ],
)
def test_other_masks_are_not_supported(function: Any) -> None:
    assert read_mask(mask_function=function).complaint
