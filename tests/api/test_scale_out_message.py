"""Tokens in, a message out; and what the steps tell each other about the conversation."""

from typing import Any

from fake_engine import FakeEngine
from running_server import RunningServer, StartServer
from test_scale_out import GENERATE, post, refusal, stream

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
PARSERS = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}


def test_a_message_out(start_server: StartServer) -> None:
    """What generates can tell a message apart, with what the render route says of the conversation."""
    server = start_server(FakeEngine(reply=f"<think>hm</think>Look: {CALL}"), **PARSERS)
    chat = {"messages": [{"role": "user", "content": "hi"}], "tools": [WEATHER], "max_tokens": 300, "n": 2}
    rendered = post(server, "/v1/chat/completions/render", **chat)
    answer = post(server, GENERATE, **rendered, output_mode="derender")
    expected = post(server, "/v1/chat/completions", **chat)
    assert answer["output_mode"] == "derender" and len(answer["choices"]) == 2
    for got, want in zip(answer["choices"], expected["choices"], strict=True):
        for message in (got["message"], want["message"]):
            assert message["tool_calls"][0].pop("id").startswith("chatcmpl-tool-")
        assert got["message"] == want["message"]
        assert got["message"]["reasoning"] == "hm"
        assert got["finish_reason"] == want["finish_reason"] == "tool_calls"
        assert got["token_ids"] == server.engine.tokenizer.encode(server.engine.reply)
    assert answer["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"]


def test_a_message_needs_its_context_where_there_are_parsers(start_server: StartServer) -> None:
    server = start_server(FakeEngine(), **PARSERS)
    body = {"token_ids": [1], "sampling_params": {}, "output_mode": "derender"}
    assert "parse_context" in refusal(server, GENERATE, **body)
    named = {"tool_choice": {"type": "function", "function": {"name": "nope"}}}
    assert "tool_choice" in refusal(server, GENERATE, **body, parse_context=named)
    assert "stream" in refusal(server, GENERATE, **body, stream=True)
    bare = start_server(FakeEngine(), tool_call_parser="", reasoning_parser="")
    text = post(bare, GENERATE, **{**body, "output_mode": "text"})["choices"][0]["text"]
    assert post(bare, GENERATE, **body)["choices"][0]["message"]["content"] == text


def test_the_format_begins_where_reasoning_ends(start_server: StartServer) -> None:
    server = start_server(FakeEngine(), **{**PARSERS, "reasoning_parser": "deepseek_v3"})
    chat = {
        "messages": [{"role": "user", "content": "hi"}],
        "response_format": {"type": "json_object"},
        "chat_template_kwargs": {"thinking": True},
    }
    for fields, has_ended in (({}, False), ({"include_reasoning": False}, True)):
        rendered = post(server, "/v1/chat/completions/render", **chat, **fields)
        assert rendered["reasoning_ended"] is has_ended
        post(server, GENERATE, **rendered)
        constraint = server.engine.calls[-1]["params"].structured_outputs
        assert (constraint.start_after is None) is has_ended
    params = {"structured_outputs": {"json_object": True}}
    post(server, GENERATE, token_ids=[1], sampling_params=params, reasoning_ended=False)
    start = server.engine.calls[-1]["params"].structured_outputs.start_after
    assert server.engine.tokenizer.decode(start) == "</think>"


def test_a_messages_log_probabilities_are_of_the_tokens_asked_for(start_server: StartServer) -> None:
    server = start_server(FakeEngine(), **PARSERS)
    fields = {"logprobs": True, "logprob_token_ids": [65, 66], "max_tokens": 2}
    chat = {"messages": [{"role": "user", "content": "hi"}], **fields}
    rendered = post(server, "/v1/chat/completions/render", **chat)
    answer = post(server, GENERATE, **rendered, output_mode="derender")
    expected = post(server, "/v1/chat/completions", **chat)["choices"][0]["logprobs"]["content"]
    assert answer["choices"][0]["logprobs"]["content"] == expected and expected[0]["top_logprobs"]


def test_hidden_reasoning_is_not_spelled_by_tokens(start_server: StartServer) -> None:
    server = start_server(FakeEngine(reply="<think>hm</think>Five."), **PARSERS)
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "max_tokens": 300}
    for is_shown in (True, False):
        body = {**chat, "include_reasoning": is_shown, "return_token_ids": True}
        (choice,) = post(server, "/v1/chat/completions", **body)["choices"]
        rendered = post(server, "/v1/chat/completions/render", **body)
        (inline,) = post(server, GENERATE, **rendered, output_mode="derender")["choices"]
        generated = post(server, GENERATE, **rendered)
        request = {"generate_response": generated, "chat_request": body}
        (derendered,) = post(server, "/v1/chat/completions/derender", **request)["choices"]
        for found in (choice, inline, derendered):
            assert found["message"]["content"] == "Five."
            assert found["message"]["reasoning"] == ("hm" if is_shown else None)
            assert (found["logprobs"] is not None) is is_shown
            assert (found["token_ids"] is not None) is is_shown
        chunks = stream(server, "/v1/chat/completions", **body)
        parts = [part for chunk in chunks for part in chunk["choices"]]
        assert any(part.get("logprobs") for part in parts) is is_shown
        assert any(part.get("token_ids") for part in parts) is is_shown
        assert "".join(part["delta"].get("content") or "" for part in parts) == "Five."


