"""``/v1/responses`` gives items and events in OpenAI's shapes, whole and streamed alike."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from fake_engine import REPLY
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.responses import ResponseFunctionToolCall, ResponseReasoningItem
from pydantic import BaseModel
from responses_engine import ScriptedEngine, call_text, check_order, without_ids
from running_server import RunningServer, StartServer
from test_connections import until

PATH = "/v1/responses"
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}
THINKING = {"reasoning_parser": "deepseek_r1", "tool_call_parser": "hermes"}


def create(server: RunningServer, **body: Any) -> dict[str, Any]:
    response = server.client.post(PATH, json={"input": "hi", **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def parse_events(text: str) -> list[dict[str, Any]]:
    events = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def stream(server: RunningServer, **body: Any) -> list[dict[str, Any]]:
    response = server.client.post(PATH, json={"input": "hi", "stream": True, **body})
    assert response.status_code == 200, response.text
    return parse_events(response.text)


def both(server: RunningServer, **body: Any) -> dict[str, Any]:
    """The answer, which comes out whole as it does in a stream."""
    events = stream(server, **body)
    check_order(events)
    whole = create(server, **body)
    assert without_ids(whole) == without_ids(events[-1]["response"])
    return whole


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def client_of(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_an_answer_is_a_message(server: RunningServer) -> None:
    answer = both(server, metadata={"team": "a"}, user="me")
    assert answer["object"] == "response" and answer["status"] == "completed"
    (item,) = answer["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [{"type": "output_text", "text": REPLY, "annotations": [], "logprobs": []}]
    assert answer["usage"]["output_tokens"] == len(REPLY.encode())
    assert answer["usage"]["input_tokens_details"]["cached_tokens"] == 3
    assert answer["usage"]["total_tokens"] == answer["usage"]["input_tokens"] + len(REPLY.encode())
    assert (answer["metadata"], answer["user"]) == ({"team": "a"}, "me")


def test_a_cut_answer_is_incomplete(server: RunningServer) -> None:
    answer = both(server, max_output_tokens=3)
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][0]["status"] == "incomplete"


def test_thoughts_calls_and_text_are_items(start_server: StartServer) -> None:
    reply = "I wonder.</think>\n\nLet me see." + call_text("weather", '{"city": "Oslo"}')
    server = start_server(ScriptedEngine(reply), **THINKING)
    answer = both(server, tools=[WEATHER])
    thought, message, call = answer["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "I wonder."}]
    assert thought["summary"] == []
    assert message["content"][0]["text"].strip() == "Let me see."
    assert (call["type"], call["name"], call["status"]) == ("function_call", "weather", "completed")
    assert json.loads(call["arguments"]) == {"city": "Oslo"}
    assert call["call_id"] != call["id"] and call["id"].startswith("fc_")
    assert answer["usage"]["output_tokens_details"] == {"reasoning_tokens": len("I wonder.")}
    assert "tools: weather" in server.engine.calls[0]["prompt"]
    assert answer["tools"][0]["parameters"] == WEATHER["parameters"]


def test_every_length_ends_in_order(start_server: StartServer) -> None:
    """Wherever an answer is cut, what began ends, and the whole answer is the streamed one."""
    reply = "Hm.</think>Yes. " + call_text("weather", '{"city": "Oslo"}')
    server = start_server(ScriptedEngine(reply), **THINKING)
    for limit in range(1, len(reply) + 1, 3):
        answer = both(server, tools=[WEATHER], max_output_tokens=limit)
        assert answer["status"] == "incomplete"
        assert answer["output"][-1]["status"] == "incomplete"


def test_the_answers_length_is_an_upper_bound(server: RunningServer) -> None:
    """It may be more than the context has room for, as with OpenAI's server."""
    assert both(server, max_output_tokens=1 << 20)["status"] == "completed"
    assert server.engine.calls[0]["params"].max_tokens == (1 << 17) - len("user: hi\nassistant: ")


