"""Chats of a given form on a real model, and searches, through the official client."""

from typing import Any

import openai
import pytest
from pydantic import BaseModel, Field
from server_process import MODEL, ServerProcess

HELLO: list[Any] = [{"role": "user", "content": "Describe a small red car."}]


class Car(BaseModel):
    """A car."""

    colour: str = Field(max_length=10)
    doors: int = Field(ge=0, le=9)


@pytest.mark.long
def test_parsed_answers_whole_and_streamed(server: ServerProcess) -> None:
    client = server.client()
    options: dict[str, Any] = {"model": MODEL, "messages": HELLO, "response_format": Car, "temperature": 0.0}
    whole = client.chat.completions.parse(**options, max_completion_tokens=60)
    assert isinstance(whole.choices[0].message.parsed, Car)
    with client.chat.completions.stream(**options, max_completion_tokens=60) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == whole.choices[0].message.parsed


def test_a_call_that_must_be_made(server: ServerProcess) -> None:
    answer = server.client().chat.completions.parse(
        model=MODEL,
        messages=HELLO,
        tools=[openai.pydantic_function_tool(Car)],
        tool_choice={"type": "function", "function": {"name": "Car"}},
        temperature=0.0,
        max_completion_tokens=60,
    )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None and isinstance(calls[0].function.parsed_arguments, Car)


def test_a_search_finds_likelier_texts_than_greedy_decoding(server: ServerProcess) -> None:
    client = server.client()
    options: dict[str, Any] = {"model": MODEL, "prompt": "The capital of France", "max_tokens": 6, "logprobs": 0}
    greedy = client.completions.create(**options, temperature=0.0, extra_body={"ignore_eos": True})
    search = {"use_beam_search": True, "ignore_eos": True, "length_penalty": 0.0}
    found = client.completions.create(**options, n=4, extra_body=search)
    sums = [sum(choice.logprobs.token_logprobs) for choice in (*found.choices, *greedy.choices)]  # type: ignore[union-attr, arg-type, misc]
    assert sums[:4] == sorted(sums[:4], reverse=True)
    assert sums[0] >= sums[4] - 1e-3
    assert len({choice.text for choice in found.choices}) == 4


def test_a_text_that_goes_round_in_circles_ends(server: ServerProcess) -> None:
    answer = server.client().completions.create(
        model=MODEL,
        prompt="a",
        max_tokens=50,
        temperature=0.0,
        extra_body={
            "allowed_token_ids": [11],
            "repetition_detection": {"max_pattern_size": 2, "min_count": 5},
        },
    )
    assert answer.choices[0].finish_reason == "repetition"  # type: ignore[comparison-overlap]
    assert answer.usage is not None and answer.usage.completion_tokens == 5
