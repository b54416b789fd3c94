"""Rendering, generating and derendering in three steps give what one step gives."""

import json
from typing import Any

import pytest
from fake_engine import REPLY, FakeEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from running_server import RunningServer, StartServer

GENERATE = "/inference/v1/generate"
REPLY_IDS_LENGTH = len(REPLY.encode())


def post(server: RunningServer, path: str, **body: Any) -> Any:
    response = server.client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def stream(server: RunningServer, path: str, **body: Any) -> list[dict[str, Any]]:
    response = server.client.post(path, json={"stream": True, **body})
    assert response.status_code == 200, response.text
    lines = response.text.strip().split("\n\n")
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def refusal(server: RunningServer, path: str, **body: Any) -> str:
    response = server.client.post(path, json=body)
    assert response.status_code == 400, response.text
    message: str = response.json()["error"]["message"]
    return message


def test_tokens_in_tokens_out(server: RunningServer) -> None:
    answer = post(server, GENERATE, token_ids=[1, 2, 3], sampling_params={"max_tokens": 100}, request_id="mine")
    assert answer["request_id"] == "mine"
    assert (answer["output_mode"], answer["model"]) == ("tokens", "fake/model")
    (choice,) = answer["choices"]
    assert set(choice) == {"index", "token_ids", "finish_reason", "stop_reason", "logprobs"}
    assert choice["token_ids"] == server.engine.tokenizer.encode(REPLY)
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["prompt_tokens"] == 3 and answer["usage"]["completion_tokens"] == REPLY_IDS_LENGTH
    assert answer["prompt_token_ids"] is None
    call = server.engine.calls[0]
    assert call["prompt_token_ids"] == [1, 2, 3]
    assert call["params"].detokenize is False


def test_streamed_tokens(server: RunningServer) -> None:
    options = {"include_usage": True}
    chunks = stream(
        server,
        GENERATE,
        token_ids=[1, 2],
        sampling_params={"max_tokens": 100, "n": 2, "temperature": 1.0},
        return_token_ids=True,
        stream_options=options,
    )
    assert chunks[0]["prompt_token_ids"] == [1, 2]
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 2 * REPLY_IDS_LENGTH
    for index in range(2):
        own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert [i for choice in own for i in choice["token_ids"]] == server.engine.tokenizer.encode(REPLY)
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["stop"]


def test_text_out(server: RunningServer) -> None:
    body: dict[str, Any] = {"token_ids": [1], "sampling_params": {"max_tokens": 100}, "output_mode": "text"}
    assert post(server, GENERATE, **body)["choices"][0]["text"] == REPLY
    chunks = stream(server, GENERATE, **body)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == REPLY


def test_logprobs(server: RunningServer) -> None:
    body: dict[str, Any] = {"token_ids": [1, 2], "sampling_params": {"max_tokens": 2, "logprobs": 2}}
    body["sampling_params"]["prompt_logprobs"] = 0
    answer = post(server, GENERATE, **body)
    first, _ = answer["choices"][0]["logprobs"]["content"]
    assert first["token_id"] == answer["choices"][0]["token_ids"][0]
    assert (first["logprob"], first["rank"]) == (-0.5, 1)
    assert [entry["logprob"] for entry in first["top_logprobs"]] == [-0.5, -0.75, -9999.0]
    assert first["top_logprobs"][0]["token_id"] == first["token_id"]
    assert answer["prompt_logprobs"][0] is None and len(answer["prompt_logprobs"]) == 2
    content = post(server, GENERATE, **body, output_mode="text")["choices"][0]["logprobs"]["content"]
    assert content[0]["token"] == "G"