def test_reasoning_alone_has_no_content(start_server: StartServer) -> None:
    """As vLLM has it; an answer without any text is still a text."""
    server = start_server(FakeEngine(reply="<think>hm"), **PARSERS)
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 300}
    assert post(server, "/v1/chat/completions", **chat)["choices"][0]["message"]["content"] is None
    hidden = post(server, "/v1/chat/completions", **chat, include_reasoning=False)["choices"][0]["message"]
    assert (hidden["content"], hidden["reasoning"]) == (None, None)
    silent = {"choices": [{"index": 0, "token_ids": [256]}]}
    answer = post(server, "/v1/chat/completions/derender", generate_response=silent, chat_request=chat)
    assert answer["choices"][0]["message"]["content"] == ""


def test_what_the_other_server_measured_is_passed_on(server: RunningServer) -> None:
    (token_id,) = server.engine.tokenizer.encode("A")
    drafts = {"mean_acceptance_length": 2.0, "draft_acceptance_rate": 0.5, "acceptance_histogram": [0, 1]}
    drafts |= {"num_spec_steps": 1, "num_accepted_draft_tokens": 1, "num_draft_tokens": 2, "num_spec_tokens": 1}
    positions = [None, {"65": {"logprob": -0.5, "rank": 1, "decoded_token": "A"}}]
    given: dict[str, Any] = {"choices": [{"index": 0, "token_ids": [token_id]}], "prompt_logprobs": positions}
    given["metrics"] = {"queue_time_ms": 1, "speculative_decoding": drafts}
    answer = post(server, "/v1/chat/completions/derender", generate_response=given)
    assert answer["prompt_logprobs"] == positions
    assert answer["metrics"]["speculative_decoding"] == {**drafts, "per_step_accepted": None, "per_step_drafted": None}
    assert (answer["metrics"]["queue_time_ms"], answer["metrics"]["mean_itl_ms"]) == (1.0, None)
    several = post(server, "/v1/completions/derender", generate_responses=[given, given])
    assert "metrics" not in several
    for wrong in ({"metrics": 5}, {"metrics": {"speculative_decoding": {}}}, {"prompt_logprobs": [{"x": {}}]}):
        sentence = refusal(server, "/v1/chat/completions/derender", generate_response={**given, **wrong})
        assert next(iter(wrong)) in sentence


def test_too_many_choices_are_counted_not_read(server: RunningServer) -> None:
    choices = [{"index": -1}] * 20_000
    sentence = refusal(server, "/v1/chat/completions/derender", generate_response={"choices": choices})
    assert "choices count is 20000" in sentence
    sentence = refusal(server, "/v1/completions/derender", generate_responses=[{}] * 20_000)
    assert "generate_responses count is 20000" in sentence


def test_log_probabilities_need_no_request_to_be_told(server: RunningServer) -> None:
    (token_id,) = server.engine.tokenizer.encode("A")
    entry = {"token_id": token_id, "logprob": -0.5, "top_logprobs": [{"token_id": token_id, "logprob": -0.5}]}
    choice = {"index": 0, "token_ids": [token_id], "logprobs": {"content": [entry]}}
    answer = post(server, "/v1/chat/completions/derender", generate_response={"choices": [choice]})
    (position,) = answer["choices"][0]["logprobs"]["content"]
    assert (position["token"], position["bytes"], len(position["top_logprobs"])) == ("A", [65], 1)
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
    for request, is_told in ((chat, True), ({**chat, "logprobs": False}, False)):
        body = {"generate_response": {"choices": [choice]}, "chat_request": request}
        answer = post(server, "/v1/chat/completions/derender", **body)
        assert (answer["choices"][0]["logprobs"] == {"content": [position]}) is is_told
    answer = post(server, "/v1/completions/derender", generate_responses=[{"choices": [choice]}])
    assert answer["choices"][0]["logprobs"]["tokens"] == ["A"]
    many = {**choice, "logprobs": {"content": [{**entry, "top_logprobs": entry["top_logprobs"] * 25}]}}
    sentence = refusal(server, "/v1/chat/completions/derender", generate_response={"choices": [many]})
    assert sentence == "top_logprobs count 25 exceeds max_logprobs, 20."
