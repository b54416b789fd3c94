"""``/v1/completions`` says what the engine said, in OpenAI's shape."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from fake_engine import REPLY, FakeEngine
from running_server import RunningServer, StartServer

from octavo.records import CompletionOutput, RequestOutput, RequestOutputKind


class TokensOnlyEngine(FakeEngine):
    """An engine of a server that loads no tokenizer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer = None

    async def generate(self, prompt: Any, *arguments: Any, **named: Any) -> AsyncGenerator[RequestOutput, None]:
        completion = CompletionOutput(0, "", [7, 8], 0.0, finish_reason="length")
        yield RequestOutput("r", None, prompt, None, [completion], True)


def test_echo_without_a_tokenizer_tells_tokens(start_server: StartServer) -> None:
    server = start_server(TokensOnlyEngine())
    (choice,) = complete(server, prompt=[1, 2, 3], echo=True, return_token_ids=True)["choices"]
    assert (choice["text"], choice["prompt_token_ids"], choice["token_ids"]) == ("", [1, 2, 3], [7, 8])


def complete(server: RunningServer, **body: Any) -> dict[str, Any]:
    response = server.client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 100, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def stream(server: RunningServer, path: str = "/v1/completions", **body: Any) -> list[dict[str, Any]]:
    with server.client.stream("POST", path, json={"stream": True, **body}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def texts(chunks: list[dict[str, Any]]) -> dict[int, str]:
    found: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
    return found


def test_whole_answer(server: RunningServer) -> None:
    answer = complete(server)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == "fake/model"
    assert answer["choices"] == [
        {"index": 0, "text": REPLY, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
        | dict.fromkeys(("token_ids", "prompt_token_ids", "prompt_logprobs"))
    ]
    num_tokens = len(REPLY.encode())
    assert answer["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": num_tokens,
        "total_tokens": 2 + num_tokens,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


def test_stream_adds_up_to_the_whole(server: RunningServer) -> None:
    chunks = stream(server, prompt="hi", max_tokens=100)
    assert texts(chunks) == {0: REPLY}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_choices_of_many_prompts(server: RunningServer, is_streamed: bool) -> None:
    body: dict[str, Any] = {"prompt": ["a", "b", "c"], "n": 2, "echo": True, "max_tokens": 100}
    if is_streamed:
        found = texts(stream(server, **body))
    else:
        answer = complete(server, **body)
        found = {choice["index"]: choice["text"] for choice in answer["choices"]}
        assert answer["usage"]["prompt_tokens"] == 3
        assert answer["usage"]["completion_tokens"] == 6 * len(REPLY.encode())
    assert found == {2 * p + i: "abc"[p] + REPLY for p in range(3) for i in range(2)}
    assert len({call["request_id"] for call in server.engine.calls}) == 3


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [[64, 65]]),
        ([64, 65], [[64, 65]]),
        ([[64], [65]], [[64], [65]]),
        (["a", "b"], [[64], [65]]),
    ],
)
def test_shapes_of_prompts(server: RunningServer, prompt: Any, expected: list[list[int]]) -> None:
    complete(server, prompt=prompt)
    assert [call["prompt_token_ids"] for call in server.engine.calls] == expected


def test_every_field_reaches_the_engine(server: RunningServer) -> None:
    fields: dict[str, Any] = {
        "n": 2,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.2,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "seed": 7,
        "stop": ["x", "y"],
        "stop_token_ids": [4],
        "ignore_eos": False,
        "max_tokens": 9,
        "min_tokens": 3,
        "logprobs": 2,
        "prompt_logprobs": 1,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "include_stop_str_in_output": True,
        "allowed_token_ids": [1, 2],
        "bad_words": ["bad"],
    }
    complete(server, **fields, logit_bias={"5": -1.5}, priority=3, cache_salt="tenant", user="u", request_id="mine")
    (call,) = server.engine.calls
    for name, value in fields.items():
        assert getattr(call["params"], name) == value, name
    assert call["params"].logit_bias == {5: -1.5}
    assert call["params"].output_kind == RequestOutputKind.FINAL_ONLY
    assert call["priority"] == 3
    assert call["cache_salt"] == "tenant"
    assert call["request_id"].startswith("cmpl-mine-")


def test_a_lone_stop_string(server: RunningServer) -> None:
    complete(server, stop="x")
    assert server.engine.calls[0]["params"].stop == ["x"]


def test_defaults(server: RunningServer) -> None:
    server.client.post("/v1/completions", json={"prompt": "hi"})
    params = server.engine.calls[0]["params"]
    assert (params.max_tokens, params.temperature, params.n) == (16, 1.0, 1)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_logprobs(server: RunningServer, is_streamed: bool) -> None:
    body: dict[str, Any] = {"prompt": "hi", "max_tokens": 4, "logprobs": 2, "echo": True}
    if is_streamed:
        chunks = [chunk["choices"][0]["logprobs"] for chunk in stream(server, **body)]
        logprobs = {name: [value for chunk in chunks for value in chunk[name]] for name in chunks[0]}
    else:
        logprobs = complete(server, **body)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["h", "i", "G", "r", "\ufffd", "\ufffd"]
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4, 5]
    assert logprobs["token_logprobs"] == [None, -0.5, -0.5, -0.5, -0.5, -0.5]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["top_logprobs"][1] == {"i": -0.5, "!": -0.75, '"': -9999.0}


