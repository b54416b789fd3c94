"""Either kind of model for as long as a scenario lasts, and what scenarios do with it."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psutil
from tiny_llama import SETTINGS

from octavo import LLM, AsyncLLM, RequestOutput, SamplingParams

LONG = SamplingParams(max_tokens=240, ignore_eos=True, seed=1)
SCENARIO_SECONDS = 600
"""After which a scenario is given up; on a busy machine an engine may take a minute to start."""
SLOWING = {"logits_processors": ["blocking_processor:Blocking"]}
"""The setting of an engine whose requests :func:`slowed` slows down."""


@contextmanager
def loaded_llm(folder: Path, **settings: Any) -> Iterator[LLM]:
    """An ``LLM`` of a tiny model."""
    llm = LLM(str(folder), **(SETTINGS | settings))
    try:
        yield llm
    finally:
        llm.shutdown()


@asynccontextmanager
async def running(folder: Path, **settings: Any) -> AsyncIterator[AsyncLLM]:
    llm = AsyncLLM.from_engine_args(model=str(folder), log_level="warning", **(SETTINGS | settings))
    await llm.start()
    try:
        yield llm
    finally:
        await llm.shutdown()


@contextmanager
def slowed(params: SamplingParams = LONG, seconds_per_token: float = 0.02) -> Iterator[SamplingParams]:
    """The same sampling, but slow until the context is left: what a scenario does meanwhile finds requests running.

    The engine needs the setting ``SLOWING`` and the fixture ``importable_in_engines``.
    """
    with tempfile.NamedTemporaryFile() as brake:
        slow = params.clone()
        slow.extra_args = {"slow_while": brake.name, "seconds_per_token": seconds_per_token}
        yield slow


async def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def until_idle(llm: AsyncLLM) -> None:
    """Wait until every request and every block is back."""
    await until(lambda: llm.num_unfinished == 0)
    await until(lambda: llm.stats.num_running == llm.stats.num_waiting == 0 and llm.stats.cache_usage == 0)


async def last(
    llm: AsyncLLM, request_id: str, params: SamplingParams = LONG, prompt: Any = "tea", **options: Any
) -> RequestOutput:
    outputs = [output async for output in llm.generate(prompt, params, request_id, **options)]
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    return outputs[-1]


def engine_processes() -> list[psutil.Process]:
    """Engines that this process started itself; other tests' servers have theirs."""
    return [child for child in psutil.Process().children() if runs_module(child, "octavo.engine.process")]


def runs_module(process: psutil.Process, module: str) -> bool:
    """Whether a process is alive and runs a module; it may end while it is looked at."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and module in process.cmdline()
    except psutil.Error:
        return False


def run(folder: Path, scenario: Callable[[AsyncLLM], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(SCENARIO_SECONDS), running(folder, **settings) as llm:
            await scenario(llm)
            await until_idle(llm)

    asyncio.run(main())
