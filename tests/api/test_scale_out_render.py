"""Rendering, generating and derendering in three steps give what one step gives."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fake_engine import FakeEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from running_server import RunningServer, StartServer, start
from test_anthropic_messages import REPLY, WEATHER, thinking_engine

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
GENERATE = "/inference/v1/generate"
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER["input_schema"]}}]
CHAT_BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, "max_tokens": 300}


@pytest.fixture(scope="module")
def _server(stopped_servers: list[RunningServer]) -> Iterator[RunningServer]:
    server = start(thinking_engine(), reasoning_parser="qwen3", tool_call_parser="hermes")
    yield server
    server.stop()
    stopped_servers.append(server)


@pytest.fixture
def server(_server: RunningServer) -> RunningServer:
    _server.engine.calls.clear()
    return _server


def post(server: RunningServer, path: str, body: Any, status: int = 200) -> Any:
    response = server.client.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()


def without(answer: Any, *names: str) -> Any:
    """The answer without what is new each time."""
    if isinstance(answer, dict):
        return {name: without(value, *names) for name, value in answer.items() if name not in names}
    return [without(item, *names) for item in answer] if isinstance(answer, list) else answer


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 40}, {"stop": ["look"]}, {"logprobs": True, "top_logprobs": 2}])
def test_a_conversation_in_three_steps(server: RunningServer, fields: dict[str, Any]) -> None:
    body = {**CHAT_BODY, **fields}
    rendered = post(server, f"{CHAT}/render", body)
    assert server.engine.calls == []
    generated = post(server, GENERATE, rendered)
    request = {"generate_response": generated, "chat_request": body, "prompt_token_ids": rendered["token_ids"]}
    answer = post(server, f"{CHAT}/derender", request)
    assert answer["id"] == rendered["request_id"] == generated["request_id"]
    assert len(server.engine.calls) == 1
    at_once = post(server, CHAT, body)
    changing = ("id", "created", "prompt_tokens_details")
    assert without(answer, *changing) == without(at_once, *changing)


def test_completions_in_three_steps(server: RunningServer) -> None:
    body = {"prompt": ["one", "two"], "max_tokens": 50, "echo": True, "logprobs": 1, "request_id": "r"}
    rendered = post(server, f"{COMPLETIONS}/render", body)
    assert [one["request_id"] for one in rendered] == ["cmpl-r-0", "cmpl-r-1"]
    generated = [post(server, GENERATE, one) for one in rendered]
    request = {"generate_responses": generated, "completion_request": {**body, "logprobs": None}}
    answer = post(server, f"{COMPLETIONS}/derender", request)
    at_once = post(server, COMPLETIONS, {**body, "logprobs": None})
    changing = ("id", "created", "prompt_tokens_details")
    assert without(answer, *changing) == without(at_once, *changing)


def test_messages_are_rendered(server: RunningServer) -> None:
    body = {
        "model": "fake/model",
        "max_tokens": 300,
        "messages": CHAT_BODY["messages"],
        "tools": [WEATHER],
        "temperature": 0,
    }
    rendered = post(server, "/v1/messages/render", body)
    answer = post(server, "/v1/messages", body)
    call = server.engine.calls[-1]
    assert rendered["token_ids"] == call["prompt_token_ids"]
    assert rendered["sampling_params"]["max_tokens"] == 300 and rendered["sampling_params"]["temperature"] == 0
    generated = post(server, GENERATE, {**rendered, "output_mode": "text"})
    assert generated["choices"][0]["text"] == REPLY
    assert answer["stop_reason"] == "tool_use"


def test_responses_are_rendered(server: RunningServer) -> None:
    body = {"model": "fake/model", "input": "hi", "instructions": "Be brief.", "max_output_tokens": 300}
    rendered = post(server, "/v1/responses/render", body)
    assert server.engine.calls == []
    post(server, "/v1/responses", body)
    call = server.engine.calls[-1]
    assert rendered["token_ids"] == call["prompt_token_ids"]
    assert rendered["sampling_params"]["max_tokens"] == 300
    assert post(server, GENERATE, {**rendered, "output_mode": "text"})["choices"][0]["text"] == REPLY


def test_schemas_survive_rendering(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    rendered = post(server, f"{CHAT}/render", {**CHAT_BODY, "response_format": wanted})
    post(server, GENERATE, rendered)
    assert server.engine.calls[0]["params"].structured_outputs.json == schema
    assert server.engine.calls[0]["params"].structured_outputs.start_after


def test_tokens_alone_are_text(start_server: StartServer) -> None:
    server = start_server(FakeEngine(), reasoning_parser="", tool_call_parser="")
    token_ids = server.engine.tokenizer.encode(REPLY)
    response = {"choices": [{"index": 0, "token_ids": token_ids}], "request_id": "mine"}
    answer = post(server, f"{CHAT}/derender", {"generate_response": response, "prompt_tokens": 7})
    assert answer["id"] == "mine"
    assert answer["choices"][0]["message"]["content"] == REPLY
    assert answer["usage"]["prompt_tokens"] == 7
    answer = post(server, f"{COMPLETIONS}/derender", {"generate_responses": [response]})
    assert answer["choices"][0]["text"] == REPLY
    assert answer["usage"] == {
        "prompt_tokens": 0,
        "completion_tokens": len(token_ids),
        "total_tokens": len(token_ids),
        "prompt_tokens_details": answer["usage"]["prompt_tokens_details"],
    }


def test_what_ends_a_text_is_no_part_of_it(server: RunningServer) -> None:
    token_ids = [*server.engine.tokenizer.encode("one two"), 256]
    choice: dict[str, Any] = {"index": 0, "token_ids": token_ids, "finish_reason": "stop"}
    body = {"generate_responses": [{"choices": [choice]}]}
    for fields in ({}, {"stop_reason": 256}):
        choice |= fields
        assert post(server, f"{COMPLETIONS}/derender", body)["choices"][0]["text"] == "one two"
    choice |= {"token_ids": token_ids[:-1], "stop_reason": "two"}
    assert post(server, f"{COMPLETIONS}/derender", body)["choices"][0]["text"] == "one "


CHOICE = {"index": 0, "token_ids": [1]}


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        (CHAT, {}, "generate_response"),
        (CHAT, {"generate_response": {"choices": []}}, "choices"),
        (CHAT, {"generate_response": {"choices": [{"index": 0, "token_ids": []}]}}, "token_ids"),
        (CHAT, {"generate_response": {"choices": [CHOICE]}}, "chat_request"),
        (CHAT, {"generate_response": {"choices": [{"index": 0, "token_ids": [999]}]}}, "token_ids"),
        (CHAT, {"generate_response": {"choices": [CHOICE]}, "stream": True}, "stream"),
        (CHAT, {"generate_response": {"choices": [CHOICE]}, "prompt_tokens": 10**12}, "prompt_tokens"),
        (CHAT, {"generate_response": {"choices": [CHOICE]}, "prompt_token_ids": [-1]}, "prompt_token_ids"),
        (CHAT, {"generate_response": {"choices": [CHOICE], "output_mode": "text"}}, "output_mode"),
        (
            CHAT,
            {
                "generate_response": {
                    "choices": [{**CHOICE, "logprobs": {"content": [{"token_id": 999, "logprob": 0.0}]}}]
                }
            },
            "logprobs",
        ),
        (COMPLETIONS, {"generate_responses": []}, "generate_responses"),
        (COMPLETIONS, {"generate_responses": [{"choices": [CHOICE]}], "prompt_tokens": [1, 2]}, "prompt_tokens"),
        (
            COMPLETIONS,
            {"generate_responses": [{"choices": [CHOICE]}], "completion_request": {"prompt": ["a", "b"]}},
            "completion_request",
        ),
    ],
)
def test_rejected_with_an_error(server: RunningServer, path: str, body: Any, sentence: str) -> None:
    assert sentence in post(server, f"{path}/derender", body, 400)["error"]["message"]


scalars = st.one_of(st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(-1e9, 1e9), st.text(max_size=3))
choices = st.fixed_dictionaries(
    {"index": st.integers(0, 3), "token_ids": st.lists(st.integers(0, 256), max_size=5)},
    optional={
        "finish_reason": st.sampled_from(["stop", "length", "abort", "error", None, "what"]),
        "stop_reason": scalars,
        "logprobs": st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {
                    "content": st.lists(
                        st.fixed_dictionaries({"token_id": st.integers(0, 256), "logprob": st.floats(-9, 0)})
                    )
                }
            ),
        ),
    },
)
requests = st.dictionaries(
    st.sampled_from(["logprobs", "echo", "n", "stop", "max_tokens", "tools"]), scalars, max_size=2
)


@settings(max_examples=100)
@given(st.lists(choices, max_size=2), st.booleans(), st.one_of(st.none(), requests), scalars)
def test_no_tokens_are_the_servers_fault(
    _server: RunningServer, given_choices: Any, is_chat: bool, request: Any, count: Any
) -> None:
    response = {"choices": given_choices}
    if is_chat:
        body = {"generate_response": response, "prompt_tokens": count}
        body |= {} if request is None else {"chat_request": {**CHAT_BODY, **request}}
    else:
        body = {"generate_responses": [response], "prompt_tokens": [count]}
        body |= {} if request is None else {"completion_request": {"prompt": "a", **request}}
    path = f"{CHAT if is_chat else COMPLETIONS}/derender"
    answer = _server.client.post(path, json=json.loads(json.dumps(body)))
    assert answer.status_code in (200, 400), (body, answer.text)