def test_stop_strings_need_text(server: RunningServer) -> None:
    params = {"max_tokens": 100, "stop": ["世"], "min_p": 0, "_internal": 5, "thinking_token_budget": None}
    (choice,) = post(server, GENERATE, token_ids=[1], sampling_params=params)["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "世")
    assert server.engine.calls[0]["params"].detokenize is True


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"token_ids": [], "sampling_params": {}}, "token_ids"),
        ({"token_ids": [1]}, "sampling_params"),
        ({"token_ids": [99999], "sampling_params": {}}, "token id 99999"),
        ({"token_ids": [-1], "sampling_params": {}}, "token id -1"),
        ({"token_ids": [1], "sampling_params": {"temperature": -1}}, "temperature"),
        ({"token_ids": [1], "sampling_params": {"temperature": "hot"}}, "temperature"),
        ({"token_ids": [1], "sampling_params": {"max_tokens": 10**9}}, "1000000000 in the completion"),
        ({"token_ids": [1], "sampling_params": {"warmth": 5}}, "no field 'warmth'"),
        ({"token_ids": [1], "sampling_params": {"extra_args": {"a": 10**30}}}, "sampling_params"),
        ({"token_ids": [1], "sampling_params": {"structured_outputs": {"json": 5}}}, "structured_outputs"),
        ({"token_ids": [1], "sampling_params": {}, "features": {"mm_hashes": {}}}, "features: images"),
        ({"token_ids": [1], "sampling_params": {}, "kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        ({"token_ids": [1], "sampling_params": {}, "stream_options": {}}, "stream_options"),
        ({"token_ids": [1], "sampling_params": {"prompt_logprobs": 1}, "stream": True}, "prompt_logprobs"),
        ({"token_ids": [1], "sampling_params": {}, "output_mode": "bogus"}, "output_mode"),
    ],
)
def test_rejected_with_an_error(server: RunningServer, body: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(server, GENERATE, **body)


scalars = st.one_of(st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(-1e9, 1e9), st.text(max_size=3))
values = st.one_of(scalars, st.lists(scalars, max_size=2), st.dictionaries(st.text(max_size=2), scalars, max_size=2))
NAMES = ["n", "temperature", "top_k", "stop", "stop_token_ids", "logprobs", "logit_bias", "max_tokens", "min_tokens"]
NAMES += ["seed", "bad_words", "extra_args", "structured_outputs", "allowed_token_ids", "output_kind", "detokenize"]


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from(NAMES), values, max_size=3), st.booleans())
def test_no_parameters_are_the_servers_fault(
    _shared_server: RunningServer, params: dict[str, Any], is_streamed: bool
) -> None:
    body = {"token_ids": [1], "sampling_params": {"max_tokens": 2, **params}, "stream": is_streamed}
    response = _shared_server.client.post(GENERATE, json=body)
    assert response.status_code in (200, 400), (params, response.text)


def test_without_a_limit_the_context_is_filled(server: RunningServer) -> None:
    for limit in ({}, {"max_tokens": None}):
        post(server, GENERATE, token_ids=[1, 2, 3], sampling_params={"min_tokens": 20, **limit})
        assert server.engine.calls[-1]["params"].max_tokens is None
    assert "min_tokens" in refusal(server, GENERATE, token_ids=[1], sampling_params={"min_tokens": 1 << 31})


@pytest.mark.parametrize(
    ("mode", "params"), [("tokens", {"detokenize": False, "stop": ["x"]}), ("text", {"detokenize": False})]
)
def test_text_without_text_is_a_contradiction(server: RunningServer, mode: str, params: dict[str, Any]) -> None:
    assert "detokenize" in refusal(server, GENERATE, token_ids=[1], sampling_params=params, output_mode=mode)


ABORT = "/inference/v1/abort_requests"
ENDLESS = {"max_tokens": 90000, "ignore_eos": True}


@pytest.mark.parametrize("mode", ["tokens", "text"])
def test_a_stream_that_is_ended_early_says_so(start_server: StartServer, mode: str) -> None:
    server = start_server(FakeEngine(step_seconds=0.005))
    body = {
        "token_ids": [1],
        "request_id": "mine",
        "output_mode": mode,
        "sampling_params": ENDLESS,
        "stream": True,
    }
    chunks = []
    with server.client.stream("POST", GENERATE, json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                chunks.append(json.loads(line.removeprefix("data: ")))
                if len(chunks) == 3:
                    assert server.client.post(ABORT, json={"request_ids": ["other", "mine"]}).status_code == 200
    assert chunks[-1]["choices"][0]["finish_reason"] == "abort"
    assert len(chunks) < 90000
    assert server.client.post(ABORT, json={"request_ids": ["mine"]}).status_code == 200
    assert server.client.post(ABORT, json={}).status_code == 400


def test_nobody_ends_anothers_request(start_server: StartServer) -> None:
    server = start_server(FakeEngine(step_seconds=0.005), api_key=["one", "two"])
    body = {"token_ids": [1], "request_id": "mine", "sampling_params": ENDLESS, "stream": True}
    with server.client.stream("POST", GENERATE, json=body, headers={"authorization": "Bearer one"}) as response:
        lines = response.iter_lines()
        next(lines)
        for key, ended in (("two", 0), ("one", 1)):
            asked = {"request_ids": ["mine"]}
            assert server.client.post(ABORT, json=asked, headers={"authorization": f"Bearer {key}"}).status_code == 200
            assert len(server.engine.ended_early) == ended


@pytest.mark.parametrize(("given", "is_spelled"), [({}, True), ({"detokenize": False}, False)])
def test_tokens_of_a_prompts_logprobs_are_spelled(
    start_server: StartServer, given: dict[str, object], is_spelled: bool
) -> None:
    server = start_server(FakeEngine())
    params = {"prompt_logprobs": 1, **given}
    assert server.client.post(GENERATE, json={"token_ids": [1], "sampling_params": params}).status_code == 200
    assert server.engine.calls[0]["params"].detokenize is is_spelled
