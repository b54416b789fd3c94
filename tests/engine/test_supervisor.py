"""What the supervisor takes from one engine to the next; ``tests/test_engine_restarts.py`` has real ones."""

import asyncio

import msgspec

from octavo.config import EngineConfig
from octavo.engine.state import AS_CONFIGURED, EngineState
from octavo.engine.supervisor import Supervisor


def test_the_last_whole_report_counts() -> None:
    async def follow(data: bytes) -> EngineState:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        supervisor = Supervisor(EngineConfig.from_kwargs(model="m"), [])
        await supervisor._follow(reader)
        state, nothing = supervisor._state, asyncio.StreamReader()
        nothing.feed_eof()
        await supervisor._follow(nothing)
        assert supervisor._state == state, "one that reports nothing is as it was started"
        return state

    paused, asleep = EngineState(is_paused=True), EngineState(is_paused=True, sleep_level=2, num_blocks=9)
    lines = [msgspec.json.encode(state) + b"\n" for state in (paused, asleep)]
    assert asyncio.run(follow(b"")) == AS_CONFIGURED
    assert asyncio.run(follow(b"".join(lines))) == asleep
    for length in range(len(lines[1])):
        assert asyncio.run(follow(lines[0] + lines[1][:length])) == paused
