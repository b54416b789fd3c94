"""The asynchronous face: many requests, their ends, and the engine's."""

import asyncio
import os
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from running_llm import LONG, engine_processes, last, run, running, until
from tiny_llama import SETTINGS, write_model

from octavo import AsyncLLM, RequestOutput, RequestOutputKind, SamplingParams, StructuredOutputsParams
from octavo.errors import (
    ConfigError,
    EngineDeadError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    RequestFailedError,
)
from octavo.records import PreparedRequest

TWINS = SamplingParams(max_tokens=240, ignore_eos=True, seed=1, n=2)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def _importable_in_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = Path(__file__).parent
    # The second for what is imported before the interpreter looks into its folder.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tests), str(tests.parent)]), prepend=os.pathsep)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_life_of_requests(folder: Path) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        assert llm.is_healthy
        await _kinds_of_output(llm)
        await _leaving(llm)
        await _aborting(llm)
        await _wrong_requests(llm)
        await _prefix_cache(llm)

    run(folder, scenario, max_num_seqs=8)


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
    others = [asyncio.create_task(last(llm, f"other {number}")) for number in range(3)]

    closed = llm.generate("tea", LONG, "closed")
    await anext(closed)
    await closed.aclose()

    cancelled = asyncio.create_task(last(llm, "cancelled"))
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
        params = TWINS.clone()
        params.output_kind = kind
        # Of these, some may be late ones of the request before.
        enough = llm.stats.generation_tokens + 24
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
    running = asyncio.create_task(last(llm, "running"))
    await until(lambda: llm.num_unfinished == 1)
    for prompt in ("", [1] * 256, [300], [-1], {"nothing": 1}, "tea" * 100_000):
        with pytest.raises(InvalidRequestError):
            await last(llm, "wrong", prompt=prompt)
    with pytest.raises(InvalidRequestError, match="already in use"):
        await last(llm, "running")
    with pytest.raises(InvalidRequestError, match="maximum context length is 256 tokens"):
        await last(llm, "wrong", LONG, [1] * 200, clip_max_tokens=False)
    assert (await running).outputs[0].finish_reason == "length"


async def _prefix_cache(llm: AsyncLLM) -> None:
    few = SamplingParams(max_tokens=2)
    prompt = list(range(10, 31))
    cached = [(await last(llm, str(number), few, prompt)).num_cached_tokens for number in range(2)]
    assert cached == [0, 20]
    assert (await last(llm, "salted", few, prompt, cache_salt="x")).num_cached_tokens == 0
    busy = asyncio.create_task(last(llm, "busy"))
    await until(lambda: llm.stats.num_running == 1)
    assert not await llm.reset_prefix_cache()
    await busy
    assert await llm.reset_prefix_cache()
    assert (await last(llm, "after", few, prompt)).num_cached_tokens == 0


def test_too_many_requests_are_turned_away(folder: Path) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        taken = [asyncio.create_task(last(llm, str(number))) for number in range(5)]
        await until(lambda: llm.num_unfinished == 5)
        with pytest.raises(OverloadedError, match="5 requests"):
            await last(llm, "one too many")
        await asyncio.gather(*taken)
        await last(llm, "now there is room", SamplingParams(max_tokens=1))

    run(folder, scenario, max_num_seqs=2, max_num_waiting=3)


def test_engine_is_replaced(folder: Path) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        undisturbed = await last(llm, "undisturbed")
        requests = [asyncio.create_task(last(llm, str(number))) for number in range(4)]
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

    run(folder, scenario)


FAIL_ONCE = """
import os, sys
from pathlib import Path

wish = Path(__file__).with_name("fail")
if "octavo.engine.process" in sys.orig_argv and wish.exists():
    wish.unlink()
    from octavo.execution.worker import Worker

    def start(*_):
        raise RuntimeError("no room")

    Worker.start = start
"""


