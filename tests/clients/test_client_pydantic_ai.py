"""Pydantic AI, over chat completions and over Responses."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel
from scripted_engine import CITY, GREETING, SUM, TOO_LONG, add

pydantic_ai = pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")
models = pytest.importorskip("pydantic_ai.models.openai", reason="pydantic-ai-slim[openai] is not installed")
providers = pytest.importorskip("pydantic_ai.providers.openai")


class City(BaseModel):
    """What a structured answer holds."""

    city: str
    population: int


@pytest.fixture(params=["OpenAIChatModel", "OpenAIResponsesModel"])
def model(request: pytest.FixtureRequest, base_url: str) -> Any:
    provider = providers.OpenAIProvider(base_url=base_url, api_key="none")
    return getattr(models, request.param)("fake/model", provider=provider)


def run(agent: Any, question: str, is_streamed: bool) -> Any:
    """What the agent comes to."""

    async def stream() -> Any:
        async with agent.run_stream(question) as result:
            return await result.get_output()

    async def whole() -> Any:
        return (await agent.run(question)).output

    return asyncio.run(stream() if is_streamed else whole())


@pytest.mark.parametrize("is_streamed", [False, True])
def test_chat(model: Any, is_streamed: bool) -> None:
    assert run(pydantic_ai.Agent(model), "Hi", is_streamed) == GREETING


@pytest.mark.parametrize("is_streamed", [False, True])
def test_tool_loop(model: Any, is_streamed: bool) -> None:
    calls: list[tuple[int, int]] = []

    def counted(a: int, b: int) -> int:
        calls.append((a, b))
        return add(a, b)

    agent = pydantic_ai.Agent(model, tools=[pydantic_ai.Tool(counted, name="add")])
    assert run(agent, "2 + 3?", is_streamed) == SUM
    assert calls == [(2, 3)]


@pytest.mark.parametrize("is_native", [False, True])
def test_structured_output(model: Any, is_native: bool) -> None:
    output = pydantic_ai.NativeOutput(City) if is_native else City
    assert run(pydantic_ai.Agent(model, output_type=output), "A city?", False) == City(**CITY)


def test_forced_calls_then_a_structured_answer(model: Any) -> None:
    """A tool call is required at each step: first the function's, then that of the answer."""
    agent = pydantic_ai.Agent(model, output_type=City, tools=[pydantic_ai.Tool(add)])
    assert run(agent, "2 + 3, and a city?", False) == City(**CITY)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_context_overflow(model: Any, is_streamed: bool) -> None:
    with pytest.raises(pydantic_ai.exceptions.ModelHTTPError, match="maximum context length") as refusal:
        run(pydantic_ai.Agent(model), TOO_LONG, is_streamed)
    assert refusal.value.status_code == 400
    assert refusal.value.body["code"] == "context_length_exceeded"
