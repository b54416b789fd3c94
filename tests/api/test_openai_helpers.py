"""The official client's helpers: parsed answers, events of streams, functions made from models, both clients."""

import asyncio
import json
from typing import Any

import openai
import pytest
from fake_engine import REPLY, FakeEngine
from pydantic import BaseModel
from running_server import RunningServer, StartServer

MODEL = "fake/model"
HELLO: list[Any] = [{"role": "user", "content": "hi"}]


class Weather(BaseModel):
    """How the weather is."""

    city: str
    degrees: int


BERN = '{"city": "Bern", "degrees": 7}'
CALLS = json.dumps([{"name": "Weather", "parameters": json.loads(BERN)}])


def client_of(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def async_client_of(server: RunningServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def forecaster(start_server: StartServer) -> RunningServer:
    return start_server(FakeEngine(reply=BERN))


@pytest.fixture
def caller(start_server: StartServer) -> RunningServer:
    return start_server(FakeEngine(reply=CALLS))


def test_an_answer_becomes_an_object(forecaster: RunningServer) -> None:
    answer = client_of(forecaster).chat.completions.parse(model=MODEL, messages=HELLO, response_format=Weather)
    assert answer.choices[0].message.parsed == Weather(city="Bern", degrees=7)
    assert answer.choices[0].message.refusal is None
    constraint = forecaster.engine.calls[-1]["params"].structured_outputs
    assert set(constraint.json["properties"]) == {"city", "degrees"}


def test_a_stream_becomes_an_object(forecaster: RunningServer) -> None:
    with client_of(forecaster).chat.completions.stream(
        model=MODEL, messages=HELLO, response_format=Weather, stream_options={"include_usage": True}
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert kinds.count("content.done") == 1 and "content.delta" in kinds
    assert final.choices[0].message.parsed == Weather(city="Bern", degrees=7)
    assert final.usage is not None and final.usage.completion_tokens == len(BERN)


def test_an_answer_that_breaks_off_is_told(forecaster: RunningServer) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client_of(forecaster).chat.completions.parse(
            model=MODEL, messages=HELLO, response_format=Weather, max_completion_tokens=5
        )


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "Weather"}}])
def test_calls_become_objects(start_server: StartServer, choice: Any) -> None:
    server = start_server(FakeEngine(reply=CALLS if choice == "required" else BERN))
    tools = [openai.pydantic_function_tool(Weather)]
    answer = client_of(server).chat.completions.parse(model=MODEL, messages=HELLO, tools=tools, tool_choice=choice)
    calls = answer.choices[0].message.tool_calls
    assert calls is not None and len(calls) == 1
    assert calls[0].function.name == "Weather"
    assert calls[0].function.parsed_arguments == Weather(city="Bern", degrees=7)


def test_streamed_calls_become_objects(caller: RunningServer) -> None:
    tools = [openai.pydantic_function_tool(Weather)]
    with client_of(caller).chat.completions.stream(
        model=MODEL, messages=HELLO, tools=tools, tool_choice="required"
    ) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion()
    assert [event.name for event in done] == ["Weather"]
    assert done[0].parsed_arguments == Weather(city="Bern", degrees=7)
    calls = final.choices[0].message.tool_calls
    assert calls is not None and calls[0].function.parsed_arguments == Weather(city="Bern", degrees=7)
    assert final.choices[0].finish_reason == "tool_calls"


def test_events_tell_log_probabilities(start_server: StartServer) -> None:
    server = start_server(FakeEngine(reply="abc"))
    with client_of(server).chat.completions.stream(
        model=MODEL, messages=HELLO, logprobs=True, top_logprobs=2
    ) as stream:
        done = [event for event in stream if event.type == "logprobs.content.done"]
        final = stream.get_final_completion()
    assert [token.token for token in done[0].content] == ["a", "b", "c"]
    logprobs = final.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert all(len(token.top_logprobs) == 2 for token in logprobs.content)


def test_the_asynchronous_client_does_the_same(forecaster: RunningServer) -> None:
    async def run() -> None:
        async with async_client_of(forecaster) as client:
            assert [model.id async for model in client.models.list()] == [MODEL]
            assert (await client.models.retrieve(MODEL)).id == MODEL
            answer = await client.chat.completions.parse(model=MODEL, messages=HELLO, response_format=Weather)
            assert answer.choices[0].message.parsed == Weather(city="Bern", degrees=7)
            async with client.chat.completions.stream(model=MODEL, messages=HELLO, response_format=Weather) as stream:
                final = await stream.get_final_completion()
            assert final.choices[0].message.parsed == Weather(city="Bern", degrees=7)
            text = await client.completions.create(model=MODEL, prompt=["hi", "ho"], max_tokens=30)
            assert [choice.text for choice in text.choices] == [BERN[:30]] * 2
            pieces = await client.completions.create(model=MODEL, prompt="hi", max_tokens=30, stream=True)
            assert "".join([chunk.choices[0].text async for chunk in pieces]) == BERN[:30]
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(model=MODEL, messages=[])

    asyncio.run(run())


def test_raw_and_streaming_responses(start_server: StartServer) -> None:
    server = start_server(enable_request_id_headers=True)
    client = client_of(server)
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=HELLO, extra_headers={"X-Request-Id": "mine"}
    )
    assert raw.headers["x-request-id"] == "mine"
    answer = raw.parse()
    assert answer.id == "chatcmpl-mine" and answer._request_id == "mine"
    assert answer.system_fingerprint is not None
    with client.chat.completions.with_streaming_response.create(model=MODEL, messages=HELLO, stream=True) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert list(response.iter_lines())[-2:] == ["data: [DONE]", ""]


def test_every_argument_that_the_client_has_is_understood(start_server: StartServer) -> None:
    client = client_of(start_server())
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "be brief"}], "name": "dev"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "done"},
            {"role": "user", "content": "go on", "name": "ann"},
        ],
        frequency_penalty=0.1,
        logit_bias={"5": -100},
        logprobs=True,
        top_logprobs=1,
        max_completion_tokens=50,
        metadata={"a": "b"},
        modalities=["text"],
        n=2,
        parallel_tool_calls=True,
        prediction={"type": "content", "content": "x"},
        presence_penalty=0.1,
        prompt_cache_key="k",
        reasoning_effort="low",
        response_format={"type": "text"},
        safety_identifier="s",
        seed=7,
        service_tier="auto",
        stop=["never"],
        store=False,
        temperature=0.5,
        tool_choice="auto",
        tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        top_p=0.9,
        user="u",
        verbosity="low",
    )
    assert [choice.message.content for choice in answer.choices] == [REPLY] * 2
