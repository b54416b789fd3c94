"""Every wrong request gets an error of its own, in OpenAI's shape, and hurts nobody else."""

import json
import logging
import threading
from typing import Any

import httpx
import pytest
from running_server import PATIENCE, RunningServer, StartServer

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
F = {"type": "function", "function": {"name": "f"}}
HELLO = [{"role": "user", "content": "hi"}]


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    is_too_long = "maximum context length" in error["message"]
    assert error["code"] == ("context_length_exceeded" if is_too_long else response.status_code)
    assert error["message"].endswith((".", "…"))
    assert len(error["message"]) < 3000
    return error


@pytest.fixture(autouse=True)
def others_schedule_running(server: RunningServer) -> Any:
    yield
    assert server.client.post(COMPLETIONS, json={"prompt": "hi"}).status_code == 200
    assert server.engine.num_running == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [99999]}, "prompt"),
        ({"prompt": ["x"] * 5000}, "prompt"),
        ({"prompt": ["x"] * 50, "n": 1000, "temperature": 1}, "prompt"),
        ({"prompt": "x" * 200_000}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "16"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1e300}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": [1]}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"n": 0}, "n"),
        ({"n": 10**9}, "n"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"logprobs": 10**9}, "logprobs"),
        ({"logprobs": -2}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"seed": 10**20}, "seed"),
        ({"stop": ["x"] * 10000}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop": [5]}, "stop"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_tokens": 20}, "min_tokens"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 1000}}, "logit_bias"),
        ({"logit_bias": {"1": "high"}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"priority": 10**30}, "priority"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 10**6}, "truncate_prompt_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"use_beam_search": True, "stop": "x"}, "stop"),
        ({"use_beam_search": True, "n": 300}, "n"),
        ({"use_beam_search": True, "n": 25}, "beam_width"),
        ({"use_beam_search": True, "length_penalty": 1e300}, "length_penalty"),
        ({"use_beam_search": True, "echo": True, "logprobs": 1}, "echo"),
        ({"use_beam_search": True, "response_format": {"type": "json_object"}}, "response_format"),
        ({"thinking_token_budget": -2}, "thinking_token_budget"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
        ({"logprob_token_ids": [5]}, "logprob_token_ids"),
        ({"logprob_token_ids": [500], "logprobs": 1}, "logprob_token_ids"),
        ({"repetition_detection": {"max_pattern_size": 5}}, "repetition_detection"),
        ({"repetition_detection": {"max_pattern_size": 10**9, "min_count": 2}}, "repetition_detection"),
        ({"repetition_detection": {"size": 5}}, "repetition_detection"),
        ({"kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
    ],
)
def test_wrong_completion_fields(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    body = json.dumps({"prompt": "hi", **fields})
    response = server.client.post(COMPLETIONS, content=body, headers=JSON)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [1]}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": 5, "content": "hi"}]}, "messages[0].role"),
        ({"messages": HELLO, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"messages": HELLO, "chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 10**9}, "logprobs"),
        ({"logprobs": 2}, "logprobs"),
        ({"max_completion_tokens": 0}, "max_tokens"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"functions": [{}]}, "functions"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [F, F]}, "tools"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [F], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [F], "tool_choice": "some"}, "tool_choice"),
        ({"reasoning_effort": "heroic"}, "reasoning_effort"),
    ],
)
def test_wrong_chat_fields(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    response = server.client.post(CHAT, json={"messages": HELLO, **fields})
    assert response.status_code == 400
    assert error_of(response)["param"] == param


def test_a_template_that_raises(server: RunningServer) -> None:
    response = server.client.post(CHAT, json={"messages": [{"role": "user", "content": "raise"}]})
    assert response.status_code == 400
    assert "no such talk" in error_of(response)["message"]


def test_a_template_that_loops_ends_and_holds_up_nobody(server: RunningServer) -> None:
    responses: list[httpx.Response] = []
    body = {"messages": [{"role": "user", "content": "loop"}]}
    url = server.url + CHAT
    looping = threading.Thread(target=lambda: responses.append(httpx.post(url, json=body, timeout=PATIENCE)))
    looping.start()
    assert server.client.post(COMPLETIONS, json={"prompt": "hi"}).status_code == 200
    assert looping.is_alive()
    looping.join()
    assert responses[0].status_code == 400
    error_of(responses[0])


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "no body"),
        (b"{", "JSON"),
        (b"not json", "JSON"),
        (b'{"prompt": "hi", "temperature": NaN}', "JSON"),
        (b'{"prompt": "hi", "temperature": Infinity}', "JSON"),
        (b'{"prompt": "hi", "temperature": 1e999}', "JSON"),
        (b'{"prompt": "\xff\xfe"}', "UTF-8"),
        (b'{"prompt": "\xed\xa0\x80"}', "UTF-8"),
        (b'{"prompt": "\\ud800"}', "JSON"),
        (b'{"prompt": "\\udc00 and more"}', "JSON"),
        (b"[" * 100_000, "nested"),
        (b'{"a":' * 100_000, "nested"),
        (b'{"prompt": "hi", "x": ' + b"[" * 200 + b"]" * 200 + b"}", "nested"),
        (b"[]", "object"),
        (b"5", "object"),
        (b"null", "object"),
        (b'{"prompt": "hi", "max_tokens": ' + b"9" * 5000 + b"}", ""),
    ],
)
def test_wrong_bodies(server: RunningServer, body: bytes, part: str) -> None:
    response = server.client.post(COMPLETIONS, content=body, headers=JSON)
    assert response.status_code == 400
    assert part.lower() in error_of(response)["message"].lower()


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
def test_wrong_content_type(server: RunningServer, path: str, content_type: str) -> None:
    response = server.client.post(path, content=b'{"prompt": "hi"}', headers={"content-type": content_type})
    assert response.status_code == 415
    assert "application/json" in error_of(response)["message"]


