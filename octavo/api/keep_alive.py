"""Keep-alive comments in idle event streams, because proxies close idle connections."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

COMMENT = b": keep-alive\n\n"


async def kept_alive(events: AsyncGenerator[bytes, None], seconds: float) -> AsyncGenerator[bytes, None]:
    """The events, and a comment whenever none came for ``seconds``. Closing this closes the events.

    As without comments, the next event is awaited only when the last one was sent.
    """
    coming: asyncio.Queue[bytes] = asyncio.Queue(maxsize=1)
    pumping = asyncio.create_task(_pump(events, coming))
    try:
        while not pumping.done() or not coming.empty():
            getting = asyncio.ensure_future(coming.get())
            try:
                while not getting.done() and not pumping.done():
                    await asyncio.wait((getting, pumping), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                    if not getting.done() and not pumping.done():
                        yield COMMENT
                if not getting.done():
                    break
                yield getting.result()
            finally:
                getting.cancel()
            coming.task_done()
        await pumping
    finally:
        pumping.cancel()
        await asyncio.wait((pumping,))


async def _pump(events: AsyncGenerator[bytes, None], coming: asyncio.Queue[bytes]) -> None:
    async with aclosing(events):
        async for event in events:
            await coming.put(event)
            await coming.join()