def test_thoughts_can_be_left_out(start_server: StartServer) -> None:
    server = start_server(ScriptedEngine("Hm.</think>Yes."), **THINKING)
    answer = both(server, include_reasoning=False)
    assert [item["type"] for item in answer["output"]] == ["message"]
    assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] == 3


def test_parallel_calls_can_be_refused(start_server: StartServer) -> None:
    reply = call_text("weather", '{"city": "Oslo"}') + "\n" + call_text("weather", '{"city": "Rome"}')
    server = start_server(ScriptedEngine(reply), tool_call_parser="hermes")
    answer = both(server, tools=[WEATHER])
    assert [json.loads(item["arguments"])["city"] for item in answer["output"]] == ["Oslo", "Rome"]
    assert len({item["call_id"] for item in answer["output"]}) == 2
    assert len(both(server, tools=[WEATHER], parallel_tool_calls=False)["output"]) == 1


def test_a_conversation_is_read_item_by_item(start_server: StartServer) -> None:
    server = start_server(ScriptedEngine("ok"), **THINKING)
    items = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "not JSON"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "sun"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Rain and sun."}]},
        {"role": "user", "content": "Thanks"},
    ]
    create(server, input=items, instructions="Be kind.", tools=[WEATHER], reasoning={"effort": "low"})
    assert server.engine.calls[0]["prompt"] == (
        "<system>Be kind.\n\nBe short.\n<user>Weather?\n"
        '<assistant>[Hm]weather({"city": "Oslo"})weather({"arguments": "not JSON"})\n'
        "<tool>rain\n<tool>sun\n<assistant>Rain and sun.\n<user>Thanks\ntools: weather \neffort: low\n<assistant>"
    )


def test_parameters_reach_the_engine(server: RunningServer) -> None:
    create(server, temperature=0.5, top_p=0.9, top_k=4, min_p=0.1, seed=7, stop=["zz"], max_output_tokens=9, priority=3)
    create(server, text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}})
    create(server, text={"format": {"type": "json_object"}})
    create(server, structured_outputs={"choice": ["a", "b"]})
    first, second, third, fourth = [call["params"] for call in server.engine.calls]
    assert (first.temperature, first.top_p, first.top_k, first.min_p, first.seed) == (0.5, 0.9, 4, 0.1, 7)
    assert (first.stop, first.max_tokens, server.engine.calls[0]["priority"]) == (["zz"], 9, 3)
    assert second.structured_outputs.json == {"type": "object"}
    assert third.structured_outputs.json_object is True
    assert fourth.structured_outputs.choice == ["a", "b"]


def test_a_forced_call(start_server: StartServer) -> None:
    server = start_server(ScriptedEngine('{"city": "Oslo"}'), tool_call_parser="hermes")
    answer = both(server, tools=[WEATHER], tool_choice={"type": "function", "name": "weather"})
    assert [(item["type"], item["name"]) for item in answer["output"]] == [("function_call", "weather")]
    assert server.engine.calls[0]["params"].structured_outputs.json["properties"]["city"] == {"type": "string"}


def test_allowed_tools_narrow_the_choice(start_server: StartServer) -> None:
    server = start_server(ScriptedEngine("no"), tool_call_parser="hermes")
    other = {**WEATHER, "name": "other"}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "other"}]}
    create(server, tools=[WEATHER, other], tool_choice=choice)
    assert "tools: other \n" in server.engine.calls[0]["prompt"]


def test_logprobs_belong_to_the_content(start_server: StartServer) -> None:
    server = start_server(ScriptedEngine("ab</think>Grüße"), **THINKING)
    answer = both(server, include=["message.output_text.logprobs"], top_logprobs=2)
    logprobs = answer["output"][1]["content"][0]["logprobs"]
    assert bytes(byte for entry in logprobs for byte in entry["bytes"]).decode() == "Grüße"
    assert all(len(entry["top_logprobs"]) == 2 for entry in logprobs)
    events = stream(server, include=["message.output_text.logprobs"])
    streamed = [e for event in events if event["type"] == "response.output_text.delta" for e in event["logprobs"]]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in logprobs]


