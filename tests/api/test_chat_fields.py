"""Fields of chat and completions that change what comes back: thoughts, searches, chosen log-probabilities."""

import json
import socket
from typing import Any

import msgspec
import pytest
from fake_engine import REPLY, FakeEngine
from running_server import RunningServer, StartServer
from test_connections import request_bytes, until

from octavo.api.chat.formats import check_names
from octavo.api.usage import StreamedMetrics, request_metrics
from octavo.config import ModelSettings, ServerSettings
from octavo.errors import ConfigError
from octavo.records import RequestOutput, RequestStateStats

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hi"}]
THOUGHTFUL = "let me see</think>\n\nyes"


def post(server: RunningServer, path: str, **fields: Any) -> dict[str, Any]:
    subject = {"messages": HELLO} if path == CHAT else {"prompt": "hi"}
    response = server.client.post(path, json={**subject, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def stream(server: RunningServer, path: str, **fields: Any) -> list[dict[str, Any]]:
    subject = {"messages": HELLO} if path == CHAT else {"prompt": "hi"}
    with server.client.stream("POST", path, json={**subject, **fields, "stream": True}) as response:
        assert response.status_code == 200
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


@pytest.fixture
def thinker(start_server: StartServer) -> RunningServer:
    return start_server(FakeEngine(reply=THOUGHTFUL), reasoning_parser="deepseek_r1")


def test_tokens_of_thoughts_are_counted_alike_in_streams(thinker: RunningServer) -> None:
    whole = post(thinker, CHAT)
    assert whole["choices"][0]["message"]["reasoning"] == "let me see"
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": len("let me see")}
    chunks = stream(thinker, CHAT, stream_options={"include_usage": True, "include_obfuscation": True})
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    # Whether the first letters of the end tag belong to the thought shows only later.
    num_counted = chunks[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 0 <= num_counted - len("let me see") < len("</think>")


def test_models_that_do_not_think_count_no_thoughts(server: RunningServer) -> None:
    assert "completion_tokens_details" not in post(server, CHAT)["usage"]


def test_a_thought_that_breaks_off_is_all_thought(thinker: RunningServer) -> None:
    usage = post(thinker, CHAT, max_tokens=5)["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 5}


def test_thinking_budgets_reach_the_engine_with_the_tags(thinker: RunningServer) -> None:
    post(thinker, CHAT, thinking_token_budget=7)
    post(thinker, COMPLETIONS, thinking_token_budget=7)
    post(thinker, COMPLETIONS, prompt=[60, 61], thinking_token_budget=7)
    tokenizer = thinker.engine.tokenizer
    assert tokenizer is not None
    for call in thinker.engine.calls:
        assert call["params"].thinking_token_budget == 7
        assert tokenizer.decode(call["params"].reasoning_tags.end) == "</think>"
        assert [tokenizer.decode(tag) for tag in call["params"].reasoning_tags.start] == ["<think>"]
        assert call["params"].reasoning_tags.is_open
    post(thinker, COMPLETIONS, prompt="<think>x</think>", thinking_token_budget=7)
    assert not thinker.engine.calls[-1]["params"].reasoning_tags.is_open


def test_an_owner_may_set_how_reasoning_is_ended(start_server: StartServer) -> None:
    markers = {"reasoning_start_str": "<think>", "reasoning_end_str": "Enough.</think>"}
    server = start_server(reasoning_parser="deepseek_r1", reasoning_config=markers)
    post(server, CHAT, thinking_token_budget=7)
    tags, tokenizer = server.engine.calls[-1]["params"].reasoning_tags, server.engine.tokenizer
    assert tokenizer is not None
    assert tokenizer.decode(tags.forced_end) == "Enough.</think>"
    assert tokenizer.decode(tags.end) == "</think>"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"reasoning_config": {"reasoning_end_str": "x"}}, "needs a reasoning_parser"),
        ({"reasoning_config": {"end": "x"}, "reasoning_parser": "qwen3"}, "no field 'end'"),
        ({"reasoning_config": {"reasoning_end_str": 1}, "reasoning_parser": "qwen3"}, "must be strings"),
        ({"reasoning_config": {"reasoning_parser": "glm45"}, "reasoning_parser": "qwen3"}, "as reasoning_parser"),
    ],
)
def test_markers_that_cannot_be_used(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_names(ModelSettings(model="m", **fields), ServerSettings())


def test_budgets_need_thoughts_between_tags(start_server: StartServer) -> None:
    for parser in ("", "openai_gptoss"):
        server = start_server(reasoning_parser=parser)
        response = server.client.post(CHAT, json={"messages": HELLO, "thinking_token_budget": 3})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "thinking_token_budget"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_search_gives_its_best_texts(server: RunningServer, path: str) -> None:
    fields = {"use_beam_search": True, "n": 3, "max_tokens": 4, "temperature": 0, "length_penalty": 0.5}
    whole = post(server, path, **fields)
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    texts = [choice["message"]["content"] if path == CHAT else choice["text"] for choice in whole["choices"]]
    assert len(set(texts)) == 3
    assert {choice["finish_reason"] for choice in whole["choices"]} == {"length"}
    assert whole["usage"]["completion_tokens"] == 12
    assert {call["params"].max_tokens for call in server.engine.calls} == {1}
    assert max(len(call["prompt_token_ids"]) for call in server.engine.calls) > 3
    chunks = stream(server, path, **fields)
    for index, text in enumerate(texts):
        found = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        pieces = [choice["delta"].get("content") or "" if path == CHAT else choice["text"] for choice in found]
        assert "".join(pieces) == text
        assert found[-1]["finish_reason"] == "length"
    assert server.engine.num_running == 0


def test_a_search_shows_as_many_log_probabilities_as_asked_for(server: RunningServer) -> None:
    answer = post(server, COMPLETIONS, use_beam_search=True, n=2, max_tokens=3, logprobs=1)
    for choice in answer["choices"]:
        assert len(choice["logprobs"]["token_logprobs"]) == 3
        assert all(1 <= len(top) <= 2 for top in choice["logprobs"]["top_logprobs"])
    answer = post(server, CHAT, use_beam_search=True, n=2, max_tokens=3, logprobs=True, top_logprobs=5)
    assert len(answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 5


def test_a_search_does_not_go_with_bound_answers(server: RunningServer) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {"messages": HELLO, "tools": [tool], "tool_choice": "required", "use_beam_search": True}
    response = server.client.post(CHAT, json=body)
    assert response.status_code == 400 and "Beam search" in response.json()["error"]["message"]


def named(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name}} for name in names]


