"""Vectors offline and from the engine's own process: embeddings, classes, scores, and who is refused what."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_llama
import torch
from engine_requests import engine_request
from running_llm import engine_processes
from tiny_bert import HIDDEN, MAX_LENGTH, SETTINGS, write_bert

from octavo import (
    LLM,
    AsyncLLM,
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingParams,
    SamplingParams,
    ScoringRequestOutput,
)
from octavo.errors import ConfigError, InvalidRequestError, RequestFailedError

TEXTS = ["a cat purrs", "the dog barks", "stocks fell", "what is red"]

Load = Callable[..., LLM]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """Small encoders by kind, each loaded once."""
    loaded: dict[str, LLM] = {}

    def load_one(kind: str) -> LLM:
        if kind not in loaded:
            loaded[kind] = LLM(str(write_bert(tmp_path_factory.mktemp(kind), kind)), **SETTINGS)
        return loaded[kind]

    yield load_one
    for llm in loaded.values():
        llm.shutdown()


def test_the_length_of_embeddings_is_known_before(load: Load) -> None:
    llm = load("embed")
    [output] = llm.embed(TEXTS[:1], use_tqdm=False)
    assert llm.model_config.runner_type == "pooling"
    assert llm.model_config.embedding_size == len(output.outputs.embedding)


def test_embeddings(load: Load) -> None:
    llm = load("embed")
    outputs = llm.embed(TEXTS, use_tqdm=False)
    assert all(isinstance(output, EmbeddingRequestOutput) for output in outputs)
    assert [output.outputs.hidden_size for output in outputs] == [HIDDEN] * 4
    alone = [llm.embed(text, use_tqdm=False)[0].outputs.embedding for text in TEXTS]
    assert np.allclose([output.outputs.embedding for output in outputs], alone, atol=1e-6)
    assert np.allclose(np.linalg.norm(alone, axis=1), 1, atol=1e-6)
    plain, whole = llm.encode(
        TEXTS[:2], [PoolingParams(use_activation=False), PoolingParams(task="token_embed")], use_tqdm=False
    )
    assert torch.allclose(plain.outputs.data / plain.outputs.data.norm(), torch.tensor(alone[0]), atol=1e-6)
    assert whole.outputs.data.shape == (len(whole.prompt_token_ids), HIDDEN)


def test_prompts_of_every_shape(load: Load) -> None:
    llm = load("embed")
    (wanted,) = llm.embed(TEXTS[0], use_tqdm=False)
    ids = wanted.prompt_token_ids
    for prompt in (ids, {"prompt_token_ids": ids}, {"prompt": TEXTS[0]}, {"prompt": "x", "prompt_token_ids": ids}):
        (found,) = llm.embed(prompt, use_tqdm=False)  # type: ignore[arg-type]
        assert found.outputs.embedding == wanted.outputs.embedding
    for wrong in (7, {}, {"prompt": 7}, [1.5], [["a"]], [b"a"]):
        with pytest.raises((InvalidRequestError, TypeError)):
            llm.embed(wrong, use_tqdm=False)  # type: ignore[arg-type]


def test_classes(load: Load) -> None:
    outputs = load("classify").classify(TEXTS, use_tqdm=False)
    assert all(isinstance(output, ClassificationRequestOutput) for output in outputs)
    assert [output.outputs.num_classes for output in outputs] == [3] * 4
    assert all(sum(output.outputs.probs) == pytest.approx(1, abs=1e-5) for output in outputs)


@pytest.mark.parametrize("kind", ["embed", "cross-encoder", "colbert"])
def test_scores_do_not_depend_on_company(kind: str, load: Load) -> None:
    llm = load(kind)
    together = llm.score("a cat sings", TEXTS, use_tqdm=False)
    assert all(isinstance(output, ScoringRequestOutput) for output in together)
    alone = [llm.score("a cat sings", text, use_tqdm=False)[0].outputs.score for text in TEXTS]
    assert [output.outputs.score for output in together] == pytest.approx(alone, abs=1e-5)
    assert len(set(alone)) == 4


def test_a_cross_encoder_reads_a_pair_as_its_tokenizer_frames_it(load: Load) -> None:
    llm = load("cross-encoder")
    (output,) = llm.score("a cat", "the dog", use_tqdm=False)
    tokens = llm.get_tokenizer().convert_ids_to_tokens(output.prompt_token_ids)
    assert tokens == ["[CLS]", "a", "cat", "[SEP]", "the", "dog", "[SEP]"]
    assert 0 < output.outputs.score < 1


def test_mistakes_leave_nothing_behind(load: Load) -> None:
    llm = load("embed")
    with pytest.raises(InvalidRequestError, match="does not generate text"):
        llm.generate("a", SamplingParams(), use_tqdm=False)
    with pytest.raises(InvalidRequestError, match=f"at most {MAX_LENGTH}"):
        llm.embed(["a", "cat " * 90], use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="Unsupported task: 'classify'; Classification API is not supported"):
        llm.classify("a", use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="There are 2 prompts but 1"):
        llm.embed(["a", "cat"], pooling_params=[PoolingParams()], use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="not trained to be cut"):
        llm.embed("a", pooling_params=PoolingParams(dimensions=8), use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="does not take 'padding'"):
        llm.embed("a", tokenization_kwargs={"padding": True}, use_tqdm=False)
    assert not llm._engine.has_work


def test_the_largest_step_leaves_nothing_behind(load: Load) -> None:
    """What a start on a GPU runs first."""
    llm = load("embed")
    runner = llm._engine.executor.worker._runner  # type: ignore[attr-defined]
    before = llm.embed(TEXTS, use_tqdm=False)
    runner.warm_up()
    after = llm.embed(TEXTS, use_tqdm=False)
    assert [output.outputs for output in after] == [output.outputs for output in before]


def test_the_engine_itself_refuses_requests_of_the_other_kind(load: Load) -> None:
    engine = load("embed")._engine
    with pytest.raises(InvalidRequestError, match="generation or pooling"):
        engine.add_request(engine_request("x", [5], SamplingParams(max_tokens=1)))
    assert not engine.has_work


@pytest.mark.parametrize(
    ("kind", "settings", "sentence"),
    [
        ("embed", {"runner": "generate"}, "does not generate text"),
        ("embed", {"convert": "classify"}, "cannot be used with 'classify'"),
        ("embed", {"pooler_config": {"mode": "x"}}, "pooler_config accepts"),
        ("embed", {"pooler_config": {"seq_pooling_type": "MAX"}}, "seq_pooling_type is one of"),
        ("embed", {"pooler_config": {"task": "classify"}}, "this model's task is one of embed, token_embed"),
        ("embed", {"max_model_len": 500}, "at most 40 positions"),
    ],
)
def test_settings_that_cannot_be(kind: str, settings: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        LLM(str(write_bert(tmp_path, kind)), **(SETTINGS | settings))


def test_a_model_that_writes_text_may_be_used_for_vectors(tmp_path: Path) -> None:
    folder = str(tiny_llama.write_model(tmp_path))
    llm = LLM(folder, **tiny_llama.SETTINGS)
    with pytest.raises(InvalidRequestError, match="start it with --runner pooling"):
        llm.embed("tea", use_tqdm=False)
    with pytest.raises(ConfigError, match="pooler_config is for pooling models"):
        LLM(folder, pooler_config={"task": "embed"}, **tiny_llama.SETTINGS)
    llm = LLM(folder, runner="pooling", **tiny_llama.SETTINGS)
    longest = [5] * llm._engine.info.max_model_len
    assert len(llm.embed([longest], use_tqdm=False)[0].outputs.embedding) == 32
    assert llm.embed([longest], use_tqdm=False)[0].num_cached_tokens == len(longest) - 4


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncLLM:
    """An encoder, to be started in a process of its own."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return AsyncLLM.from_engine_args(model=str(write_bert(tmp_path)), log_level="warning", **SETTINGS)