def test_sealed_thoughts_come_back(start_server: StartServer) -> None:
    server = start_server(ScriptedEngine("Hm.</think>Yes."), **THINKING)
    answer = create(server, include=["reasoning.encrypted_content"], store=False)
    thought, message = answer["output"]
    del thought["content"]
    create(server, input=[{"role": "user", "content": "hi"}, thought, message, {"role": "user", "content": "so?"}])
    assert "<assistant>[Hm.]Yes.\n<user>so?" in server.engine.calls[-1]["prompt"]


def test_truncation_drops_the_oldest_turns(start_server: StartServer) -> None:
    engine = ScriptedEngine("ok")
    server = start_server(engine)
    items: list[dict[str, Any]] = [{"role": "system", "content": "RULES"}]
    for index in range(6):
        items += [
            {"role": "user", "content": f"question{index} " + "x" * 30_000},
            {"role": "assistant", "content": f"answer{index}"},
        ]
    items.append({"role": "user", "content": "last"})
    refused = server.client.post(PATH, json={"input": items})
    assert refused.status_code == 400
    create(server, input=items, truncation="auto")
    prompt = engine.calls[-1]["prompt"]
    assert prompt.startswith("<system>RULES\n<user>question3") and "<user>last" in prompt


@pytest.mark.parametrize("stream", [False, True])
def test_messages_are_shown_on_request(server: RunningServer, stream: bool) -> None:
    """One message of each round, with the whole text and all tokens, streamed or not."""
    previous = [{"role": "user", "content": "a"}]
    body = {"model": "fake/model", "input": "hi", "enable_response_messages": True, "previous_input_messages": previous}
    response = server.client.post("/v1/responses", json={**body, "stream": stream})
    answer = response.json() if not stream else json.loads(response.text.strip().split("data: ")[-1])["response"]
    encode = server.engine.tokenizer.encode
    prompt = "user: a\nuser: hi\nassistant: "
    assert answer["input_messages"] == [{"type": "raw_message_tokens", "message": prompt, "tokens": encode(prompt)}]
    assert answer["output_messages"] == [{"type": "raw_message_tokens", "message": REPLY, "tokens": encode(REPLY)}]
    assert "input_messages" not in create(server)


def test_the_official_client(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="fake/model", input="hi", instructions="Be kind.")
    assert answer.output_text == REPLY and answer.instructions == "Be kind."
    with client.responses.stream(model="fake/model", input="hi") as events:
        kinds = [event.type for event in events]
        final = events.get_final_response()
    assert final.output_text == REPLY and final.usage is not None
    deltas = [kind for kind in kinds if kind == "response.output_text.delta"]
    assert [kind for kind in kinds if kind not in deltas] == [
        *("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"),
        *("response.output_text.done", "response.content_part.done", "response.output_item.done"),
        "response.completed",
    ]
    assert client.responses.input_tokens.count(model="fake/model", input="hi").input_tokens == len(
        "user: hi\nassistant: "
    )


def test_the_official_client_calls_tools_and_goes_on(start_server: StartServer) -> None:
    replies = ("Hm.</think>" + call_text("weather", '{"city": "Oslo"}'), "</think>It rains.")
    engine = ScriptedEngine(*replies)
    client = client_of(start_server(engine, **THINKING))
    with client.responses.stream(model="fake/model", input="Weather?", tools=[WEATHER]) as events:  # type: ignore[list-item]
        first = events.get_final_response()
    thought, call = first.output
    assert isinstance(thought, ResponseReasoningItem) and thought.content and thought.content[0].text == "Hm."
    assert isinstance(call, ResponseFunctionToolCall)
    second = client.responses.create(
        model="fake/model",
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}],
        tools=[WEATHER],  # type: ignore[list-item]
    )
    assert second.output_text == "It rains."
    assert '<user>Weather?\n<assistant>[Hm.]weather({"city": "Oslo"})\n<tool>rain\n' in engine.prompts[-1]
    # The same without the server's memory: the items go back and forth.
    items: Any = [{"role": "user", "content": "Weather?"}, *[item.to_dict() for item in first.output]]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain"})
    client.responses.create(model="fake/model", input=items, tools=[WEATHER], store=False)  # type: ignore[list-item]
    assert engine.prompts[-1] == engine.prompts[-2]


