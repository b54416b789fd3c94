"""Share a server between users: a busy user does not starve a quiet one.

``examples/deploy/server.yaml`` sets ``fair-share: user`` and runs few requests at a time, so that a queue builds up.
"""

import asyncio
import time

from _connection import API_KEY, MODEL, URL
from openai import AsyncOpenAI


async def ask(client: AsyncOpenAI, user: str) -> tuple[str, float]:
    """Send one request in the name of a user; returns who, and when the answer was complete."""
    await client.completions.create(
        model=MODEL, prompt="Once upon a time", max_tokens=16, extra_body={"user": user, "ignore_eos": True}
    )
    return user, time.perf_counter()


async def main() -> None:
    """Twelve requests of one user, then one of another, which overtakes most of them."""
    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key=API_KEY) as client:
        busy = [asyncio.create_task(ask(client, "busy")) for _ in range(12)]
        await asyncio.sleep(0.1)
        quiet = asyncio.create_task(ask(client, "quiet"))
        finished = sorted(await asyncio.gather(*busy, quiet), key=lambda answer: answer[1])
    print([user for user, _ in finished])


if __name__ == "__main__":
    asyncio.run(main())
