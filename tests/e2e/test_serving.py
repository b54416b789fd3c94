"""Many requests at once, through the official clients."""

import asyncio
import random
from typing import Any

import openai
import pytest
from server_process import MODEL, ServerProcess, until

WORDS = (
    "the sea",
    "a small",
    "red boat",
    "sailed",
    "on",
    "under",
    "one bright",
    "moon",
    "and old",
    "stories",
    "of far lands",
)


def prompt_of(number: int) -> str:
    rng = random.Random(number)
    return " ".join(rng.choices(WORDS, k=rng.randint(3, 60)))


async def text_of(client: openai.AsyncOpenAI, **body: Any) -> list[str]:
    """The texts of a completion, by index, streamed or not."""
    texts: dict[int, str] = {}
    answer = await client.completions.create(model=MODEL, **body)
    if not body.get("stream"):
        return [choice.text for choice in answer.choices]
    async for chunk in answer:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    return [texts[index] for index in sorted(texts)]


@pytest.mark.long
def test_one_seed_gives_one_text_whatever_else_runs(server: ServerProcess) -> None:
    seeded = {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 1.0, "seed": 7}
    twins = {"prompt": "My favourite food is", "max_tokens": 10, "n": 2, "seed": 3, "logprobs": 2, "temperature": 1.0}

    def others(number: int) -> dict[str, Any]:
        body: dict[str, Any] = {"prompt": prompt_of(number), "max_tokens": 2 + number % 11, "seed": number}
        if number % 2:
            body["stream"] = True
        if number % 3 == 0:
            body["logprobs"] = number % 5
        if number % 4 == 0:
            body["stop"] = [" the", "\n"]
        if number % 5 == 0:
            body["n"] = 2
        if number % 7 == 0:
            body["temperature"] = 0
            body["n"] = 1
        return body

    async def run() -> None:
        async with server.async_client() as client:
            alone = await text_of(client, **seeded)
            twins_alone = await text_of(client, **twins)
            crowd = [text_of(client, **others(number)) for number in range(14)]
            mine = [
                text_of(client, **seeded),
                text_of(client, **seeded, stream=True),
                text_of(client, **twins),
                text_of(client, **twins, stream=True),
            ]
            *texts, again, streamed, twins_again, twins_streamed = await asyncio.gather(*crowd, *mine)
            assert again == streamed == alone
            assert twins_again == twins_streamed == twins_alone
            assert twins_alone[0] != twins_alone[1]
            for number, completions in enumerate(texts):
                assert len(completions) == others(number).get("n", 1)
                if number % 4 == 0:
                    assert not any(" the" in text or "\n" in text for text in completions)

    asyncio.run(run())
    until(server.is_idle)


def test_synchronous_client_chats(server: ServerProcess) -> None:
    with server.client() as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        question = [{"role": "user", "content": "What is the capital of France?"}]
        answer = client.chat.completions.create(model=MODEL, messages=question, max_tokens=12, temperature=0)
        assert "Paris" in (answer.choices[0].message.content or "")
        chunks = client.chat.completions.create(
            model=MODEL,
            messages=question,
            max_tokens=12,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        text = ""
        for chunk in chunks:
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            usage = chunk.usage
        assert text == answer.choices[0].message.content
        assert usage is not None and answer.usage is not None
        assert usage.completion_tokens == answer.usage.completion_tokens
        # The prompt was computed a moment ago: all its whole blocks are still there.
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == (usage.prompt_tokens - 1) // 16 * 16


def test_logprobs_and_echo_agree_with_each_other(server: ServerProcess) -> None:
    with server.client() as client:
        answer = client.completions.create(
            model=MODEL, prompt="The sky is", max_tokens=4, temperature=0, logprobs=2, echo=True
        )
    (choice,) = answer.choices
    assert choice.text.startswith("The sky is")
    logprobs = choice.logprobs
    assert logprobs is not None and logprobs.tokens is not None and logprobs.token_logprobs is not None
    assert "".join(logprobs.tokens) == choice.text
    assert logprobs.token_logprobs[0] is None
    assert all(value is not None and value <= 0 for value in logprobs.token_logprobs[1:])
    assert len(logprobs.tokens) == answer.usage.total_tokens if answer.usage else False


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"prompt": "word " * 600}, 400, "512"),
        ({"prompt": [1, 2, 10**6]}, 400, "1000000"),
        ({"prompt": [-1]}, 400, "-1"),
        ({"prompt": ""}, 400, "empty"),
        ({"n": 10**9}, 400, "n"),
        ({"logprobs": 10**9}, 400, "logprobs"),
        ({"prompt_logprobs": 10**9}, 400, "prompt_logprobs"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": -5}, 400, "max_tokens"),
        ({"temperature": -1}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"stop": ["x"] * 10_000}, 400, "stop"),
        ({"logit_bias": {"999999": 1}}, 400, "logit_bias"),
        ({"allowed_token_ids": [10**6]}, 400, "allowed_token_ids"),
        ({"bad_words": [""]}, 400, "bad_words"),
        ({"min_tokens": 600, "max_tokens": None}, 400, "min_tokens"),
        ({"cache_salt": "s" * 100_000}, 400, "cache_salt"),
        ({"seed": 1 << 70}, 400, "seed"),
        ({"model": "other"}, 404, "other"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_bad_requests_are_told_why(server: ServerProcess, change: dict[str, Any], status: int, words: str) -> None:
    answer = server.http.post("/v1/completions", json={"model": MODEL, "prompt": "Hi", "max_tokens": 3, **change})
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]


def test_bad_requests_do_not_disturb_others(server: ServerProcess) -> None:
    bad: list[dict[str, Any]] = [{"n": 10**9}, {"logprobs": 10**9}, {"prompt": [10**6]}, {"prompt": "word " * 600}]

    async def run() -> None:
        async with server.async_client() as client:
            undisturbed = await text_of(client, prompt="Water boils", max_tokens=16, seed=1)
            stream = asyncio.create_task(text_of(client, prompt="Water boils", max_tokens=16, seed=1, stream=True))
            while not stream.done():
                for change in bad:
                    with pytest.raises(openai.BadRequestError):
                        await client.completions.create(**{"model": MODEL, "prompt": "Hi", "max_tokens": 3, **change})
            assert await stream == undisturbed

    asyncio.run(run())


def test_prompt_that_fills_the_context(server: ServerProcess) -> None:
    body = {"model": MODEL, "temperature": 0}
    answer = server.http.post("/v1/completions", json={**body, "prompt": [5] * 511, "max_tokens": 1})
    assert answer.json()["usage"]["completion_tokens"] == 1
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    for num_prompt, max_tokens in ((511, 2), (512, 1)):
        answer = server.http.post(
            "/v1/completions", json={**body, "prompt": [5] * num_prompt, "max_tokens": max_tokens}
        )
        assert answer.status_code == 400
        assert "512" in answer.json()["error"]["message"]
