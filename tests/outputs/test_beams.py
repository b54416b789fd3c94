"""What a beam search keeps, against all texts there are."""

import itertools
import math
import random

import pytest
from engine_requests import engine_request
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import InvalidRequestError
from octavo.outputs.beam_search import BeamSearch, PromptSearch
from octavo.records import (
    BeamSearchParams,
    CompletionOutput,
    Logprob,
    PreparedRequest,
    RequestOutput,
    SamplingParams,
)

VOCABULARY = range(4)
END = 0


def next_logprobs(seed: int, text: tuple[int, ...]) -> dict[int, Logprob]:
    """A made-up model: log-probabilities of what follows a text."""
    generator = random.Random(hash((seed, text)))
    weights = [generator.random() + 0.01 for _ in VOCABULARY]
    return {token: Logprob(math.log(weight / sum(weights))) for token, weight in zip(VOCABULARY, weights, strict=True)}


def search(seed: int, params: BeamSearchParams) -> list[tuple[tuple[int, ...], float]]:
    """Texts and sums of a search over the made-up model."""
    state = BeamSearch(params, [END], params.max_tokens)
    while state.running:
        state.advance([next_logprobs(seed, beam.token_ids) for beam in state.running])
    return [(beam.token_ids, beam.cum_logprob) for beam in state.best()]


def all_texts(seed: int, max_tokens: int, *, ignore_eos: bool) -> dict[tuple[int, ...], float]:
    """Every whole text and its sum."""
    found = {}
    for length in range(1, max_tokens + 1):
        for text in itertools.product(VOCABULARY, repeat=length):
            is_ended = text[-1] == END and not ignore_eos
            if (END in text[:-1] and not ignore_eos) or not (is_ended or length == max_tokens):
                continue
            found[text] = sum(next_logprobs(seed, text[:i])[token].logprob for i, token in enumerate(text))
    return found


@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from([-2.0, 0.0, 0.7, 3.0]), st.booleans())
@settings(max_examples=60)
def test_a_wide_search_finds_the_best_of_all(seed: int, max_tokens: int, penalty: float, ignore_eos: bool) -> None:
    params = BeamSearchParams(256, max_tokens, ignore_eos=ignore_eos, length_penalty=penalty)
    texts = all_texts(seed, max_tokens, ignore_eos=ignore_eos)
    found = search(seed, params)
    scores = {text: total / len(text) ** penalty for text, total in texts.items()}
    assert {text for text, _ in found} == set(sorted(texts, key=lambda text: -scores[text])[:256])
    assert [scores[text] for text, _ in found] == sorted((scores[text] for text, _ in found), reverse=True)
    for text, total in found:
        assert total == pytest.approx(texts[text])


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 6), st.sampled_from([-1.0, 0.0, 1.0, 2.0]))
@settings(max_examples=60)
def test_a_search_that_stops_early_misses_nothing(seed: int, max_tokens: int, width: int, penalty: float) -> None:
    params = BeamSearchParams(width, max_tokens, length_penalty=penalty)
    found = search(seed, params)
    patient = BeamSearch(params, [END], max_tokens)
    patient._is_settled = lambda following: not following  # type: ignore[method-assign]
    while patient.running:
        patient.advance([next_logprobs(seed, beam.token_ids) for beam in patient.running])
    assert found == [(beam.token_ids, beam.cum_logprob) for beam in patient.best()]


@given(st.integers(0, 10**6), st.integers(1, 8))
@settings(max_examples=40)
def test_one_beam_without_ends_is_greedy(seed: int, max_tokens: int) -> None:
    text: tuple[int, ...] = ()
    while len(text) < max_tokens:
        following = next_logprobs(seed, text)
        text += (max(following, key=lambda token: following[token].logprob),)
    assert [tokens for tokens, _ in search(seed, BeamSearchParams(1, max_tokens, ignore_eos=True))] == [text]


def test_tokens_that_cannot_come_end_a_search() -> None:
    state = BeamSearch(BeamSearchParams(3, 5), [END], 5)
    state.advance([{END: Logprob(-0.1), 1: Logprob(-math.inf)}])
    assert not state.running
    assert [beam.token_ids for beam in state.best()] == [(END,)]


def prepared(max_tokens: int = 8) -> PreparedRequest:
    request = engine_request("a", [5, 6], SamplingParams(max_tokens=max_tokens), eos_token_ids=[END, 9])
    return PreparedRequest("a", None, [5, 6], request.params, [request], 0.0)


def test_requests_of_a_search() -> None:
    found = PromptSearch.of(prepared(2), BeamSearchParams(2, 100), 20, num_logprobs=7)
    assert found.num_candidates == 4 and found.step_params.logprobs == 7
    assert found.prompts == [{"prompt_token_ids": [5, 6]}]
    step = [{1: Logprob(-0.5), 2: Logprob(-1.0), END: Logprob(-2.0)}]
    found.advance([RequestOutput("b", None, None, None, [CompletionOutput(0, "", [1], logprobs=step)], True)])
    assert found.prompts == [{"prompt_token_ids": [5, 6, 1]}, {"prompt_token_ids": [5, 6, 2]}]
    rest = [[{END: Logprob(-0.1), 3: Logprob(-3.0)}], [{4: Logprob(-0.2)}]]
    found.advance(
        [RequestOutput("b", None, None, None, [CompletionOutput(0, "", [], logprobs=one)], True) for one in rest]
    )
    assert found.is_over  # the prompt has room for two tokens, whatever was asked for
    best, other = found.completions(None, 1)
    assert (best.token_ids, best.finish_reason) == ([1, END], "stop")
    assert (other.token_ids, other.finish_reason) == ([2, 4], "length")
    assert best.cumulative_logprob == pytest.approx(-0.6)
    assert best.logprobs is not None and [list(entry) for entry in best.logprobs] == [[1], [END]]
    assert other.logprobs is not None and [list(entry) for entry in other.logprobs] == [[2, 1], [4]]


def test_a_search_wider_than_the_log_probabilities_is_refused() -> None:
    PromptSearch.of(prepared(), BeamSearchParams(18, 4), 20)
    PromptSearch.of(prepared(), BeamSearchParams(200, 4), -1)
    with pytest.raises(InvalidRequestError, match="21 most likely tokens"):
        PromptSearch.of(prepared(), BeamSearchParams(19, 4), 20)


@pytest.mark.parametrize(
    "values",
    [
        {"beam_width": 0},
        {"beam_width": 257},
        {"beam_width": True},
        {"max_tokens": 0},
        {"length_penalty": math.nan},
        {"length_penalty": 1e9},
        {"allowed_token_ids": [1]},
        {"watermarking": True},
    ],
)
def test_parameters_out_of_range_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError) as error:
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, **values})  # type: ignore[arg-type]
    assert error.value.param == next(iter(values))
