"""Whatever the reader's pace: nothing is lost, nothing comes twice."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import RequestFailedError
from octavo.outputs import stream as stream_module
from octavo.outputs.stream import OutputStream
from octavo.records import CompletionOutput, Logprob, RequestOutput


def delta(index: int, token_ids: list[int], finish_reason: str | None, *, is_first: bool) -> RequestOutput:
    text = "".join(map(str, token_ids))
    logprobs = [{token_id: Logprob(-1.0)} for token_id in token_ids]
    completion = CompletionOutput(index, text, token_ids, -1.0, logprobs, finish_reason=finish_reason)
    return RequestOutput("r", None, [1], [None] if is_first else None, [completion], finish_reason is not None)


@settings(max_examples=100)
@given(
    parts=st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 9), min_size=1, max_size=3)), min_size=1),
    pauses=st.lists(st.integers(0, 3), min_size=40, max_size=40),
)
def test_deltas_add_up(parts: list[tuple[int, list[int]]], pauses: list[int]) -> None:
    async def scenario() -> list[RequestOutput]:
        outputs: list[RequestOutput] = []
        stream = OutputStream(is_delta=True)

        async def write() -> None:
            for number, (index, token_ids) in enumerate(parts):
                reason = "length" if number == len(parts) - 1 else None
                stream.put(delta(index, token_ids, reason, is_first=number == 0))
                for _ in range(pauses[number % len(pauses)]):
                    await asyncio.sleep(0)

        writer = asyncio.create_task(write())
        while not outputs or not outputs[-1].finished:
            output = await stream.get()
            await asyncio.sleep(0)
            outputs.append(output)
        await writer
        return outputs

    outputs = asyncio.run(scenario())
    assert [output.prompt_logprobs for output in outputs] == [[None]] + [None] * (len(outputs) - 1)
    for index in range(3):
        expected = [token_id for number, token_ids in parts if number == index for token_id in token_ids]
        found = [completion for output in outputs for completion in output.outputs if completion.index == index]
        assert [token_id for completion in found for token_id in completion.token_ids] == expected
        assert "".join(completion.text for completion in found) == "".join(map(str, expected))
        assert [next(iter(entry)) for completion in found for entry in completion.logprobs or []] == expected
    assert all(len({c.index for c in output.outputs}) == len(output.outputs) for output in outputs)


def test_of_outputs_that_say_everything_the_last_one_counts() -> None:
    async def scenario() -> None:
        stream = OutputStream(is_delta=False)
        stream.put(delta(0, [1], None, is_first=True))
        last = delta(0, [1, 2], "length", is_first=False)
        stream.put(last)
        assert await stream.get() is last

    asyncio.run(scenario())


def test_an_error_comes_after_what_was_there_before_it() -> None:
    async def scenario() -> None:
        stream = OutputStream(is_delta=True)
        waiting = asyncio.create_task(stream.get())
        await asyncio.sleep(0)
        stream.put(delta(0, [1], None, is_first=True))
        assert (await waiting).outputs[0].token_ids == [1]
        stream.put(delta(0, [2], None, is_first=False))
        stream.fail(RuntimeError("first"))
        stream.fail(RuntimeError("second"))
        assert (await stream.get()).outputs[0].token_ids == [2]
        with pytest.raises(RuntimeError, match="first"):
            await stream.get()

    asyncio.run(scenario())


def test_only_a_reader_that_waits_is_passed_over() -> None:
    async def scenario() -> None:
        taken: list[int] = []

        def take_text(index: int, token_id: int, text: str) -> bool:
            taken.append(token_id)
            return token_id != 5

        stream = OutputStream(is_delta=True, take_text=take_text)
        assert not stream.relay(0, 1, "1")  # nobody waits yet
        stream.put(delta(0, [1], None, is_first=True))
        await stream.get()
        assert not stream.relay(0, 2, "2")  # the reader is busy with the first
        waiting = asyncio.create_task(stream.get())
        await asyncio.sleep(0)
        assert stream.relay(0, 3, "3")
        assert stream.relay(0, 4, "4")
        assert not stream.relay(0, 5, "5")  # not taken: it goes to the reader
        stream.put(delta(0, [5], None, is_first=False))
        assert not stream.relay(0, 6, "6")  # who has not seen it yet
        assert (await waiting).outputs[0].token_ids == [5]
        assert taken == [3, 4, 5]

    asyncio.run(scenario())


def test_a_taker_that_fails_ends_its_stream() -> None:
    async def scenario() -> None:
        def take_text(index: int, token_id: int, text: str) -> bool:
            raise RuntimeError("cannot be written")

        stream = OutputStream(is_delta=True, take_text=take_text)
        waiting = asyncio.create_task(stream.get())
        await asyncio.sleep(0)
        assert stream.relay(0, 1, "1")
        with pytest.raises(RuntimeError, match="cannot be written"):
            await waiting

    asyncio.run(scenario())


def test_a_reader_too_far_behind_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MAX_BACKLOG", 200)

    async def scenario() -> None:
        stream = OutputStream(is_delta=True)
        # Each token comes with one log-probability, which counts as well.
        assert all(stream.put(delta(0, [number], None, is_first=False)) for number in range(100))
        assert (await stream.get()).outputs[0].token_ids == list(range(100))
        assert all(stream.put(delta(0, [number], None, is_first=False)) for number in range(100))
        assert not stream.put(delta(0, [100], None, is_first=False))
        assert not stream.put(delta(0, [101], "length", is_first=False))
        with pytest.raises(RequestFailedError, match="too slowly"):
            await stream.get()

    asyncio.run(scenario())
