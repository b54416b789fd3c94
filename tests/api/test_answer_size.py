"""No few bytes of a request can ask for gigabytes of prompts or of answer."""

from typing import Any

import pytest
from running_server import RunningServer

from octavo.api import answer_size

HELLO = [{"role": "user", "content": "hi"}]
LIMIT = 1000


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_PROMPT_ENTRIES", "MAX_REPEATED_CHARACTERS", "MAX_PROMPT_TOKENS"):
        monkeypatch.setattr(answer_size, name, LIMIT)


def said(role: str, text: str) -> list[dict[str, str]]:
    return [{"role": role, "content": text}]


COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
GENERATE = "/inference/v1/generate"


@pytest.mark.parametrize(
    ("path", "body", "more"),
    [
        (COMPLETIONS, {"prompt": "x" * 100, "echo": True, "n": 10}, {"n": 11}),
        (COMPLETIONS, {"prompt": ["x" * 100] * 10, "echo": True}, {"prompt": ["x" * 100] * 11}),
        (COMPLETIONS, {"prompt": "x" * 100, "echo": True, "logprobs": 9}, {"logprobs": 10}),
        (COMPLETIONS, {"prompt": ["x" * 50] * 2, "echo": True, "logprobs": 9}, {"n": 2}),
        (COMPLETIONS, {"prompt": "x" * 100, "prompt_logprobs": 9}, {"prompt_logprobs": 10}),
        (COMPLETIONS, {"prompt": [5] * 100, "return_token_ids": True, "n": 10}, {"n": 11}),
        (CHAT, {"messages": HELLO, "prompt_logprobs": 9}, {"messages": said("user", "x" * 100)}),
        (
            CHAT,
            {"messages": said("assistant", "x" * 90), "echo": True, "add_generation_prompt": False, "n": 10},
            {"n": 11},
        ),
        (CHAT, {"messages": said("x" * 90, "hi"), "add_generation_prompt": False, "n": 10}, {"n": 12}),
        (GENERATE, {"token_ids": [5] * 100, "sampling_params": {"prompt_logprobs": 9}}, {"token_ids": [5] * 101}),
        (f"{CHAT}/batch", {"messages": [said("user", "x" * 100)] * 8}, {"messages": [said("user", "x" * 100)] * 10}),
    ],
)
def test_what_is_repeated_is_bounded(
    server: RunningServer, path: str, body: dict[str, Any], more: dict[str, Any]
) -> None:
    if "sampling_params" not in body:
        body = {"temperature": 1, "max_tokens": 2, **body}
    response = server.client.post(path, json=body)
    assert response.status_code == 200, response.text
    response = server.client.post(path, json={**body, **more})
    assert response.status_code == 400, response.text
    assert str(LIMIT) in response.json()["error"]["message"]


def test_values_for_the_template_count_in_every_conversation(server: RunningServer) -> None:
    body: dict[str, Any] = {"messages": [HELLO] * 5, "chat_template_kwargs": {"mood": "x" * 100}}
    assert server.client.post(f"{CHAT}/batch", json=body).status_code == 200
    body["messages"] = [HELLO] * 10
    assert server.client.post(f"{CHAT}/batch", json=body).status_code == 400


def test_many_texts_are_the_same_prompts_as_one_at_a_time(server: RunningServer) -> None:
    prompts = [f"{number} " * 300 for number in range(5)]
    alone = [server.client.post(COMPLETIONS, json={"prompt": prompt}).json() for prompt in prompts]
    calls = [(call["prompt"], call["prompt_token_ids"]) for call in server.engine.calls]
    server.engine.calls.clear()
    together = server.client.post(COMPLETIONS, json={"prompt": prompts}).json()
    assert [(call["prompt"], call["prompt_token_ids"]) for call in server.engine.calls] == calls
    assert together["usage"]["prompt_tokens"] == sum(answer["usage"]["prompt_tokens"] for answer in alone)
