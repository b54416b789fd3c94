"""A frontend's end of the connection, talking to engines that the test plays."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import zmq
import zmq.asyncio
from engine_requests import as_dicts, engine_request

from octavo.engine import client, messages
from octavo.engine.client import EngineClient
from octavo.errors import EngineDeadError
from octavo.records import EngineInfo, EngineRequest, EngineStats, SamplingParams, StepOutputs

PATIENCE = 60
INFO = EngineInfo(128, 1000, 50, 16, 8, True)
REQUEST = engine_request("r", [1], SamplingParams())


class Engine:
    """One life of an engine."""

    def __init__(self, address: str, generation: int) -> None:
        self.generation = generation
        self.context = zmq.asyncio.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, f"engine-{generation}".encode())
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(address)

    async def say(self, message: messages.FromEngine) -> None:
        await self.socket.send(messages.encode(message))

    async def ready(self) -> messages.ToEngine:
        """Report as loaded; returns what the frontend answers."""
        await self.say(messages.Ready(self.generation, INFO, EngineStats()))
        return await self.hear()

    async def hear_requests(self) -> list[dict[str, object]]:
        message = await self.hear()
        assert isinstance(message, messages.Add)
        return as_dicts(message.all_requests())

    async def hear(self) -> messages.ToEngine:
        return messages.decode_to_engine(await asyncio.wait_for(self.socket.recv(), PATIENCE))

    async def bring(self, token_id: int, generation: int | None = None) -> None:
        outputs = StepOutputs(["r"], [token_id])
        await self.say(messages.OutputBatch(generation or self.generation, outputs, EngineStats()))

    def die(self) -> None:
        self.socket.close(0)
        self.context.term()


class Frontend:
    """A client, and what it was told."""

    def __init__(self, address: str) -> None:
        self.unfinished: list[EngineRequest] = []
        self.tokens: list[int] = []
        self.failures: list[tuple[str, bool]] = []
        self.num_lost = 0
        self.client = EngineClient(
            address,
            on_ready=lambda info, stats: self.unfinished,
            on_batch=self._take,
            on_failed=lambda failed: self.failures.append((failed.error, failed.is_setting)),
            on_lost=self._lose,
        )

    def _take(self, outputs: StepOutputs, stats: EngineStats) -> None:
        if 13 in outputs.token_ids:
            raise RuntimeError("a bug on the way to the user")
        self.tokens += outputs.token_ids

    def _lose(self) -> None:
        self.num_lost += 1

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not holds():  # noqa: ASYNC110 (what is waited for is plain state)
                await asyncio.sleep(0.005)


def play(tmp_path: Path, scenario: Callable[[Frontend, str], Awaitable[None]]) -> None:
    async def main() -> None:
        address = f"ipc://{tmp_path}/engine.sock"
        frontend = Frontend(address)
        frontend.client.start()
        try:
            await scenario(frontend, address)
        finally:
            await frontend.client.close()

    asyncio.run(main())


def test_each_engine_is_given_what_is_unfinished(tmp_path: Path) -> None:
    async def scenario(frontend: Frontend, address: str) -> None:
        client = frontend.client
        await client.add_requests([REQUEST])  # nobody is there: not kept either
        first = Engine(address, 1)
        assert await first.ready() == messages.Add([])
        await client.add_requests([REQUEST])
        assert await first.hear_requests() == as_dicts([REQUEST])
        await client.abort(["r"])
        assert await first.hear() == messages.Abort(["r"])
        first.die()
        await frontend.until(lambda: not client.is_connected)
        frontend.unfinished = [REQUEST]
        second = Engine(address, 2)
        replayed = await second.ready()
        assert isinstance(replayed, messages.Add) and as_dicts(replayed.requests) == as_dicts([REQUEST])
        assert client.is_connected
        second.die()

    play(tmp_path, scenario)


def test_last_words_of_a_dead_engine_are_passed_over(tmp_path: Path) -> None:
    async def scenario(frontend: Frontend, address: str) -> None:
        first = Engine(address, 1)
        await first.ready()
        await first.bring(11)
        await frontend.until(lambda: frontend.tokens == [11])
        first.die()
        second = Engine(address, 2)
        await second.bring(22)  # before it has said that it is there
        await second.ready()
        await second.bring(99, generation=1)
        await second.bring(33)
        await frontend.until(lambda: 33 in frontend.tokens)
        assert frontend.tokens == [11, 33]
        second.die()

    play(tmp_path, scenario)


def test_late_news_of_a_death_does_not_cost_the_successor(tmp_path: Path) -> None:
    async def scenario(frontend: Frontend, address: str) -> None:
        first = Engine(address, 1)
        await first.ready()
        # The event loop is held up while one engine dies and the next one comes.
        first.die()
        second = Engine(address, 2)
        await second.say(messages.Ready(2, INFO, EngineStats()))
        plain = zmq.Socket.shadow(second.socket)
        assert plain.poll(200) == 0
        assert await second.hear() == messages.Add([])
        await frontend.client.add_requests([REQUEST])
        assert await second.hear_requests() == as_dicts([REQUEST])
        assert frontend.client.is_connected
        second.die()

    play(tmp_path, scenario)


def test_calls(tmp_path: Path) -> None:
    async def scenario(frontend: Frontend, address: str) -> None:
        client = frontend.client
        with pytest.raises(EngineDeadError, match="not running"):
            await client.call("reset_prefix_cache")
        engine = Engine(address, 1)
        await engine.ready()
        calls = [asyncio.create_task(client.call("reset_prefix_cache")) for _ in range(3)]
        heard = [await engine.hear() for _ in range(3)]
        ids = [message.call_id for message in heard if isinstance(message, messages.ControlCall)]
        assert len(set(ids)) == 3
        await engine.say(messages.ControlReply(ids[1], False))
        await engine.say(messages.ControlReply(12345, True))
        await engine.say(messages.ControlReply(ids[0], True))
        assert [await calls[0], await calls[1]] == [True, False]
        engine.die()
        with pytest.raises(EngineDeadError, match="before it answered"):
            await calls[2]

    play(tmp_path, scenario)


def test_one_bad_message_does_not_end_the_connection(tmp_path: Path) -> None:
    async def scenario(frontend: Frontend, address: str) -> None:
        engine = Engine(address, 1)
        await engine.ready()
        await engine.bring(13)
        await engine.bring(14)
        await frontend.until(lambda: frontend.tokens == [14])
        assert frontend.num_lost == 1
        call = asyncio.create_task(frontend.client.call("reset_prefix_cache"))
        await engine.hear()
        await engine.socket.send(b"\x93 no message")
        await frontend.until(lambda: frontend.num_lost == 2)
        with pytest.raises(EngineDeadError, match="could not be decoded"):
            await call
        await engine.say(messages.Failed(1, "No such model.", True, True))
        await frontend.until(lambda: frontend.failures == [("No such model.", True)])
        engine.die()

    play(tmp_path, scenario)


def test_others_have_their_turns_while_messages_never_run_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that was held up finds many messages; requests must not wait until it has read the last."""
    monkeypatch.setattr(client, "_MAX_TURN_SECONDS", 0.0)
    num_messages, num_turns = 200, 0

    async def scenario(frontend: Frontend, address: str) -> None:
        nonlocal num_turns
        engine = Engine(address, 1)
        await engine.ready()
        batch = messages.encode(messages.OutputBatch(1, StepOutputs(["r"], [7]), EngineStats()))

        async def at_once() -> list[bytes]:
            if len(frontend.tokens) > num_messages:
                await asyncio.Event().wait()
            return [b"engine-1", batch]

        await engine.bring(5)
        monkeypatch.setattr(frontend.client._socket, "recv_multipart", at_once, raising=False)
        while len(frontend.tokens) <= num_messages:
            await asyncio.sleep(0)
            num_turns += 1
        engine.die()

    play(tmp_path, scenario)
    assert num_turns > num_messages // 4
