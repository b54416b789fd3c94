"""Recurrent states in the paged cache: with drafts, prefix hits, preemption, steps ahead and forks at the same time."""

import pytest
from engine_requests import engine_request
from msgspec.structs import replace
from tiny_engine import VOCAB, TinyEngine, tiny_config, tiny_model, tokens

from octavo.platforms.native import native_kernels
from octavo.records import EngineOutput, EngineRequest, NgramDrafts, SamplingParams

DRAFTS = NgramDrafts(3, 1, 3)
CONFIG = tiny_config("Mamba2ForCausalLM", ("full_attention",) * 2, None)
PREFIX = [token % VOCAB for token in range(5, 39)]
"""Two blocks of states and a part of a third."""


def make_requests() -> list[EngineRequest]:
    """A shared beginning, then phrases that repeat, so that drafts are found."""
    greedy = SamplingParams(temperature=0.0, max_tokens=14)
    drawn = SamplingParams(temperature=0.7, max_tokens=14)
    prompts = [PREFIX + [index, index + 1] * 3 for index in range(6)]
    return [
        engine_request(str(index), prompt, drawn if index % 3 == 2 else greedy, seed=index)
        for index, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("num_steps_ahead", [0, 1])
@pytest.mark.parametrize("budget", [256, 23])
@pytest.mark.usefixtures("hasty_admission")
def test_drafts_prefix_hits_and_preemption_together(num_steps_ahead: int, budget: int) -> None:
    model = tiny_model(CONFIG)
    plain = TinyEngine(CONFIG, model, enable_prefix_caching=False)
    expected = {request.request_id: plain.run([request])[request.request_id] for request in make_requests()}
    engine = TinyEngine(
        CONFIG,
        model,
        drafter=DRAFTS,
        num_blocks=10,
        max_num_batched_tokens=budget,
        num_steps_ahead=num_steps_ahead,
    )
    engine.run([engine_request("first", [*PREFIX, 1, 2], SamplingParams(max_tokens=4))])
    found = engine.run(make_requests())
    for request_id, outputs in expected.items():
        assert tokens(found[request_id]) == tokens(outputs), request_id
    stats = engine.scheduler.stats
    assert stats.cached_prompt_tokens >= 32
    assert stats.num_preemptions > 0
    assert stats.num_steps < plain.scheduler.stats.num_steps


def test_completions_of_one_prompt_continue_from_its_states() -> None:
    model = tiny_model(CONFIG)

    def forks(leader_id: str | None) -> list[EngineRequest]:
        params = SamplingParams(temperature=1.0, max_tokens=6)
        first = engine_request("0", PREFIX, params, seed=0)
        others = [engine_request(str(seed), PREFIX, params, seed=seed) for seed in (1, 2)]
        return [first, *(replace(other, leader_id=leader_id) for other in others)]

    expected = TinyEngine(CONFIG, model, enable_prefix_caching=False).run(forks(None))
    engine = TinyEngine(CONFIG, model)
    found = engine.run(forks("0"))
    assert {name: tokens(outputs) for name, outputs in found.items()} == {
        name: tokens(outputs) for name, outputs in expected.items()
    }
    assert engine.scheduler.stats.cached_prompt_tokens > 0


def test_a_state_that_is_not_a_number_ends_its_request_alone() -> None:
    model = tiny_model(CONFIG, poisoned_token=7)
    engine = TinyEngine(CONFIG, model, num_blocks=4)
    bad = engine_request("bad", [1, 7, 2], SamplingParams(temperature=0.0, max_tokens=4))
    good = engine_request("good", [1, 3, 2], SamplingParams(temperature=0.0, max_tokens=4))
    outputs = engine.run([bad, good])
    assert outputs["bad"][-1].error is not None
    # The block is given to another request, whose state starts from nothing.
    again = engine.run([replace(good, request_id="again")])
    assert tokens(again["again"]) == tokens(outputs["good"])
    assert len(tokens(outputs["good"])) == 4


@pytest.mark.skipif(native_kernels() is None, reason="the compiled kernels' promise; run on an AMD EPYC")
def test_neighbours_and_chunks_do_not_change_a_bit() -> None:
    model = tiny_model(CONFIG)
    params = SamplingParams(temperature=0.7, max_tokens=10, logprobs=0, prompt_logprobs=0)
    requests = [
        engine_request(str(index), [(5 * index + token) % VOCAB for token in range(length)], params, seed=index)
        for index, length in enumerate((40, 3, 17, 22))
    ]

    def figures(outputs: list[EngineOutput]) -> tuple[list[int], list[float]]:
        rows = [row for output in outputs for row in [*(output.prompt_logprobs or []), *(output.logprobs or [])]]
        return tokens(outputs), [value for row in rows for value in row.logprobs]

    def engine(**settings: int) -> TinyEngine:
        return TinyEngine(CONFIG, model, enable_prefix_caching=False, **settings)

    alone = {request.request_id: figures(engine().run([request])[request.request_id]) for request in requests}
    for budget in (256, 9):
        found = engine(max_num_batched_tokens=budget).run(requests)
        assert {request_id: figures(outputs) for request_id, outputs in found.items()} == alone
