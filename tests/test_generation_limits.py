"""Limits on a text that the engine keeps, from the parameter to the finish reason."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_llama import SETTINGS, write_model

from octavo import LLM, SamplingParams
from octavo.errors import InvalidRequestError
from octavo.records import ReasoningTags, RepetitionDetectionParams

PROMPT = {"prompt_token_ids": [3, 4, 5]}


@pytest.fixture(scope="module", params=[False, True], ids=["in-turn", "ahead"])
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder: Path = write_model(tmp_path_factory.mktemp("tiny"))
    llm = LLM(str(folder), **(SETTINGS | {"async_scheduling": request.param, "max_logprobs": -1}))
    yield llm
    llm.shutdown()


def token_ids(llm: LLM, **values: object) -> list[int]:
    params = SamplingParams(**{"temperature": 0, "max_tokens": 16, "ignore_eos": True, **values})
    (output,) = llm.generate([PROMPT], params, use_tqdm=False)
    return list(output.outputs[0].token_ids)


def test_a_thought_ends_with_its_budget(llm: LLM) -> None:
    free = token_ids(llm)
    end = [next(token for token in range(10, 30) if token not in free), 8]
    tags = ReasoningTags([[9]], end, is_open=True)
    limited = token_ids(llm, thinking_token_budget=4, reasoning_tags=tags)
    assert limited[:6] == [*free[:4], *end]
    assert len(limited) == 16
    assert token_ids(llm, thinking_token_budget=100, reasoning_tags=tags) == free
    assert token_ids(llm, thinking_token_budget=-1) == free
    # Neighbours are not bound.
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    bound = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, thinking_token_budget=4, reasoning_tags=tags)
    outputs = llm.generate([PROMPT] * 3, [params, bound, params], use_tqdm=False)
    assert [list(output.outputs[0].token_ids) for output in outputs] == [free, limited, free]


def test_a_budget_needs_tags(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="how the model marks its reasoning"):
        token_ids(llm, thinking_token_budget=4)
    with pytest.raises(InvalidRequestError, match="reasoning_tags holds the token id 100000"):
        token_ids(llm, thinking_token_budget=4, reasoning_tags=ReasoningTags([], [100000]))


def test_a_text_that_repeats_itself_ends(llm: LLM) -> None:
    params = SamplingParams(
        temperature=0,
        max_tokens=16,
        ignore_eos=True,
        allowed_token_ids=[11],
        repetition_detection=RepetitionDetectionParams(3, 2, 3),
    )
    (output,) = llm.generate([PROMPT], params, use_tqdm=False)
    assert list(output.outputs[0].token_ids) == [11] * 6
    assert output.outputs[0].finish_reason == "repetition"
    assert len(token_ids(llm, allowed_token_ids=[11])) == 16
    params.min_tokens = 9
    (output,) = llm.generate([PROMPT], params, use_tqdm=False)
    assert list(output.outputs[0].token_ids) == [11] * 9


def test_log_probabilities_of_chosen_tokens(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprobs=-1)
    (whole,) = llm.generate([PROMPT], params, use_tqdm=False)
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprob_token_ids=[12, 6])
    (chosen,) = llm.generate([PROMPT], params, use_tqdm=False)
    every, some = whole.outputs[0].logprobs, chosen.outputs[0].logprobs
    assert every is not None and some is not None
    for position, (token_id, entries) in enumerate(zip(chosen.outputs[0].token_ids, some, strict=True)):
        assert set(entries) == {token_id, 12, 6}
        assert entries[token_id].rank == 1
        for other, entry in entries.items():
            assert entry.logprob == pytest.approx(every[position][other].logprob, abs=1e-4)
    with pytest.raises(InvalidRequestError, match="logprob_token_ids holds the token id 100000"):
        token_ids(llm, logprob_token_ids=[100000])
    with pytest.raises(InvalidRequestError, match="at most 128"):
        SamplingParams(logprob_token_ids=[1] * 129)
