"""Stream several completions at once with asyncio; the engine runs in a process of its own."""

import asyncio

from octavo import AsyncLLM, RequestOutputKind, SamplingParams


async def stream(llm: AsyncLLM, prompt: str) -> str:
    """Print each new piece of one completion as it arrives; returns the whole text."""
    params = SamplingParams(temperature=0.0, max_tokens=12, output_kind=RequestOutputKind.DELTA)
    text = ""
    async for output in llm.generate(prompt, params, request_id=prompt):
        piece = output.outputs[0].text
        print(f"{prompt!r}: {piece!r}")
        text += piece
    return text


async def main() -> None:
    """Run three streams side by side in one batch."""
    llm = AsyncLLM.from_engine_args(model="bundled:smollm2")
    await llm.start()
    try:
        texts = await asyncio.gather(*(stream(llm, prompt) for prompt in ("Once upon a time", "1, 2, 3,", "A, B, C,")))
        print(texts)
    finally:
        await llm.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
