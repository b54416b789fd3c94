"""The official ``anthropic`` client."""

from typing import Any

import pytest
from scripted_engine import ADD_SCHEMA, ARGUMENTS, GREETING, SUM, TOO_LONG, add

anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed")
REQUEST: dict[str, Any] = {"model": "fake/model", "max_tokens": 1000}
TOOL = {"name": "add", "description": "Add two numbers.", "input_schema": ADD_SCHEMA}


@pytest.fixture
def client(server_url: str) -> Any:
    return anthropic.Anthropic(base_url=server_url, api_key="none", max_retries=0)


def ask(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_chat(client: Any) -> None:
    message = client.messages.create(**REQUEST, messages=ask("Hi"))
    assert message.content[0].text == GREETING and message.stop_reason == "end_turn"


def test_streamed_chat(client: Any) -> None:
    with client.messages.stream(**REQUEST, messages=ask("Hi")) as stream:
        assert "".join(stream.text_stream) == GREETING


@pytest.mark.parametrize("choice", [{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "add"}])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_tool_loop(client: Any, choice: Any, is_streamed: bool) -> None:
    messages = ask("2 + 3?")
    for tool_choice in (choice, {"type": "auto"}):
        request = {**REQUEST, "messages": messages, "tools": [TOOL], "tool_choice": tool_choice}
        if is_streamed:
            with client.messages.stream(**request) as stream:
                message = stream.get_final_message()
        else:
            message = client.messages.create(**request)
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            break
        assert calls[0].input == ARGUMENTS and message.stop_reason == "tool_use"
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": str(add(**call.input))} for call in calls]
        messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    assert message.content[0].text == SUM and len(messages) == 3


def test_context_overflow(client: Any) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: 1400\d\d tokens > 131072 maximum"):
        client.messages.create(**REQUEST, messages=ask(TOO_LONG))


def test_count_tokens(client: Any) -> None:
    assert client.messages.count_tokens(model="fake/model", messages=ask("Hi")).input_tokens > 2