@pytest.fixture
def next_start_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where to put a file so that the next engine cannot start."""
    (tmp_path / "sitecustomize.py").write_text(FAIL_ONCE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path / "fail"


def test_an_engine_that_cannot_start_is_told_at_once(folder: Path, next_start_fails: Path) -> None:
    async def main() -> None:
        with pytest.raises(EngineDeadError, match="could not start: no room"):
            async with asyncio.timeout(60), running(folder):
                pass

    next_start_fails.touch()
    asyncio.run(main())
    assert not next_start_fails.exists() and not engine_processes()


@pytest.mark.long
def test_an_engine_that_cannot_start_again_yet_is_tried_once_more(folder: Path, next_start_fails: Path) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        request = asyncio.create_task(last(llm, "request"))
        await until(lambda: llm.stats.num_running == 1)
        await asyncio.to_thread(next_start_fails.touch)
        engine_processes()[0].kill()
        assert (await request).outputs[0].finish_reason == "length"

    run(folder, scenario)
    assert not next_start_fails.exists()


@pytest.mark.long
def test_a_grammar_goes_on_in_the_next_engine(folder: Path) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        form = StructuredOutputsParams(regex="([ab]{2} ){80}")
        params = SamplingParams(max_tokens=240, seed=3, structured_outputs=form, n=2)
        undisturbed = await last(llm, "undisturbed", params)
        asked = asyncio.create_task(last(llm, "bound", params))
        await until(lambda: llm.stats.num_running == 2)
        engine_processes()[0].kill()
        outputs = (await asked).outputs
        assert [output.text for output in outputs] == [output.text for output in undisturbed.outputs]
        assert all(re.fullmatch("([ab]{2} ){80}", output.text) for output in outputs)

    run(folder, scenario)


HOLD_GRAMMARS = """
import sys, time
from pathlib import Path

if "octavo.engine.process" in sys.orig_argv:
    from octavo.sampling.grammar.compiler import GrammarCompiler

    compile_one = GrammarCompiler._work

    def held(*arguments):
        while Path(__file__).with_name("hold").exists():
            time.sleep(0.01)
        return compile_one(*arguments)

    GrammarCompiler._work = held
