"""Requests and their ends, on one engine after the other's death: each scenario leaves a healthy one behind."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from running_llm import LONG, SCENARIO_SECONDS, SLOWING, engine_processes, last, slowed, until, until_idle
from tiny_llama import SETTINGS, write_model

from octavo import AsyncLLM, RequestOutput, RequestOutputKind, SamplingParams, StructuredOutputsParams
from octavo.errors import EngineDeadError, InvalidRequestError, RequestFailedError
from octavo.records import PreparedRequest

TWINS = SamplingParams(max_tokens=240, ignore_eos=True, seed=1, n=2)
Scenario = Callable[[AsyncLLM], Awaitable[None]]
Run = Callable[[Scenario], None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def run(folder: Path, importable_in_engines: None) -> Iterator[Run]:
    """Runs one scenario after the other."""
    with asyncio.Runner() as runner:
        llm = AsyncLLM.from_engine_args(model=str(folder), log_level="warning", **(SETTINGS | SLOWING))
        runner.run(llm.start())

        async def run_one(scenario: Scenario) -> None:
            async with asyncio.timeout(SCENARIO_SECONDS):
                await scenario(llm)
                await until_idle(llm)

        yield lambda scenario: runner.run(run_one(scenario))
        runner.run(llm.shutdown())


@pytest.mark.long
def test_life_of_requests(run: Run) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        assert llm.is_healthy
        await _kinds_of_output(llm)
        await _leaving(llm)
        await _aborting(llm)
        await _wrong_requests(llm)
        await _prefix_cache(llm)

    run(scenario)


async def _kinds_of_output(llm: AsyncLLM) -> None:
    params = SamplingParams(max_tokens=20, ignore_eos=True, seed=2, n=2)
    cumulative = await last(llm, "a", params)
    params.output_kind = RequestOutputKind.DELTA
    texts = {0: "", 1: ""}
    async for output in llm.generate("tea", params, "b"):
        for completion in output.outputs:
            texts[completion.index] += completion.text
    params.output_kind = RequestOutputKind.FINAL_ONLY
    outputs = [output async for output in llm.generate("tea", params, "c")]
    assert len(outputs) == 1
    expected = [completion.text for completion in cumulative.outputs]
    assert [completion.text for completion in outputs[0].outputs] == [texts[0], texts[1]] == expected


async def _leaving(llm: AsyncLLM) -> None:
    """Whoever aborts, closes or is cancelled frees what the request had; the others go on."""
    with slowed() as params:
        others = [asyncio.create_task(last(llm, f"other {number}", params)) for number in range(3)]

        closed = llm.generate("tea", params, "closed")
        await anext(closed)
        await closed.aclose()

        cancelled = asyncio.create_task(last(llm, "cancelled", params))
        await until(lambda: llm.num_unfinished == 4)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    texts = {output.outputs[0].text for output in await asyncio.gather(*others)}
    assert len(texts) == 1 and len(texts.pop()) > 100
    # An id may be used again when its request is over.
    await last(llm, "closed", SamplingParams(max_tokens=2))


async def _aborting(llm: AsyncLLM) -> None:
    """Whoever reads a request that is aborted gets what there is of it, and all of that."""
    expected = [completion.token_ids for completion in (await last(llm, "whole", TWINS)).outputs]
    for kind in RequestOutputKind:
        # Of these, some may be late ones of the request before.
        enough = llm.stats.generation_tokens + 24
        with slowed(TWINS, 0.005) as params:
            params.output_kind = kind
            # The same name each time: what the engine says of the last one, before it knows, is not this one's.
            reading = asyncio.create_task(_read(llm, params, "aborted"))
            await until(partial(_has_brought, llm, enough))
            await llm.abort(["aborted", "never seen"])
            await llm.abort("aborted")
        outputs = await reading
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        assert {completion.finish_reason for completion in outputs[-1].outputs} == {"abort"}
        found: list[list[int]] = [[], []]
        for output in outputs if kind is RequestOutputKind.DELTA else outputs[-1:]:
            for completion in output.outputs:
                found[completion.index] += completion.token_ids
        for some, whole in zip(found, expected, strict=True):
            assert 4 < len(some) < len(whole) and some == list(whole[: len(some)])


def _has_brought(llm: AsyncLLM, num_tokens: int) -> bool:
    return llm.stats.generation_tokens > num_tokens


async def _read(llm: AsyncLLM, params: SamplingParams, request_id: str) -> list[RequestOutput]:
    return [output async for output in llm.generate("tea", params, request_id)]


async def _wrong_requests(llm: AsyncLLM) -> None:
    with slowed() as params:
        running = asyncio.create_task(last(llm, "running", params))
        await until(lambda: llm.num_unfinished == 1)
        with pytest.raises(InvalidRequestError, match="already in use"):
            await last(llm, "running")
        for prompt in ("", [1] * 256, [300], [-1], {"nothing": 1}, "tea" * 100_000):
            with pytest.raises(InvalidRequestError):
                await last(llm, "wrong", prompt=prompt)
        with pytest.raises(InvalidRequestError, match="maximum context length is 256 tokens"):
            await last(llm, "wrong", LONG, [1] * 200, clip_max_tokens=False)
    assert (await running).outputs[0].finish_reason == "length"


async def _prefix_cache(llm: AsyncLLM) -> None:
    few = SamplingParams(max_tokens=2)
    prompt = list(range(10, 31))
    cached = [(await last(llm, str(number), few, prompt)).num_cached_tokens for number in range(2)]
    assert cached == [0, 20]
    assert (await last(llm, "salted", few, prompt, cache_salt="x")).num_cached_tokens == 0
    with slowed() as params:
        busy = asyncio.create_task(last(llm, "busy", params))
        await until(lambda: llm.stats.num_running == 1)
        assert not await llm.reset_prefix_cache()
    await busy
    assert await llm.reset_prefix_cache()
    assert (await last(llm, "after", few, prompt)).num_cached_tokens == 0


@pytest.mark.long
def test_engine_is_replaced(run: Run) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        undisturbed = await last(llm, "undisturbed")
        with slowed() as params:
            requests = [asyncio.create_task(last(llm, str(number), params)) for number in range(4)]
            await until(lambda: llm.stats.num_running == 4)
            engine_processes()[0].kill()
            await until(lambda: not llm.is_healthy)
        with pytest.raises(EngineDeadError, match="at the moment"):
            await llm.reset_prefix_cache()
        # One that comes while there is no engine waits for the next.
        requests.append(asyncio.create_task(last(llm, "meanwhile")))
        outputs = await asyncio.gather(*requests)
        assert {output.outputs[0].text for output in outputs} == {undisturbed.outputs[0].text}
        assert llm.is_healthy

    run(scenario)


@pytest.mark.long
def test_a_grammar_goes_on_in_the_next_engine(run: Run) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        form = StructuredOutputsParams(regex="([ab]{2} ){80}")
        params = SamplingParams(max_tokens=240, seed=3, structured_outputs=form, n=2)
        undisturbed = await last(llm, "undisturbed", params)
        with slowed(params) as slow:
            asked = asyncio.create_task(last(llm, "bound", slow))
            await until(lambda: llm.stats.num_running == 2)
            engine_processes()[0].kill()
            await until(lambda: not llm.is_healthy)
        outputs = (await asked).outputs
        assert [output.text for output in outputs] == [output.text for output in undisturbed.outputs]
        assert all(re.fullmatch("([ab]{2} ){80}", output.text) for output in outputs)

    run(scenario)


def test_what_cannot_be_read_fails_and_leaves_nobody_waiting(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        process = llm.input_processor.process

        def spoilt(*args: Any, **options: Any) -> PreparedRequest:
            prepared = process(*args, **options)
            prepared.children[0].params.temperature = -5.0
            return prepared

        engines = engine_processes()
        with slowed() as params:
            other = asyncio.create_task(last(llm, "other", params))
            await until(lambda: llm.num_unfinished == 1)
            with monkeypatch.context() as patch:
                patch.setattr(llm.input_processor, "process", spoilt)
                with pytest.raises(RequestFailedError, match="could not read the request"):
                    await last(llm, "unreadable")
        await other
        assert llm._admission is not None
        with slowed() as params, monkeypatch.context() as patch:
            waiting = asyncio.create_task(last(llm, "waiting", params))
            await until(lambda: llm.stats.num_running == 1)
            patch.setattr(llm._admission.meter, "observe", lambda outputs: outputs[0])
            with pytest.raises(RequestFailedError, match="could not be decoded"):
                await waiting
        await last(llm, "afterwards")
        assert engine_processes() == engines

    run(scenario)


@pytest.mark.long
def test_a_grammar_that_cannot_be_followed_is_the_requests_fault(run: Run) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        for form, word in (
            (StructuredOutputsParams(json={"type": "array", "uniqueItems": True}), "uniqueItems"),
            (StructuredOutputsParams(grammar="root ::= missing"), "missing"),
        ):
            with pytest.raises(InvalidRequestError, match=word):
                await last(llm, word, SamplingParams(max_tokens=5, structured_outputs=form))
        choice = SamplingParams(max_tokens=20, structured_outputs=StructuredOutputsParams(choice=["tea", "milk"]))
        assert (await last(llm, "choice", choice)).outputs[0].text in {"tea", "milk"}

    run(scenario)