def test_tokens_as_ids(server: RunningServer) -> None:
    answer = complete(server, logprobs=0, return_tokens_as_token_ids=True, max_tokens=1)
    assert answer["choices"][0]["logprobs"]["tokens"] == ["token_id:38"]


def test_tokens_as_ids_for_all_requests(start_server: StartServer) -> None:
    server = start_server(FakeEngine(), return_tokens_as_token_ids=True)
    assert complete(server, logprobs=0, max_tokens=1)["choices"][0]["logprobs"]["tokens"] == ["token_id:38"]
    body = {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "max_tokens": 1}
    answer = server.client.post("/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["logprobs"]["content"][0]["token"] == "token_id:38"


def test_any_model_name_if_the_owner_says_so(start_server: StartServer) -> None:
    body = {"model": "another", "prompt": "hi", "max_tokens": 1}
    assert start_server(FakeEngine()).client.post("/v1/completions", json=body).status_code == 404
    server = start_server(FakeEngine(), skip_model_name_validation=True)
    assert complete(server, model="another", max_tokens=1)["model"] == "another"


@pytest.mark.parametrize("is_streamed", [False, True])
def test_echo_without_generation(server: RunningServer, is_streamed: bool) -> None:
    body: dict[str, Any] = {"prompt": "hello", "max_tokens": 0, "logprobs": 1, "echo": True}
    if is_streamed:
        chunks = stream(server, **body, stream_options={"include_usage": True})
        choice, usage = chunks[0]["choices"][0], chunks[-1]["usage"]
    else:
        answer = complete(server, **body)
        choice, usage = answer["choices"][0], answer["usage"]
    assert choice["text"] == "hello"
    assert choice["logprobs"]["tokens"] == list("hello")
    assert usage["completion_tokens"] == 0


def test_echo_of_token_ids(server: RunningServer) -> None:
    assert complete(server, prompt=[71, 72], echo=True)["choices"][0]["text"] == "hi" + REPLY


def test_prompt_logprobs(server: RunningServer) -> None:
    choice = complete(server, prompt_logprobs=1, max_tokens=1)["choices"][0]
    assert choice["prompt_logprobs"][0] is None
    assert choice["prompt_logprobs"][1]["72"] == {"logprob": -0.5, "rank": 1, "decoded_token": "i"}
    assert choice["logprobs"] is None


@pytest.mark.parametrize("is_streamed", [False, True])
def test_token_ids(server: RunningServer, is_streamed: bool) -> None:
    body: dict[str, Any] = {"prompt": "hi", "max_tokens": 3, "return_token_ids": True}
    if is_streamed:
        choices = [chunk["choices"][0] for chunk in stream(server, **body)]
    else:
        choices = complete(server, **body)["choices"]
    assert choices[0]["prompt_token_ids"] == [71, 72]
    assert [token for choice in choices for token in choice["token_ids"]] == [38, 81, 127]
    assert all("prompt_token_ids" not in choice for choice in choices[1:])


def test_usage_in_streams(server: RunningServer) -> None:
    chunks = stream(server, prompt="hi", max_tokens=2, stream_options={"include_usage": True})
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 4
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = stream(server, prompt="hi", max_tokens=2, stream_options=options)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 2]


@pytest.mark.parametrize(
    ("limit", "side", "expected"), [(3, None, "def"), (3, "right", "abc"), (-1, None, "abcdef"), (99, None, "abcdef")]
)
def test_truncation(server: RunningServer, limit: int, side: str | None, expected: str) -> None:
    answer = complete(server, prompt="abcdef", truncate_prompt_tokens=limit, truncation_side=side, echo=True)
    assert answer["choices"][0]["text"] == expected + REPLY
    assert len(server.engine.calls[0]["prompt_token_ids"]) == len(expected)


def test_unknown_fields_are_ignored_and_null_is_the_default(server: RunningServer) -> None:
    complete(server, store=True, metadata={}, temperature=None, stop=None, n=None, logit_bias=None, suffix=None)


def test_failure_after_the_start_is_an_event(server: RunningServer) -> None:
    chunks = stream(server, prompt="fail late", max_tokens=100)
    assert texts(chunks[:-1])[0] == "Gr"
    assert chunks[-1]["error"] == {
        "message": "The step produced NaN.",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }


def test_best_of_all_is_n(server: RunningServer) -> None:
    body = {"prompt": "hi", "n": 2, "best_of": 2, "temperature": 1}
    assert len(server.client.post("/v1/completions", json=body).json()["choices"]) == 2
