"""An engine that is stepped by hand, and functions that run beside its model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_llm import loaded_llm
from tiny_llama import SETTINGS, write_model

from octavo import LLM, PoolingParams, RequestOutputKind, SamplingParams
from octavo.config import EngineConfig
from octavo.errors import InvalidRequestError
from octavo.execution.worker import Worker
from octavo.llm_engine import LLMEngine
from octavo.records import PoolingRequestOutput, RequestOutput

LONG = SamplingParams(max_tokens=30, ignore_eos=True, seed=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with loaded_llm(folder) as llm:
        yield llm


@pytest.fixture
def engine(llm: LLM) -> Iterator[LLMEngine]:
    yield llm.llm_engine
    assert not llm.llm_engine.has_unfinished_requests()
    assert (llm.llm_engine.core.stats.num_running, llm.llm_engine.core.stats.num_waiting) == (0, 0)


def run(engine: LLMEngine) -> list[Any]:
    found = []
    while engine.has_unfinished_requests():
        found += engine.step()
    return found


def test_deltas_come_to_what_generate_gives(llm: LLM, engine: LLMEngine) -> None:
    (expected,) = llm.generate("tea", LONG, use_tqdm=False)
    params = LONG.clone()
    params.output_kind = RequestOutputKind.DELTA
    assert engine.add_request("a", "tea", params) == "a"
    outputs = run(engine)
    assert len(outputs) == 30 and [output.finished for output in outputs] == [False] * 29 + [True]
    assert "".join(output.outputs[0].text for output in outputs) == expected.outputs[0].text


def test_cumulative_is_the_default_and_ids_are_unique(engine: LLMEngine) -> None:
    engine.add_request("a", "tea", SamplingParams(max_tokens=3, ignore_eos=True), arrival_time=5.0, priority=2)
    with pytest.raises(InvalidRequestError, match="'a' is already in use"):
        engine.add_request("a", "tea", LONG)
    outputs = run(engine)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2, 3]
    assert outputs[0].metrics.arrival_time == 5.0


def test_generate_waits_for_nobody_elses_requests(llm: LLM, engine: LLMEngine) -> None:
    engine.add_request("a", "tea", LONG)
    with pytest.raises(InvalidRequestError, match="unfinished requests of its own"):
        llm.generate("tea", LONG, use_tqdm=False)
    engine.step()
    engine.abort_request("a")
    engine.abort_request(["a", "unknown"])
    assert llm.generate("tea", LONG, use_tqdm=False)[0].finished


def test_nothing_is_lost_while_a_control_function_waits(engine: LLMEngine) -> None:
    engine.add_request("a", "tea", LONG)
    engine.step()
    assert engine.reset_prefix_cache(reset_running_requests=True)
    assert engine.collective_rpc(lambda worker: worker.rank) == [0]
    assert [len(output.outputs[0].token_ids) for output in run(engine)] == list(range(2, 31))


def test_a_sleeping_engine_is_not_stepped_for_ever(engine: LLMEngine) -> None:
    engine.add_request("a", "tea", LONG)
    engine.step()
    engine.sleep(1)
    # Sleeping ended the request; its last output comes before the engine refuses to go on.
    (last,) = run(engine)
    assert last.outputs[0].finish_reason == "abort"
    with pytest.raises(InvalidRequestError, match="is asleep"):
        engine.step()
    engine.wake_up()


def test_vectors(folder: Path) -> None:
    settings = EngineConfig.from_kwargs(model=str(folder), runner="pooling", convert="embed", **SETTINGS)
    engine = LLMEngine(settings)
    engine.add_request("a", "tea", PoolingParams())
    engine.add_request("b", [1, 2, 3], PoolingParams(), tokenization_kwargs={"truncate_prompt_tokens": 2})
    outputs = run(engine)
    assert all(isinstance(output, PoolingRequestOutput) for output in outputs)
    assert [(output.request_id, len(output.outputs.data), output.prompt_token_ids[-1]) for output in outputs] == [
        ("a", 32, outputs[0].prompt_token_ids[-1]),
        ("b", 32, 2),
    ]
    assert engine.get_supported_tasks() == ("embed", "token_embed")
    engine.shutdown()


class TestCollectiveRpc:
    def test_functions_and_names(self, llm: LLM) -> None:
        def scale(worker: Worker, factor: float, *, name: str) -> float:
            return float(worker.get_model().get_parameter(name).sum()) * factor

        name = next(iter(dict(llm.apply_model(lambda model: model)[0].named_parameters())))
        (once,) = llm.collective_rpc(scale, args=(1.0,), kwargs={"name": name})
        assert llm.collective_rpc(scale, None, (2.0,), {"name": name}) == [2 * once]
        assert llm.collective_rpc("get_model") == llm.apply_model(lambda model: model)

    @pytest.mark.parametrize("name", ["_executor", "__init__", "rank", "no_such", "os:system"])
    def test_other_names(self, llm: LLM, name: str) -> None:
        with pytest.raises(InvalidRequestError, match="no method"):
            llm.collective_rpc(name)

    def test_an_error_is_the_callers_and_the_engine_goes_on(self, llm: LLM) -> None:
        with pytest.raises(ZeroDivisionError):
            llm.apply_model(lambda model: 1 / 0)
        assert llm.generate("tea", LONG, use_tqdm=False)[0].finished


def test_changed_weights_change_the_answer(folder: Path) -> None:
    llm = LLM(str(folder), **SETTINGS)
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)

    def text() -> str:
        assert llm.reset_prefix_cache()
        (output,) = llm.generate("tea", greedy, use_tqdm=False)
        return output.outputs[0].text

    before = text()
    llm.apply_model(lambda model: [parameter.data.neg_() for parameter in model.parameters()])
    assert text() != before
    llm.apply_model(lambda model: [parameter.data.neg_() for parameter in model.parameters()])
    assert text() == before
    llm.shutdown()


def test_settings_under_vllms_names(llm: LLM) -> None:
    config = llm.llm_engine.vllm_config
    assert (config.model_config.max_model_len, config.model_config.get_vocab_size()) == (256, 300)
    assert (config.cache_config.block_size, config.cache_config.num_gpu_blocks) == (4, 512)
    assert (config.scheduler_config.max_num_seqs, config.parallel_config.world_size) == (16, 1)
    assert isinstance(llm.generate("a", LONG, use_tqdm=False)[0], RequestOutput)
