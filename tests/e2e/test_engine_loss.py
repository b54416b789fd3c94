"""The engine's process is killed; clients see a pause, then the rest: nothing twice, nothing missing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import torch
from openai.types import Completion
from server_process import MODEL, ServerProcess, until, until_async

COUNTING = {"model": MODEL, "prompt": "One, two, three, four,", "max_tokens": 24, "extra_body": {"ignore_eos": True}}
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"seed": 11},
    "another seed": {"seed": 12, "top_p": 0.9},
    "twins": {"seed": 13, "n": 2},
    "scored": {"temperature": 0, "logprobs": 1},
    "whole": {"seed": 14, "stream": False, "extra_body": {"ignore_eos": True, "prompt_logprobs": 1}},
    "penalised": {"temperature": 0, "frequency_penalty": 1.5, "presence_penalty": 0.5},
}

without_a_gpu = pytest.mark.skipif(
    torch.cuda.is_available(),
    reason="runs on a machine without a GPU, which answers before its engine can be killed: "
    "tests/gpu/test_faults_on_gpu.py kills one there",
)


class Reader:
    """Reads one request's answer and notes what came."""

    def __init__(self, client: openai.AsyncOpenAI, changes: dict[str, Any]) -> None:
        self._client = client
        self._body = {**COUNTING, "stream": True, **changes}
        self.texts: dict[int, str] = {}
        self.tokens: dict[int, list[str]] = {}
        self.finish_reasons: dict[int, str] = {}
        self.prompt_logprobs: list[object] = []
        self.num_chunks = 0

    async def read(self) -> None:
        """Read to the end."""
        async for chunk in self._chunks():
            self.num_chunks += 1
            for choice in chunk.choices:
                self.texts[choice.index] = self.texts.get(choice.index, "") + choice.text
                if choice.logprobs is not None:
                    self.tokens.setdefault(choice.index, []).extend(choice.logprobs.tokens or [])
                if prompt_logprobs := (choice.model_extra or {}).get("prompt_logprobs"):
                    self.prompt_logprobs.append(prompt_logprobs)
                if choice.finish_reason is not None:
                    assert choice.index not in self.finish_reasons
                    self.finish_reasons[choice.index] = choice.finish_reason

    async def _chunks(self) -> AsyncIterator[Completion]:
        answer = await self._client.completions.create(**self._body)
        if isinstance(answer, Completion):
            yield answer
            return
        async for chunk in answer:
            yield chunk


def seen(readers: dict[str, Reader]) -> dict[str, tuple[object, ...]]:
    return {
        name: (reader.texts, reader.tokens, reader.finish_reasons, reader.prompt_logprobs)
        for name, reader in readers.items()
    }


async def read_all(server: ServerProcess, names: list[str], kill_after: list[int]) -> dict[str, tuple[object, ...]]:
    """Run requests side by side; kill the engine whenever the first has so many more chunks."""
    async with server.async_client() as client:
        readers = {name: Reader(client, REQUESTS[name]) for name in names}
        reading = [asyncio.create_task(reader.read()) for reader in readers.values()]
        first = readers[names[0]]
        for num_chunks in kill_after:
            target = first.num_chunks + num_chunks
            await until_async(lambda target=target: first.num_chunks >= target)  # type: ignore[misc]
            server.kill_engine()
            if any(task.done() for task in reading):  # This machine was so busy that the answers came first.
                await asyncio.gather(*reading)
                return await read_all(server, names, kill_after)
            await until_async(lambda: server.health == 503)
            assert not any(task.done() for task in reading)
            await until_async(lambda: server.health == 200)
        await asyncio.gather(*reading)
        return seen(readers)


@pytest.mark.long
@without_a_gpu
def test_streams_survive_the_engine(server: ServerProcess) -> None:
    names = list(REQUESTS)
    undisturbed = asyncio.run(read_all(server, names, []))
    assert asyncio.run(read_all(server, names, [8])) == undisturbed
    until(server.is_idle)


@pytest.mark.long
@without_a_gpu
def test_streams_survive_two_engines(server: ServerProcess) -> None:
    names = ["seeded", "greedy"]
    undisturbed = asyncio.run(read_all(server, names, []))
    assert asyncio.run(read_all(server, names, [5, 8])) == undisturbed
    until(server.is_idle)


@pytest.mark.long
def test_requests_that_come_meanwhile_are_answered(server: ServerProcess) -> None:
    server.kill_engine()
    until(lambda: server.health == 503)
    with server.client() as client:
        answer = client.completions.create(model=MODEL, prompt="Hello", max_tokens=2)
    assert answer.choices[0].finish_reason == "length"
    assert server.health == 200
