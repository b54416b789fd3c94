"""The official ``openai`` client."""

import json
from typing import Any

import pytest
from pydantic import BaseModel
from scripted_engine import ADD_SCHEMA, ADD_TOOL, CITY, GREETING, SUM, TOO_LONG, add

openai = pytest.importorskip("openai", reason="openai is not installed")
MODEL = "fake/model"


class City(BaseModel):
    """What a structured answer holds."""

    city: str
    population: int


@pytest.fixture
def client(base_url: str) -> Any:
    return openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)


def ask(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_chat(client: Any) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ask("Hi"))
    assert answer.choices[0].message.content == GREETING
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + len(GREETING)


def test_streamed_chat(client: Any) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=ask("Hi"), stream_options={"include_usage": True}
    ) as stream:
        completion = stream.get_final_completion()
    assert completion.choices[0].message.content == GREETING
    assert completion.usage.completion_tokens == len(GREETING)


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "add"}}])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_tool_loop(client: Any, choice: Any, is_streamed: bool) -> None:
    messages = ask("2 + 3?")
    for tool_choice in (choice, "auto"):
        request = {"model": MODEL, "messages": messages, "tools": [ADD_TOOL], "tool_choice": tool_choice}
        if is_streamed:
            with client.chat.completions.stream(**request) as stream:
                message = stream.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**request).choices[0].message
        if not message.tool_calls:
            break
        messages.append(message)
        for call in message.tool_calls:
            result = add(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    assert message.content == SUM and len(messages) == 3


def test_structured_output(client: Any) -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=ask("A city?"), response_format=City)
    assert answer.choices[0].message.parsed == City(**CITY)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_responses_tool_loop(client: Any, is_streamed: bool) -> None:
    tool = {"type": "function", "name": "add", "parameters": ADD_SCHEMA, "strict": False}
    given: list[Any] = ask("2 + 3?")
    for _ in range(2):
        if is_streamed:
            with client.responses.stream(model=MODEL, input=given, tools=[tool]) as stream:
                for _event in stream:
                    pass
                response = stream.get_final_response()
        else:
            response = client.responses.create(model=MODEL, input=given, tools=[tool])
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            break
        given += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
        for call in calls:
            result = add(**json.loads(call.arguments))
            given.append({"type": "function_call_output", "call_id": call.call_id, "output": str(result)})
    assert response.output_text == SUM and len(given) == 3


def test_responses_structured_output(client: Any) -> None:
    assert client.responses.parse(model=MODEL, input="A city?", text_format=City).output_parsed == City(**CITY)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_context_overflow(client: Any, is_streamed: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=ask(TOO_LONG), stream=is_streamed)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=MODEL, input=TOO_LONG, stream=is_streamed)
    assert caught.value.code == "context_length_exceeded"


def test_completions_and_models(client: Any) -> None:
    assert client.completions.create(model=MODEL, prompt="Hi", max_tokens=100).choices[0].text == GREETING
    assert [model.id for model in client.models.list()] == [MODEL]
