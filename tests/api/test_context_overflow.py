"""A prompt that does not fit, in the words by which clients know the case and shorten the conversation."""

import re
from typing import Any

import pytest
from fake_engine import FakeEngine
from running_server import RunningServer, StartServer

LIMIT = 200


@pytest.fixture
def server(start_server: StartServer) -> RunningServer:
    engine = FakeEngine()
    engine.info.max_model_len = LIMIT
    return start_server(engine)


def error_of(server: RunningServer, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = server.client.post(path, json=body)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_and_its_answer_that_do_not_fit(server: RunningServer, stream: bool) -> None:
    messages = [{"role": "user", "content": "x" * 100}]
    error = error_of(
        server, "/v1/chat/completions", {"messages": messages, "max_completion_tokens": 150, "stream": stream}
    )
    assert error["code"] == "context_length_exceeded"
    found = re.fullmatch(
        r"This model's maximum context length is 200 tokens\. However, you requested (\d+) tokens "
        r"\((\d+) in the messages, 150 in the completion\)\. Please reduce the length of the messages or completion\.",
        error["message"],
    )
    assert found is not None, error
    assert int(found[1]) == int(found[2]) + 150 and int(found[2]) > 100


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 300}]}),
        ("/v1/completions", {"prompt": "x" * 300}),
        ("/v1/responses", {"input": "x" * 300}),
    ],
)
def test_a_prompt_that_does_not_fit_alone(server: RunningServer, path: str, body: dict[str, Any]) -> None:
    error = error_of(server, path, body)
    assert error["code"] == "context_length_exceeded"
    assert re.match(
        r"This model's maximum context length is 200 tokens\. However, your messages resulted in (at least )?3\d\d "
        r"tokens\. Please reduce the length of the messages\.$",
        error["message"],
    ), error


def test_completions_say_the_same(server: RunningServer) -> None:
    error = error_of(server, "/v1/completions", {"prompt": "x" * 100, "max_tokens": 150})
    assert error["code"] == "context_length_exceeded"
    assert "you requested 250 tokens (100 in the messages, 150 in the completion)" in error["message"]


def test_anthropics_words_are_its_own(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "x" * 300}]
    error = error_of(server, "/v1/messages", {"model": "fake/model", "max_tokens": 5, "messages": messages})
    assert error["type"] == "invalid_request_error"
    assert re.match(r"prompt is too long: 3\d\d tokens > 200 maximum\.$", error["message"]), error


def test_other_errors_keep_the_status_as_their_code(server: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "temperature": -1}
    assert error_of(server, "/v1/chat/completions", body)["code"] == 400