def test_content_type_with_parameters(server: RunningServer) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert server.client.post(COMPLETIONS, content=b'{"prompt": "hi"}', headers=headers).status_code == 200


def test_big_bodies(server: RunningServer) -> None:
    body = json.dumps({"prompt": "x" * (10 << 20)}).encode()
    response = server.client.post(COMPLETIONS, content=body, headers=JSON)
    assert response.status_code == 413
    assert "4194304 bytes" in error_of(response)["message"]
    pieces = (body[start : start + 100_000] for start in range(0, len(body), 100_000))
    response = server.client.post(COMPLETIONS, content=pieces, headers=JSON)
    assert response.status_code == 413
    error_of(response)


def test_a_million_wrong_elements_are_one_error(server: RunningServer) -> None:
    for item, count in ((b"1.5", 300_000), (b'"",1', 300_000), (b'{"a":1}', 100_000), (b"[]", 100_000)):
        body = b'{"prompt": [' + b",".join([item] * count) + b"]}"
        response = server.client.post(COMPLETIONS, content=body, headers=JSON)
        assert response.status_code == 400
        assert error_of(response)["param"] == "prompt"
    body = b'{"prompt": [' + b",".join([b"[]"] * 300_000) + b"]}"
    response = server.client.post(COMPLETIONS, content=body, headers=JSON)
    assert response.status_code == 400
    assert "131072 lists and objects" in error_of(response)["message"]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
def test_unknown_model(server: RunningServer, path: str) -> None:
    body = {"model": "gpt-9", "prompt": "hi", "messages": HELLO, "tokens": [1]}
    response = server.client.post(path, json=body)
    assert response.status_code == 404
    error = error_of(response)
    assert error["param"] == "model"
    assert "gpt-9" in error["message"]


def test_unknown_routes_and_methods(server: RunningServer) -> None:
    response = server.client.get("/v1/nothing")
    assert response.status_code == 404
    assert error_of(response)["type"] == "NotFoundError"
    response = server.client.get(COMPLETIONS)
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    error_of(response)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HELLO}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": [10**30]}, "tokens"),
    ],
)
def test_wrong_token_requests(server: RunningServer, path: str, fields: dict[str, Any], param: str) -> None:
    response = server.client.post(path, json=fields)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("prompt", "status", "message"),
    [
        ("overload", 503, "The queue is full."),
        ("dead", 503, "The engine stopped."),
        ("bug", 500, "The server failed while it worked on this request."),
    ],
)
def test_our_own_failures(
    server: RunningServer,
    prompt: str,
    status: int,
    message: str,
    is_streamed: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.CRITICAL):
        response = server.client.post(COMPLETIONS, json={"prompt": prompt, "stream": is_streamed})
    assert response.status_code == status
    assert error_of(response)["message"] == message
    assert ("retry-after" in response.headers) == (status == 503)


def test_one_bad_prompt_of_a_batch_ends_the_others(server: RunningServer) -> None:
    body = {"prompt": ["a", "overload", "b"], "max_tokens": 4000, "ignore_eos": True}
    assert server.client.post(COMPLETIONS, json=body).status_code == 503


def test_limits_are_settings(start_server: StartServer) -> None:
    client = start_server(max_request_bytes=1024).client
    assert client.post(COMPLETIONS, json={"prompt": "x" * 1100}).status_code == 413
    assert client.post(COMPLETIONS, json={"prompt": "x" * 900}).status_code == 200