"""


def test_waiting_for_a_grammar_is_no_standstill(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOLD_GRAMMARS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    hold, block = tmp_path / "hold", tmp_path / "block"
    hold.touch()
    block.touch()
    timeout = 1.0

    async def scenario(llm: AsyncLLM) -> None:
        choice = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["tea"]))
        bound = asyncio.create_task(last(llm, "bound", choice))
        await until(lambda: llm.stats.num_awaiting_grammar == 1)
        waited_until = time.monotonic() + 2 * timeout
        while time.monotonic() < waited_until:
            assert llm.is_healthy
            await asyncio.sleep(0.05)
        # Beside one that stands still, it is no excuse.
        blocked = SamplingParams(max_tokens=8, ignore_eos=True, extra_args={"block_while": str(block)})
        standing = asyncio.create_task(last(llm, "standing", blocked))
        await until(lambda: llm.is_stuck)
        block.unlink()
        await standing
        await until(lambda: llm.is_healthy)
        hold.unlink()
        assert (await bound).outputs[0].text == "tea"

    run(folder, scenario, step_timeout=timeout, logits_processors=["blocking_processor:Blocking"])


def test_what_cannot_be_read_fails_and_leaves_nobody_waiting(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        process = llm.input_processor.process

        def spoilt(*args: Any, **options: Any) -> PreparedRequest:
            prepared = process(*args, **options)
            prepared.children[0].params.temperature = -5.0
            return prepared

        engines = engine_processes()
        other = asyncio.create_task(last(llm, "other"))
        await until(lambda: llm.num_unfinished == 1)
        with monkeypatch.context() as patch:
            patch.setattr(llm.input_processor, "process", spoilt)
            with pytest.raises(RequestFailedError, match="could not read the request"):
                await last(llm, "unreadable")
        await other
        waiting = asyncio.create_task(last(llm, "waiting"))
        await until(lambda: llm.stats.num_running == 1)
        assert llm._admission is not None
        with monkeypatch.context() as patch:
            patch.setattr(llm._admission.meter, "observe", lambda outputs: outputs[0])
            with pytest.raises(RequestFailedError, match="could not be read"):
                await waiting
        await last(llm, "afterwards")
        assert engine_processes() == engines

    run(folder, scenario)


@pytest.mark.long
def test_request_that_kills_engines_dies_alone(folder: Path) -> None:
    def deadly(after: int) -> SamplingParams:
        return SamplingParams(max_tokens=200, ignore_eos=True, extra_args={"die_after": after})

    async def main() -> None:
        async with asyncio.timeout(240), running(folder, logits_processors=["deadly_processor:Deadly"]) as llm:
            undisturbed = await last(llm, "undisturbed")
            others = [asyncio.create_task(last(llm, f"other {number}")) for number in range(5)]
            await until(lambda: llm.num_unfinished == 5)
            with pytest.raises(RequestFailedError, match="crashed each time"):
                await last(llm, "poison", deadly(30))
            texts = {output.outputs[0].text for output in await asyncio.gather(*others)}
            assert texts == {undisturbed.outputs[0].text}

            # Another one, and the engine has died too often.
            waiting = asyncio.create_task(llm.wait_until_dead())
            with pytest.raises(EngineDeadError, match="does not come back"):
                await last(llm, "more poison", deadly(0))
            await waiting
            assert not llm.is_healthy
            with pytest.raises(EngineDeadError):
                await last(llm, "too late")

    asyncio.run(main())


def test_shutdown(folder: Path) -> None:
    async def main() -> None:
        async with running(folder) as llm:
            (engine,) = engine_processes()
            request = asyncio.create_task(last(llm, "running"))
            await until(lambda: llm.stats.num_running == 1)
            await llm.shutdown()
            with pytest.raises(EngineDeadError, match="shut down"):
                await request
            assert not engine.is_running()
            assert not llm.is_healthy
            with pytest.raises(EngineDeadError, match="shut down"):
                await last(llm, "late")
            await llm.shutdown()

    asyncio.run(main())


def test_shutdown_while_starting(folder: Path) -> None:
    async def main() -> None:
        llm = AsyncLLM.from_engine_args(model=str(folder), **SETTINGS)
        starting = asyncio.create_task(llm.start())
        await until(lambda: bool(engine_processes()))
        await llm.shutdown()
        with pytest.raises(EngineDeadError, match="shut down"):
            await starting

    asyncio.run(main())
    assert not engine_processes()


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"num_gpu_blocks_override": 3}, ConfigError, "does not fit the cache"),
        ({"model": "./no/such/folder"}, ModelNotFoundError, "no file or folder"),
        ({"logits_processors": ["no.such:Class"]}, ConfigError, "cannot be imported"),
        ({"logits_processors": [int]}, ConfigError, "by name"),
    ],
    ids=["cache", "model", "processor", "class"],
)
def test_wrong_settings(folder: Path, settings: dict[str, Any], error: type[Exception], words: str) -> None:
    async def main() -> None:
        with pytest.raises(error, match=words):
            await AsyncLLM.from_engine_args(**{"model": str(folder), **SETTINGS, **settings}).start()

    asyncio.run(main())


def test_a_grammar_that_cannot_be_followed_is_the_requests_fault(folder: Path) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        for form, word in (
            (StructuredOutputsParams(json={"type": "array", "uniqueItems": True}), "uniqueItems"),
            (StructuredOutputsParams(grammar="root ::= missing"), "missing"),
        ):
            with pytest.raises(InvalidRequestError, match=word):
                await last(llm, word, SamplingParams(max_tokens=5, structured_outputs=form))
        choice = SamplingParams(max_tokens=20, structured_outputs=StructuredOutputsParams(choice=["tea", "milk"]))
        assert (await last(llm, "choice", choice)).outputs[0].text in {"tea", "milk"}

    run(folder, scenario)
