"""Faults of the device and of the engine's process: clients see a pause, and only the guilty request fails."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))
from test_async_llm import engine_processes, last, until
from tiny_llama import SETTINGS, write_model

from octavo import AsyncLLM, SamplingParams
from octavo.errors import RequestFailedError

ON_GPU: dict[str, Any] = SETTINGS | {"device": "cuda", "log_level": "warning"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def _importable_in_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)


def test_requests_survive_the_engine(folder: Path) -> None:
    async def main() -> None:
        llm = AsyncLLM.from_engine_args(model=str(folder), **ON_GPU)
        await llm.start()
        undisturbed = await last(llm, "undisturbed")
        requests = [asyncio.create_task(last(llm, str(number))) for number in range(4)]
        await until(lambda: llm.stats.num_running == 4)
        engine_processes()[0].kill()
        outputs = await asyncio.gather(*requests)
        assert {output.outputs[0].text for output in outputs} == {undisturbed.outputs[0].text}
        await llm.shutdown()

    asyncio.run(main())


def test_a_request_that_makes_the_device_fail_dies_alone(folder: Path) -> None:
    async def main() -> None:
        llm = AsyncLLM.from_engine_args(model=str(folder), logits_processors=["deadly_processor:Deadly"], **ON_GPU)
        await llm.start()
        undisturbed = await last(llm, "undisturbed")
        others = [asyncio.create_task(last(llm, f"other {number}")) for number in range(3)]
        await until(lambda: llm.num_unfinished == 3)
        poison = SamplingParams(max_tokens=200, ignore_eos=True, extra_args={"fault_after": 20})
        with pytest.raises(RequestFailedError, match="died"):
            await last(llm, "poison", poison)
        assert {output.outputs[0].text for output in await asyncio.gather(*others)} == {undisturbed.outputs[0].text}
        assert llm.is_healthy
        await llm.shutdown()

    asyncio.run(main())
