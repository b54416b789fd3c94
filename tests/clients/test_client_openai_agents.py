"""The OpenAI Agents SDK, over chat completions and over Responses."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel
from scripted_engine import CITY, GREETING, SUM, TOO_LONG, add

agents = pytest.importorskip("agents", reason="openai-agents is not installed")
openai = pytest.importorskip("openai")


class City(BaseModel):
    """What a structured answer holds."""

    city: str
    population: int


@pytest.fixture(params=["OpenAIChatCompletionsModel", "OpenAIResponsesModel"])
def model(request: pytest.FixtureRequest, base_url: str) -> Any:
    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
    return getattr(agents, request.param)(model="fake/model", openai_client=client)


def run(agent: Any, question: str, is_streamed: bool) -> Any:
    """What the agent comes to."""

    async def stream() -> Any:
        result = agents.Runner.run_streamed(agent, question)
        async for _ in result.stream_events():
            pass
        return result.final_output

    async def whole() -> Any:
        return (await agents.Runner.run(agent, question)).final_output

    return asyncio.run(stream() if is_streamed else whole())


@pytest.mark.parametrize("is_streamed", [False, True])
def test_chat(model: Any, is_streamed: bool) -> None:
    assert run(agents.Agent(name="greeter", model=model), "Hi", is_streamed) == GREETING


@pytest.mark.parametrize("choice", ["auto", "required", "add"])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_tool_loop(model: Any, choice: str, is_streamed: bool) -> None:
    agent = agents.Agent(
        name="calculator",
        model=model,
        tools=[agents.function_tool(add)],
        model_settings=agents.ModelSettings(tool_choice=choice),
    )
    assert run(agent, "2 + 3?", is_streamed) == SUM


def test_structured_output(model: Any) -> None:
    assert run(agents.Agent(name="geographer", model=model, output_type=City), "A city?", False) == City(**CITY)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_context_overflow(model: Any, is_streamed: bool) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        run(agents.Agent(name="reader", model=model), TOO_LONG, is_streamed)
    assert refusal.value.code == "context_length_exceeded"
