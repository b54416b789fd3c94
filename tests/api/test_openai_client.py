"""The official client works: it, not our reading of the protocol, is the judge."""

import asyncio
from collections.abc import Iterator

import openai
import pytest
from fake_engine import REPLY, FakeEngine
from openai.types.chat import ChatCompletionMessageParam
from running_server import RunningServer, StartServer
from test_connections import until

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake/model"]
    assert client.models.retrieve("fake/model").owned_by == "octavo"


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake/model", prompt="hi", max_tokens=50, logprobs=1)
    assert answer.choices[0].text == REPLY
    assert answer.choices[0].logprobs is not None
    assert answer.usage is not None
    chunks = client.completions.create(model="fake/model", prompt="hi", max_tokens=50, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == REPLY


def test_chats(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="fake/model", messages=HELLO, logprobs=True, top_logprobs=2, extra_body={"top_k": 5}
    )
    assert answer.choices[0].message.content == REPLY
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert bytes(b for token in answer.choices[0].logprobs.content for b in token.bytes or []).decode() == REPLY
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


def test_streamed_chats(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="fake/model", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == REPLY
    assert chunks[-1].usage is not None
    with client.chat.completions.stream(model="fake/model", messages=HELLO) as stream:
        assert stream.get_final_completion().choices[0].message.content == REPLY


def test_errors_have_their_types(client: openai.OpenAI, start_server: StartServer) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="fake/model", prompt="hi", max_tokens=-1)
    assert bad.value.param == "max_tokens"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="hi")
    with pytest.raises(openai.InternalServerError):
        client.completions.create(model="fake/model", prompt="overload")
    with pytest.raises(openai.APIError, match="The step produced NaN"):
        list(client.completions.create(model="fake/model", prompt="fail late", stream=True))
    guarded = start_server(api_key=["right"])
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong").models.list()
    assert list(openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="right").models.list())


def test_many_asynchronous_streams(start_server: StartServer) -> None:
    server = start_server(FakeEngine(step_seconds=0.001))

    async def one(client: openai.AsyncOpenAI, index: int) -> str:
        stream = await client.chat.completions.create(model="fake/model", messages=HELLO, stream=True)
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if index % 4 == 0 and len(text) > 3:
                await stream.close()
                return REPLY
        return text

    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            return await asyncio.gather(*[one(client, index) for index in range(32)])

    assert asyncio.run(run()) == [REPLY] * 32
    until(lambda: server.engine.num_running == 0)
