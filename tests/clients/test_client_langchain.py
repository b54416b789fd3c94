"""LangChain, through ``langchain-openai`` and ``langchain-anthropic``."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from scripted_engine import CITY, GREETING, SUM, TOO_LONG, add

langchain_openai = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
langchain_anthropic = pytest.importorskip("langchain_anthropic", reason="langchain-anthropic is not installed")
messages_module = pytest.importorskip("langchain_core.messages")
exceptions = pytest.importorskip("langchain_core.exceptions")
tools_module = pytest.importorskip("langchain_core.tools")


class City(BaseModel):
    """What a structured answer holds."""

    city: str
    population: int


def chat_model(server_url: str, **options: Any) -> Any:
    return langchain_openai.ChatOpenAI(
        model="fake/model", base_url=f"{server_url}/v1", api_key="none", max_retries=0, **options
    )


def responses_model(server_url: str) -> Any:
    return chat_model(server_url, use_responses_api=True)


def anthropic_model(server_url: str) -> Any:
    return langchain_anthropic.ChatAnthropic(
        model="fake/model", base_url=server_url, api_key="none", max_retries=0, max_tokens=1000
    )


@pytest.fixture(params=[chat_model, responses_model, anthropic_model])
def model(request: pytest.FixtureRequest, server_url: str) -> Any:
    make: Callable[[str], Any] = request.param
    return make(server_url)


def ask(model: Any, conversation: Any, is_streamed: bool) -> Any:
    """The answer; a stream's chunks are added up, as LangChain does it."""
    if not is_streamed:
        return model.invoke(conversation)
    whole = None
    for chunk in model.stream(conversation):
        whole = chunk if whole is None else whole + chunk
    return whole


@pytest.mark.parametrize("is_streamed", [False, True])
def test_chat(model: Any, is_streamed: bool) -> None:
    assert ask(model, "Hi", is_streamed).text == GREETING


@pytest.mark.parametrize("choice", ["auto", "any"])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_tool_loop(model: Any, choice: str, is_streamed: bool) -> None:
    tool = tools_module.tool(add)
    messages = [messages_module.HumanMessage("2 + 3?")]
    for tool_choice in (choice, "auto"):
        answer = ask(model.bind_tools([tool], tool_choice=tool_choice), messages, is_streamed)
        if not answer.tool_calls:
            break
        messages += [answer, *[tool.invoke(call) for call in answer.tool_calls]]
    assert answer.text == SUM and len(messages) == 3


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(server_url: str, method: str) -> None:
    answer = chat_model(server_url).with_structured_output(City, method=method).invoke("A city?")
    assert answer == City(**CITY)


def test_context_overflow(model: Any) -> None:
    with pytest.raises(exceptions.ContextOverflowError):
        model.invoke(TOO_LONG)
