"""LiteLLM, as ``hosted_vllm/…``, ``openai/…`` and ``anthropic/…``."""

import json
from typing import Any

import pytest
from pydantic import BaseModel
from scripted_engine import ADD_TOOL, CITY, GREETING, SUM, TOO_LONG, add

litellm = pytest.importorskip("litellm", reason="litellm is not installed")


class City(BaseModel):
    """What a structured answer holds."""

    city: str
    population: int


@pytest.fixture(params=["hosted_vllm", "openai", "anthropic"])
def server(request: pytest.FixtureRequest, server_url: str) -> dict[str, Any]:
    is_openai = request.param != "anthropic"
    return {
        "model": f"{request.param}/fake/model",
        "api_base": f"{server_url}/v1" if is_openai else server_url,
        "api_key": "none",
        "num_retries": 0,
    }


def ask(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_chat(server: dict[str, Any], is_streamed: bool) -> None:
    answer = litellm.completion(**server, messages=ask("Hi"), stream=is_streamed)
    if is_streamed:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in answer) == GREETING
    else:
        assert answer.choices[0].message.content == GREETING


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_tool_loop(server: dict[str, Any], choice: str, is_streamed: bool) -> None:
    messages = ask("2 + 3?")
    for tool_choice in (choice, "auto"):
        request = {**server, "messages": messages, "tools": [ADD_TOOL], "tool_choice": tool_choice}
        answer = litellm.completion(**request, stream=is_streamed)
        if is_streamed:
            answer = litellm.stream_chunk_builder(list(answer), messages=messages)
        message = answer.choices[0].message
        if not message.tool_calls:
            break
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = add(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    assert message.content == SUM and len(messages) == 3


def test_structured_output(server: dict[str, Any]) -> None:
    answer = litellm.completion(**server, messages=ask("A city?"), response_format=City)
    assert json.loads(answer.choices[0].message.content) == CITY


def test_context_overflow(server: dict[str, Any]) -> None:
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**server, messages=ask(TOO_LONG))