async def _embedding(llm: AsyncLLM, text: str, request_id: str) -> list[float]:
    outputs = [output async for output in llm.encode(text, None, request_id)]
    assert [output.finished for output in outputs] == [True]
    values: list[float] = outputs[0].outputs.array.tolist()
    return values


async def _many(llm: AsyncLLM, prefix: str, count: int) -> list[list[float]]:
    texts = [TEXTS[index % 4] for index in range(count)]
    return await asyncio.gather(*(_embedding(llm, text, f"{prefix}{i}") for i, text in enumerate(texts)))


@pytest.mark.long
def test_the_engines_process_gives_the_same_and_outlives_its_death(engine: AsyncLLM, load: Load) -> None:
    wanted = [output.outputs.embedding for output in load("embed").embed(TEXTS, use_tqdm=False)]

    async def run() -> None:
        await engine.start()
        try:
            assert np.allclose(await _many(engine, "a", 4), wanted, atol=1e-6)
            with pytest.raises(InvalidRequestError, match="already in use"):
                await asyncio.gather(_embedding(engine, "a", "same"), _embedding(engine, "a", "same"))
            (process,) = engine_processes()
            asking = asyncio.create_task(_many(engine, "b", 200))
            await asyncio.sleep(0)
            process.kill()
            assert np.allclose((await asking)[:4], wanted, atol=1e-6)
            cancelled = asyncio.create_task(_many(engine, "c", 50))
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert engine.num_unfinished == 0
            with pytest.raises(InvalidRequestError, match="does not generate text"):
                await anext(engine.generate("a", None, "d"))
        finally:
            await engine.shutdown()
        with pytest.raises((RequestFailedError, RuntimeError)):
            await _embedding(engine, "a", "e")

    asyncio.run(run())


def test_requests_that_fail_together_are_reported_once(engine: AsyncLLM, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        await engine.start()
        try:
            prepared = [engine.pooling_processor.process(str(number), "a cat") for number in range(3)]
            asking = asyncio.create_task(engine.pool(prepared))
            await asyncio.sleep(0)
            engine.handle_failure(RequestFailedError("The time is over."))
            with pytest.raises(RequestFailedError, match="time is over"):
                await asking
            assert engine.num_unfinished == 0
        finally:
            await engine.shutdown()

    asyncio.run(run())
    gc.collect()
    assert "never retrieved" not in caplog.text
