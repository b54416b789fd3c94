"""Faults of the device and of the engine's process: clients see a pause, and only the guilty request fails."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))
from test_async_llm import engine_processes, last, running
from tiny_llama import write_model

from octavo import AsyncLLM, SamplingParams
from octavo.errors import RequestFailedError

ON_GPU: dict[str, Any] = {"device": "cuda", "max_model_len": 512}
LONG = SamplingParams(max_tokens=500, ignore_eos=True, seed=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def _importable_in_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)


async def text_of(llm: AsyncLLM, name: str, has_begun: asyncio.Event | None = None) -> str:
    text = ""
    async for output in llm.generate("tea", LONG, name):
        text = output.outputs[0].text
        if has_begun is not None:
            has_begun.set()
    return text


def test_requests_survive_the_engine(folder: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(300), running(folder, **ON_GPU) as llm:
            undisturbed = await text_of(llm, "undisturbed")
            begun = [asyncio.Event() for _ in range(4)]
            requests = [asyncio.create_task(text_of(llm, f"other {at}", event)) for at, event in enumerate(begun)]
            await asyncio.gather(*(event.wait() for event in begun))
            engine_processes()[0].kill()
            assert not any(request.done() for request in requests)
            assert set(await asyncio.gather(*requests)) == {undisturbed}

    asyncio.run(main())


def test_a_request_that_makes_the_device_fail_dies_alone(folder: Path) -> None:
    async def main() -> None:
        settings = ON_GPU | {"logits_processors": ["deadly_processor:Deadly"]}
        async with asyncio.timeout(300), running(folder, **settings) as llm:
            undisturbed = await text_of(llm, "undisturbed")
            others = [asyncio.create_task(text_of(llm, f"other {number}")) for number in range(3)]
            poison = SamplingParams(max_tokens=200, ignore_eos=True, extra_args={"fault_after": 20})
            with pytest.raises(RequestFailedError, match="crashed each time"):
                await last(llm, "poison", poison)
            assert set(await asyncio.gather(*others)) == {undisturbed}
            assert llm.is_healthy

    asyncio.run(main())
