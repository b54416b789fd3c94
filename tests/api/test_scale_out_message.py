"""Tokens in, a message out; and what the steps tell each other about the conversation."""

from typing import Any

from fake_engine import FakeEngine
from running_server import RunningServer, StartServer
from test_scale_out import GENERATE, post, refusal

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
            assert message["tool_calls"][0].pop("id").startswith("call_")
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
