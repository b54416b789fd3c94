"""The Responses API on a real model, through the official client."""

import json

import pytest
from pydantic import BaseModel
from server_process import MODEL, ServerProcess, until


def test_streamed_and_stored_answers_are_the_whole_ones(server: ServerProcess) -> None:
    client = server.client()
    options = {"model": MODEL, "temperature": 0.0, "max_output_tokens": 12}
    whole = client.responses.create(input="Name a colour.", **options)  # type: ignore[call-overload]
    with client.responses.stream(input="Name a colour.", **options) as events:  # type: ignore[arg-type]
        streamed = [event for event in events if event.type == "response.output_text.delta"]
    assert "".join(event.delta for event in streamed) == whole.output_text != ""
    assert client.responses.retrieve(whole.id).output_text == whole.output_text
    more = client.responses.create(input="And another?", previous_response_id=whole.id, **options)  # type: ignore[call-overload]
    by_hand = client.responses.create(  # type: ignore[call-overload]
        input=[
            {"role": "user", "content": "Name a colour."},
            {"role": "assistant", "content": whole.output_text},
            {"role": "user", "content": "And another?"},
        ],
        **options,
    )
    assert more.output_text == by_hand.output_text
    assert more.usage.input_tokens == by_hand.usage.input_tokens > whole.usage.input_tokens


@pytest.mark.long
def test_an_answer_of_a_given_form(server: ServerProcess) -> None:
    class Colour(BaseModel):
        is_warm: bool

    answer = server.client().responses.parse(
        model=MODEL, input="Describe a colour.", text_format=Colour, temperature=0.0, max_output_tokens=40
    )
    assert isinstance(answer.output_parsed, Colour)
    assert set(json.loads(answer.output_text)) == {"is_warm"}


def test_cancelling_frees_the_engine(server: ServerProcess) -> None:
    client = server.client()
    answer = client.responses.create(model=MODEL, input="Count.", background=True, extra_body={"ignore_eos": True})
    until(lambda: client.responses.retrieve(answer.id).output_text != "")
    assert client.responses.cancel(answer.id).status == "cancelled"
    until(server.is_idle)
