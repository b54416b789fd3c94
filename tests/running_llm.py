"""Either kind of model for as long as a scenario lasts, and what scenarios do with it."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from tiny_llama import SETTINGS

from octavo import LLM, AsyncLLM, RequestOutput, SamplingParams

LONG = SamplingParams(max_tokens=240, ignore_eos=True, seed=1)


@contextmanager
def loaded_llm(folder: Path, **settings: Any) -> Iterator[LLM]:
    """An ``LLM`` of a tiny model; this process has its number of threads back afterwards."""
    num_threads = torch.get_num_threads()
    llm = LLM(str(folder), **(SETTINGS | settings))
    try:
        yield llm
    finally:
        llm.shutdown()
        torch.set_num_threads(num_threads)


@asynccontextmanager
async def running(folder: Path, **settings: Any) -> AsyncIterator[AsyncLLM]:
    llm = AsyncLLM.from_engine_args(model=str(folder), log_level="warning", **(SETTINGS | settings))
    await llm.start()
    try:
        yield llm
    finally:
        await llm.shutdown()


async def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
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
    children = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in children if "octavo.engine.process" in child.cmdline()]


def run(folder: Path, scenario: Callable[[AsyncLLM], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(120), running(folder, **settings) as llm:
            await scenario(llm)
            await until_idle(llm)

    asyncio.run(main())