def test_a_choice_may_allow_some_of_the_tools(server: RunningServer) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named("b", "c")}}
    post(server, CHAT, tools=named("a", "b", "c"), tool_choice=choice)
    assert server.engine.calls[-1]["prompt"] == "user: hi\ntools: 2\nassistant: "


@pytest.mark.parametrize(
    "allowed",
    [None, {}, {"mode": "auto"}, {"mode": "none", "tools": named("a")}, {"mode": "auto", "tools": []}]
    + [{"mode": "required", "tools": tools} for tools in (named("z"), [{"type": "function"}], [5], "a")],
)
def test_a_choice_that_allows_what_is_not_there_is_refused(server: RunningServer, allowed: Any) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    response = server.client.post(CHAT, json={"messages": HELLO, "tools": named("a"), "tool_choice": choice})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tool_choice"


def test_log_probabilities_of_chosen_tokens(server: RunningServer) -> None:
    post(server, CHAT, logprobs=True, logprob_token_ids=[5, 9])
    assert server.engine.calls[-1]["params"].logprob_token_ids == [5, 9]
    post(server, COMPLETIONS, logprobs=0, logprob_token_ids=[5, 9])
    assert server.engine.calls[-1]["params"].logprob_token_ids == [5, 9]


def test_limits_and_custom_values_reach_the_engine(server: RunningServer) -> None:
    detection = {"max_pattern_size": 8, "min_pattern_size": 2, "min_count": 4}
    post(server, COMPLETIONS, repetition_detection=detection, vllm_xargs={"alpha": 0.5, "names": ["a", 1]})
    params = server.engine.calls[-1]["params"]
    assert (params.repetition_detection.max_pattern_size, params.repetition_detection.min_count) == (8, 4)
    assert params.extra_args == {"alpha": 0.5, "names": ["a", 1]}


def test_the_prompt_as_the_model_reads_it(server: RunningServer) -> None:
    assert post(server, CHAT, return_prompt_text=True)["prompt_text"] == "user: hi\nassistant: "
    chunks = stream(server, CHAT, return_prompt_text=True)
    assert [chunk.get("prompt_text") for chunk in chunks[:2]] == ["user: hi\nassistant: ", None]
    assert "prompt_text" not in post(server, CHAT)


