"""Decode steps that are replayed yield what steps that are computed anew do."""

import pytest
import torch
import transformers
from engine_requests import engine_request
from tiny_engine import MAX_LEN, VOCAB, TinyEngine, tiny_config, tiny_model, tokens

from octavo.execution.recorded import RecordedSteps
from octavo.hub import ModelConfig
from octavo.hub.config_file import parse_config
from octavo.layers.build import Build
from octavo.layers.decoder import RotaryAttention
from octavo.layers.head_terms import AttentionTerms, alibi_slopes
from octavo.models.base import CausalLM
from octavo.platforms import runtime_of
from octavo.platforms.native import native_kernels
from octavo.records import SamplingParams

pytestmark = pytest.mark.skipif(
    native_kernels() is None, reason="only compiled kernels can be recorded; run on an AMD EPYC"
)


def add_terms(model: CausalLM) -> None:
    """Give all heads of a model with four of them attention sinks and slopes."""
    for index, module in enumerate(model.modules()):
        if isinstance(module, RotaryAttention):
            module.terms = AttentionTerms(4, Build(), has_sinks=True, slopes=alibi_slopes(4))
            sinks = module.terms.sinks
            assert sinks is not None
            sinks.copy_(torch.randn(4, generator=torch.Generator().manual_seed(index)))


@pytest.mark.parametrize(
    ("architecture", "has_terms"),
    [
        ("LlamaForCausalLM", False),
        ("LlamaForCausalLM", True),
        ("Gemma3ForCausalLM", True),
        ("Mamba2ForCausalLM", False),
        ("Qwen3MoeForCausalLM", False),
    ],
)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, max_tokens=20, logprobs=1),  # what the host plans for
        SamplingParams(seed=5, max_tokens=20, top_p=0.9),  # draws that are replayed as well
    ],
)
def test_a_replayed_step_computes_the_same(architecture: str, has_terms: bool, params: SamplingParams) -> None:
    config = tiny_config(architecture, ("sliding_attention", "full_attention"), 5)
    model = tiny_model(config)
    if has_terms:
        add_terms(model)
    check_replays(config, model, params)


def test_steps_of_the_librarys_modules_are_replayed() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    raw = transformers.LlamaConfig(**sizes, vocab_size=VOCAB, max_position_embeddings=MAX_LEN, eos_token_id=None)
    config = parse_config(raw.to_dict() | {"architectures": ["LlamaForCausalLM"], "dtype": "float32"}, "transformers")
    check_replays(config, tiny_model(config), SamplingParams(temperature=0, max_tokens=20, logprobs=1))


@pytest.mark.parametrize("query_rank", [None, 12])
def test_steps_of_latent_attention_are_replayed(query_rank: int | None) -> None:
    raw = transformers.DeepseekV2Config(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=query_rank,
        kv_lora_rank=12,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=6,
        first_k_dense_replace=2,
        n_routed_experts=2,
        num_experts_per_tok=1,
        vocab_size=VOCAB,
        max_position_embeddings=MAX_LEN,
        eos_token_id=None,
    )
    config = parse_config(raw.to_dict() | {"architectures": ["DeepseekV2ForCausalLM"], "dtype": "float32"})
    check_replays(config, tiny_model(config), SamplingParams(temperature=0, max_tokens=20, logprobs=1))


@pytest.mark.parametrize("budget", [4, 5, 256])
def test_steps_are_replayed_while_requests_come_and_go(budget: int) -> None:
    """With a budget of 4, the last token of a prompt of 5 is a step of its own, as if it were generated."""
    config = tiny_config("LlamaForCausalLM", ("full_attention",) * 2, None)
    engines = make_engines(config, tiny_model(config), max_num_batched_tokens=budget)
    for lengths in ((20,), (3, 9, 6), (9,), (2, 12)):
        requests = [
            engine_request(
                f"{lengths} {row}", [row, 5, 2, row, 7], SamplingParams(temperature=0, max_tokens=length, logprobs=0)
            )
            for row, length in enumerate(lengths)
        ]
        plain = [
            engine_request(f"plain {lengths} {row}", [9, row, 2, 4, 7], SamplingParams(seed=row, max_tokens=length))
            for row, length in enumerate(lengths)
        ]
        for some in (plain, requests, plain[:1] + requests):
            found, expected = (engine.run(some) for engine in engines)
            assert {name: tokens(outputs) for name, outputs in found.items()} == {
                name: tokens(outputs) for name, outputs in expected.items()
            }


def make_engines(config: ModelConfig, model: CausalLM, **settings: object) -> tuple[TinyEngine, TinyEngine]:
    """An engine that records its steps and one that does not."""
    recorded, eager = (TinyEngine(config, model, block_size=16, **settings) for _ in range(2))
    eager.runner._recorded = RecordedSteps(runtime_of(torch.device("cpu")), eager.runner._tail.draw, is_on=False)
    return recorded, eager


def check_replays(config: ModelConfig, model: CausalLM, params: SamplingParams) -> None:
    """Compare an engine that records its steps with one that does not."""
    prompts = [[(7 * row + index) % VOCAB for index in range(5 + 6 * row)] for row in range(3)]
    requests = [engine_request(str(row), prompt, params) for row, prompt in enumerate(prompts)]
    recorded, eager = engines = make_engines(config, model)
    found, expected = (engine.run(requests) for engine in engines)
    steps = recorded.runner._recorded._steps
    assert steps and not eager.runner._recorded._steps
    assert any(draws for _, draws in steps) == (params.logprobs is None)
    for request_id, outputs in expected.items():
        assert tokens(found[request_id]) == tokens(outputs)
        for output, wanted in zip(found[request_id], outputs, strict=True):
            assert [entry.logprobs for entry in output.logprobs or []] == [
                entry.logprobs for entry in wanted.logprobs or []
            ]
