"""Serve urgent requests first: lower values of ``priority`` run first.

The server needs ``--scheduling-policy priority``, as ``examples/deploy/server.yaml`` has it.
"""

import asyncio
import time

from _connection import API_KEY, MODEL, URL
from openai import AsyncOpenAI


async def ask(client: AsyncOpenAI, priority: int) -> tuple[int, float]:
    """Send one request; returns its priority, and when the answer was complete."""
    await client.completions.create(
        model=MODEL, prompt="Once upon a time", max_tokens=16, extra_body={"priority": priority, "ignore_eos": True}
    )
    return priority, time.perf_counter()


async def main() -> None:
    """Ten requests that can wait, then two urgent ones, which overtake those still in the queue."""
    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key=API_KEY) as client:
        patient = [asyncio.create_task(ask(client, 5)) for _ in range(10)]
        await asyncio.sleep(0.1)
        urgent = [asyncio.create_task(ask(client, 0)) for _ in range(2)]
        finished = sorted(await asyncio.gather(*patient, *urgent), key=lambda answer: answer[1])
    print([priority for priority, _ in finished])


if __name__ == "__main__":
    asyncio.run(main())