def test_the_official_client_parses_thoughts_beside_vllms_events(start_server: StartServer) -> None:
    client = client_of(start_server(ScriptedEngine("Hm.</think>Yes."), **THINKING))
    with client.responses.stream(model="fake/model", input="hi") as events:
        parsed = list(events)
        final = events.get_final_response()
    kinds = [event.type for event in parsed if not event.type.endswith(".delta")]
    first = kinds.index("response.output_item.added")
    assert [kind.removeprefix("response.") for kind in kinds[first : first + 7]] == [
        *("output_item.added", "content_part.added", "reasoning_part.added"),
        *("reasoning_text.done", "reasoning_part.done", "content_part.done", "output_item.done"),
    ]
    thought = final.output[0]
    assert isinstance(thought, ResponseReasoningItem) and thought.content and thought.content[0].text == "Hm."
    assert final.output_text == "Yes."
    # As raw events, too, the known ones are what they are and the others have their own type.
    raw = list(client.responses.create(model="fake/model", input="hi", stream=True))
    assert "".join(event.delta for event in raw if event.type == "response.reasoning_text.delta") == "Hm."
    assert [event.type for event in raw].count("response.reasoning_part.added") == 1  # type: ignore[comparison-overlap]


def test_the_official_client_parses_objects(start_server: StartServer) -> None:
    class City(BaseModel):
        name: str

    engine = ScriptedEngine('{"name": "Oslo"}')
    client = client_of(start_server(engine))
    assert client.responses.parse(model="fake/model", input="hi", text_format=City).output_parsed == City(name="Oslo")
    assert engine.calls[0]["params"].structured_outputs.json["properties"]["name"]["type"] == "string"


def test_who_leaves_is_not_waited_for(start_server: StartServer) -> None:
    server = start_server(ScriptedEngine(REPLY * 100, step_seconds=0.005))
    with server.client.stream(
        "POST", PATH, json={"input": "hi", "stream": True, "request_id": "resp_left"}
    ) as response:
        chunks = response.iter_bytes()  # letting go of it would be leaving
        next(chunks)
        until(lambda: server.engine.num_running == 1)
    until(lambda: server.engine.num_aborted == 1)
    assert server.client.get(f"{PATH}/resp_left").status_code == 404


def test_a_failure_before_the_first_event_has_a_status(server: RunningServer) -> None:
    for is_streamed in (False, True):
        body = {"input": "x" * 200_000, "stream": is_streamed}
        assert server.client.post(PATH, json=body).status_code == 400


def test_a_late_failure_ends_the_stream_in_order(start_server: StartServer) -> None:
    engine = ScriptedEngine("abcdef")
    assert engine.tokenizer is not None
    engine.tokenizer.chat_templates["default"] = "fail late"
    server = start_server(engine)
    events = stream(server)
    check_order(events)
    failed = events[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert failed["output"][0]["status"] == "incomplete"
    assert server.client.post(PATH, json={"input": "hi"}).status_code == 500


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.sampled_from(["</think>", "\n", "<think>", "words ", "é😀", "<tool_call>", "}"]),
            st.just(call_text("weather", '{"city": "Oslo"}')),
        ),
        max_size=6,
    )
)
def test_any_answer_is_the_same_whole_and_streamed(thinking_server: RunningServer, pieces: list[str]) -> None:
    engine = thinking_server.engine
    assert isinstance(engine, ScriptedEngine)
    engine.replies = ["".join(pieces) or "."]
    both(thinking_server, tools=[WEATHER])


@pytest.fixture
def thinking_server(start_server: StartServer) -> RunningServer:
    return start_server(ScriptedEngine("."), **THINKING)
