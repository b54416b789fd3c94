"""Requests that are queued first and answered later, all together."""

from collections.abc import Iterator

import pytest
from running_llm import loaded_llm
from tiny_llama import write_model

from octavo import LLM, SamplingParams
from octavo.errors import InvalidRequestError
from octavo.records import PoolingRequestOutput, RequestOutput

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPTS = ["tea", "coffee and cake", "w"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with loaded_llm(write_model(tmp_path_factory.mktemp("tiny"))) as llm:
        yield llm


@pytest.fixture
def llm(loaded: LLM) -> Iterator[LLM]:
    yield loaded
    assert not loaded.llm_engine.has_unfinished_requests()
    assert not loaded.llm_engine.core.has_work
    assert loaded.wait_for_completion(use_tqdm=False) == []


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def test_answers_are_those_of_generate_in_order(llm: LLM) -> None:
    expected = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    lengths = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in (8, 2, 5)]
    first = llm.enqueue(PROMPTS, PARAMS, use_tqdm=False)
    second = llm.enqueue(PROMPTS, lengths, priority=[0, 0, 0], use_tqdm=False)
    assert llm.llm_engine.get_num_unfinished_requests() == 6
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [output.request_id for output in outputs] == first + second
    assert texts(outputs[:3]) == texts(expected)
    assert [len(output.outputs[0].token_ids) for output in outputs[3:]] == [8, 2, 5]


def test_nothing_runs_before_it_is_waited_for(llm: LLM) -> None:
    steps = llm.llm_engine.core.stats.num_steps
    llm.enqueue(PROMPTS, PARAMS, use_tqdm=False)
    assert llm.llm_engine.core.stats.num_steps == steps
    assert len(llm.wait_for_completion(RequestOutput, use_tqdm=False)) == 3
    assert llm.llm_engine.core.stats.num_steps > steps


def test_conversations(llm: LLM) -> None:
    talk = [{"role": "user", "content": "tea"}]
    expected = llm.chat([talk, talk], PARAMS, use_tqdm=False)
    assert len(llm.enqueue_chat([talk, talk], PARAMS, use_tqdm=False)) == 2
    assert texts(llm.wait_for_completion(use_tqdm=False)) == texts(expected)


def test_an_engine_at_rest_takes_requests(llm: LLM) -> None:
    llm.sleep(level=0, mode="abort")
    llm.enqueue("tea", PARAMS, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="is asleep"):
        llm.wait_for_completion(use_tqdm=False)
    assert llm.wake_up(tags=["scheduling"])
    assert len(llm.wait_for_completion(use_tqdm=False)) == 1


def test_a_wrong_prompt_leaves_none_behind(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        llm.enqueue(["tea", {"prompt_token_ids": []}], PARAMS, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="3 prompts but 1 sampling_params"):
        llm.enqueue(PROMPTS, [PARAMS], use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="lora_request is not supported"):
        llm.enqueue("tea", PARAMS, lora_request=object())


def test_other_calls_do_not_mix_with_the_queue(llm: LLM) -> None:
    llm.enqueue("tea", PARAMS, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match=r"call wait_for_completion\(\) first"):
        llm.generate("tea", PARAMS, use_tqdm=False)
    assert len(llm.wait_for_completion(use_tqdm=False)) == 1


def test_an_unexpected_output_ends_all(llm: LLM) -> None:
    llm.enqueue(PROMPTS, PARAMS, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="is a RequestOutput"):
        llm.wait_for_completion(PoolingRequestOutput, use_tqdm=False)


def test_requests_of_the_engine_come_last(llm: LLM) -> None:
    llm.llm_engine.add_request("mine", "w", SamplingParams(max_tokens=1))
    (request_id,) = llm.enqueue("tea", PARAMS, use_tqdm=False)
    assert [output.request_id for output in llm.wait_for_completion(use_tqdm=False)] == [request_id, "mine"]


def test_bars_show_both_parts(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.enqueue(PROMPTS, PARAMS)
    llm.wait_for_completion()
    shown = capsys.readouterr().err
    assert "Rendering prompts: 100%" in shown and "Processed prompts: 100%" in shown