def test_developers_are_called_system_where_the_template_does_not_know_them(server: RunningServer) -> None:
    post(server, CHAT, messages=[{"role": "developer", "content": "be brief"}, *HELLO])
    assert server.engine.calls[-1]["prompt"] == "system: be brief\nuser: hi\nassistant: "


def test_what_openai_sends_and_nothing_depends_on_is_taken(server: RunningServer) -> None:
    answer = post(
        server,
        CHAT,
        store=True,
        metadata={"a": "b"},
        service_tier="auto",
        safety_identifier="x",
        prompt_cache_key="y",
        prediction={"type": "content", "content": "z"},
        verbosity="low",
        modalities=["text"],
        user="u",
        session_id="s",
        stream_interval=3,
    )
    assert answer["choices"][0]["message"]["content"] == REPLY


@pytest.mark.parametrize(
    "fields", [{"modalities": ["text", "audio"]}, {"audio": {"voice": "alloy"}}, {"web_search_options": {"a": 1}}]
)
def test_what_the_answer_would_lack_is_refused(server: RunningServer, fields: dict[str, Any]) -> None:
    response = server.client.post(CHAT, json={"messages": HELLO, **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == next(iter(fields))


def test_the_newer_name_of_the_limit_wins(server: RunningServer) -> None:
    post(server, CHAT, max_tokens=3, max_completion_tokens=5)
    assert server.engine.calls[-1]["params"].max_tokens == 5


def test_answers_tell_what_wrote_them(server: RunningServer) -> None:
    names = {post(server, path)["system_fingerprint"] for path in (CHAT, COMPLETIONS)}
    names |= {chunk["system_fingerprint"] for path in (CHAT, COMPLETIONS) for chunk in stream(server, path)}
    assert len(names) == 1 and names.pop().startswith("fp_")


def test_streams_echo_with_log_probabilities(server: RunningServer) -> None:
    chunks = stream(server, COMPLETIONS, echo=True, logprobs=1, max_tokens=2)
    first = chunks[0]["choices"][0]
    assert first["text"].startswith("hi")
    assert first["logprobs"]["token_logprobs"][0] is None and len(first["logprobs"]["tokens"]) == 3


def measured(**times: Any) -> RequestOutput:
    return RequestOutput("a", None, None, None, [], True, RequestStateStats(**times))


def test_latencies_of_a_request() -> None:
    output = measured(
        arrival_time=10.0,
        queued_ts=10.1,
        scheduled_ts=10.3,
        first_token_ts=10.5,
        last_token_ts=12.3,
        num_generation_tokens=20,
    )
    found = request_metrics(output, 2)
    assert found.time_to_first_token_ms == pytest.approx(500)
    assert found.queue_time_ms == pytest.approx(200)
    assert found.generation_time_ms == pytest.approx(1800)
    assert found.mean_itl_ms == pytest.approx(200)
    assert found.tokens_per_second == pytest.approx(10)
    one = measured(arrival_time=1.0, first_token_ts=2.0, scheduled_ts=2.0, last_token_ts=2.0, num_generation_tokens=1)
    assert (request_metrics(one, 1).mean_itl_ms, request_metrics(one, 1).tokens_per_second) == (None, None)
    assert "mean_itl_ms" not in msgspec.to_builtins(request_metrics(one, 1, StreamedMetrics))
    assert request_metrics(measured(), 1).time_to_first_token_ms is None


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_answers_tell_their_latencies_if_the_owner_wants_it(start_server: StartServer, path: str) -> None:
    server = start_server(enable_per_request_metrics=True)
    assert set(post(server, path)["metrics"]) >= {"time_to_first_token_ms", "tokens_per_second"}
    chunks = stream(server, path)
    assert ["metrics" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert not chunks[-1]["choices"] and "usage" not in chunks[-1]
    assert chunks[-2]["choices"][0]["finish_reason"] is not None
    chunks = stream(server, path, stream_options={"include_usage": True})
    assert "metrics" in chunks[-1] and chunks[-1]["usage"]["completion_tokens"] > 0


def test_a_client_that_leaves_ends_its_search(start_server: StartServer) -> None:
    server = start_server(FakeEngine(step_seconds=0.01))
    body = {"prompt": "hi", "use_beam_search": True, "n": 4, "max_tokens": 5000}
    with socket.create_connection(server.address) as connection:
        connection.sendall(request_bytes(body))
        until(lambda: len(server.engine.calls) > 4)
    until(lambda: not server.server.server_state.tasks)
    num_calls = len(server.engine.calls)
    post(server, COMPLETIONS)
    assert len(server.engine.calls) == num_calls + 1
