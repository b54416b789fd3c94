"""An engine process that is started before anybody knows whether it is needed."""

import asyncio
import os

from octavo.config import EngineConfig
from octavo.engine.child import EngineChild
from octavo.engine.state import AS_CONFIGURED


def test_ends_when_its_input_closes() -> None:
    async def main() -> int:
        child = EngineChild()
        child.close_input()
        return await asyncio.wait_for(child.wait(), 180)

    assert asyncio.run(main()) == 0


def test_a_launch_may_come_too_late() -> None:
    """Whoever shuts down while an engine starts closes its input, perhaps before the launch is written."""

    async def main() -> int:
        child = EngineChild()
        child.close_input()
        await child.launch(EngineConfig.from_kwargs(model="m"), [], 1, AS_CONFIGURED)
        os.close(child.reports)
        return await asyncio.wait_for(child.wait(), 180)

    assert asyncio.run(main()) == 0


def test_one_that_is_not_needed_is_killed() -> None:
    with EngineChild() as child:
        assert not child.has_ended
    assert child.has_ended


def test_several_may_wait_for_its_end() -> None:
    async def main() -> list[int]:
        child = EngineChild()
        waiting = [asyncio.create_task(child.wait()) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        child.kill()
        return [status for status in await asyncio.gather(*waiting, return_exceptions=True) if isinstance(status, int)]

    assert asyncio.run(main()) == [-9]
