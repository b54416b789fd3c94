"""Fields that vLLM's clients read are null where vLLM sends null, and usage is counted as there."""

import json
from typing import Any

import pytest
from running_server import RunningServer, StartServer

HELLO = [{"role": "user", "content": "hi"}]


def events(server: RunningServer, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    text = server.client.post(path, json={**body, "stream": True}).text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def test_whole_answers_have_null_where_nothing_was_asked_for(server: RunningServer) -> None:
    chat = server.client.post("/v1/chat/completions", json={"messages": HELLO}).json()
    assert [chat[name] for name in ("prompt_logprobs", "prompt_token_ids", "kv_transfer_params")] == [None] * 3
    text = server.client.post("/v1/completions", json={"prompt": "hi"}).json()
    assert text["kv_transfer_params"] is None
    choice = text["choices"][0]
    assert [choice[name] for name in ("prompt_logprobs", "prompt_token_ids", "token_ids")] == [None] * 3


def test_events_leave_them_out(server: RunningServer) -> None:
    for path, body in (("/v1/chat/completions", {"messages": HELLO}), ("/v1/completions", {"prompt": "hi"})):
        for event in events(server, path, body):
            keys = {*event, *(key for choice in event["choices"] for key in choice)}
            assert not keys & {"prompt_logprobs", "prompt_token_ids", "token_ids", "kv_transfer_params"}


@pytest.mark.parametrize("is_forced", [False, True])
def test_every_event_counts_what_has_come(start_server: StartServer, is_forced: bool) -> None:
    server = start_server(enable_force_include_usage=is_forced)
    options = {} if is_forced else {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    told = events(server, "/v1/chat/completions", {"messages": HELLO, "max_tokens": 5, **options})
    counts = [event["usage"]["completion_tokens"] for event in told]
    assert counts[0] == 0, "the first event tells the role, before there is a token"
    assert counts == sorted(counts) and counts[-1] == 5
    assert told[-1]["choices"] == []
