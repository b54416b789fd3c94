"""The asynchronous face: how engines start, stand still and end. Requests: ``test_async_llm_requests.py``."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from running_llm import SCENARIO_SECONDS, SLOWING, engine_processes, last, run, running, slowed, until
from tiny_llama import SETTINGS, write_model

from octavo import AsyncLLM, SamplingParams, StructuredOutputsParams
from octavo.errors import (
    ConfigError,
    EngineDeadError,
    ModelNotFoundError,
    OverloadedError,
    RequestFailedError,
)

pytestmark = pytest.mark.usefixtures("importable_in_engines")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.mark.long
def test_too_many_requests_are_turned_away(folder: Path) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        with slowed() as params:
            taken = [asyncio.create_task(last(llm, str(number), params)) for number in range(5)]
            await until(lambda: llm.num_unfinished == 5)
            with pytest.raises(OverloadedError, match="5 requests"):
                await last(llm, "one too many")
        await asyncio.gather(*taken)
        await last(llm, "now there is room", SamplingParams(max_tokens=1))

    run(folder, scenario, max_num_seqs=2, max_num_waiting=3, **SLOWING)


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
            async with asyncio.timeout(SCENARIO_SECONDS), running(folder):
                pass

    next_start_fails.touch()
    asyncio.run(main())
    assert not next_start_fails.exists() and not engine_processes()


@pytest.mark.long
def test_an_engine_that_cannot_start_again_yet_is_tried_once_more(folder: Path, next_start_fails: Path) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        with slowed() as params:
            request = asyncio.create_task(last(llm, "request", params))
            await until(lambda: llm.stats.num_running == 1)
            await asyncio.to_thread(next_start_fails.touch)
            engine_processes()[0].kill()
            await until(lambda: not llm.is_healthy)
        assert (await request).outputs[0].finish_reason == "length"

    run(folder, scenario, **SLOWING)
    assert not next_start_fails.exists()


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


@pytest.mark.long
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
        await asyncio.sleep(2 * timeout)
        # For a moment it may look stuck if this machine is so busy that its reports come late.
        await until(lambda: llm.is_healthy)
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


@pytest.mark.long
def test_request_that_kills_engines_dies_alone(folder: Path) -> None:
    def deadly(after: int) -> SamplingParams:
        return SamplingParams(max_tokens=200, ignore_eos=True, extra_args={"die_after": after})

    async def main() -> None:
        async with (
            asyncio.timeout(SCENARIO_SECONDS),
            running(folder, logits_processors=["deadly_processor:Deadly"]) as llm,
        ):
            undisturbed = await last(llm, "undisturbed")
            others = [asyncio.create_task(last(llm, f"other {number}")) for number in range(5)]
            with pytest.raises(RequestFailedError, match="crashed each time"):
                await last(llm, "poison", deadly(30))
            texts = {output.outputs[0].text for output in await asyncio.gather(*others)}
            assert texts == {undisturbed.outputs[0].text}

            # Another one, and the engine has died too often.
            waiting = asyncio.create_task(llm.wait_until_dead())
            with pytest.raises(EngineDeadError, match="will not be restarted"):
                await last(llm, "more poison", deadly(0))
            await waiting
            assert not llm.is_healthy
            with pytest.raises(EngineDeadError):
                await last(llm, "too late")

    asyncio.run(main())


def test_shutdown(folder: Path) -> None:
    async def main() -> None:
        async with running(folder, **SLOWING) as llm:
            (engine,) = engine_processes()
            with slowed() as params:
                request = asyncio.create_task(last(llm, "running", params))
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
