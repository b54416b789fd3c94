"""``/v1/messages`` as Anthropic's own client sees it, with a model that thinks and calls tools."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from fake_engine import FakeEngine
from running_server import RunningServer, StartServer, start
from test_connections import until

PATH = "/v1/messages"
TEMPLATE = """
{%- for tool in tools or [] %}tool: {{ tool.function.name }}{{ "\\n" }}{% endfor -%}
{%- for message in messages %}{{ message.role }}:{{ " " }}
{%- if message.reasoning_content %}({{ message.reasoning_content }}){{ " " }}{% endif -%}
{{ message.content }}
{%- for call in message.tool_calls or [] %}{{ " [" ~ call.id ~ " " ~ call.function.name }}
{{- call.function.arguments | tojson }}]{% endfor %}{{ "\\n" }}
{%- endfor -%}
{%- if reasoning_effort is defined %}effort: {{ reasoning_effort ~ "\\n" }}{% endif -%}
{%- if add_generation_prompt %}{{ "assistant: " }}{% endif -%}
{%- if add_generation_prompt and enable_thinking is defined and not enable_thinking -%}
{{ "<think>\\n\\n</think>\\n\\n" }}{% endif -%}
"""
REASONING = "The user wants the weather.\n"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich 😀", "days": [1, 2]}}\n</tool_call>'
REPLY = f"<think>\n{REASONING}</think>\n\nI will look. 世界\n{CALL}\n{CALL}"
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
HELLO: list[Any] = [{"role": "user", "content": "hi"}]
BODY: dict[str, Any] = {"model": "fake/model", "max_tokens": 2000, "messages": HELLO}


def thinking_engine(reply: str = REPLY, step_seconds: float = 0.0) -> FakeEngine:
    engine = FakeEngine(reply, step_seconds)
    assert engine.chat_renderer is not None
    engine.chat_renderer = engine.chat_renderer.with_template(TEMPLATE)
    return engine


@pytest.fixture(scope="module")
def _server(stopped_servers: list[RunningServer]) -> Iterator[RunningServer]:
    server = start(thinking_engine(), reasoning_parser="qwen3", tool_call_parser="hermes")
    yield server
    server.stop()
    stopped_servers.append(server)


@pytest.fixture
def server(_server: RunningServer) -> RunningServer:
    _server.engine.calls.clear()
    _server.engine.reply = REPLY
    return _server


@pytest.fixture
def client(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def prompt(server: RunningServer) -> str:
    text: str = server.engine.calls[-1]["prompt"]
    return text


def post(server: RunningServer, **fields: Any) -> dict[str, Any]:
    response = server.client.post(PATH, json={**BODY, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def events(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    response = server.client.post(PATH, json={**BODY, "stream": True, **fields})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for event in response.text.strip().split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_whole_answer(client: anthropic.Anthropic, server: RunningServer) -> None:
    message = client.messages.create(**BODY, tools=[WEATHER])
    thinking, text, first, second = message.content
    assert thinking.type == "thinking" and thinking.thinking.strip() == REASONING.strip()
    assert thinking.signature
    assert text.type == "text" and text.text.strip() == "I will look. 世界"
    assert first.type == "tool_use" and first.name == "weather"
    assert first.input == {"city": "Zürich 😀", "days": [1, 2]}
    assert second.type == "tool_use" and second.id != first.id
    assert (message.role, message.stop_reason, message.stop_sequence) == ("assistant", "tool_use", None)
    usage = message.usage
    num_prompt = len(prompt(server).encode())
    assert num_prompt > 16
    # All whole blocks of the prompt are in the cache now; it had three tokens before.
    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (3, num_prompt // 16 * 16 - 3)
    assert usage.input_tokens == num_prompt % 16
    assert usage.output_tokens == len(REPLY.encode())
    assert usage.output_tokens_details is not None
    assert usage.output_tokens_details.thinking_tokens == len(thinking.thinking)
    assert prompt(server) == "tool: weather\nuser: hi\nassistant: "


def test_streams_and_whole_answers_agree(client: anthropic.Anthropic, server: RunningServer) -> None:
    whole = client.messages.create(**BODY, tools=[WEATHER])
    inputs: list[object] = []
    with client.messages.stream(**BODY, tools=[WEATHER]) as stream:
        for event in stream:
            if event.type == "input_json":
                inputs.append(event.snapshot)
        streamed = stream.get_final_message()
    assert len(inputs) > 20
    ids = {block.id for message in (whole, streamed) for block in message.content if block.type == "tool_use"}
    assert len(ids) == 4
    for message in (whole, streamed):
        message.id = ""
        for block in message.content:
            if block.type == "tool_use":
                block.id = ""
    assert streamed.to_dict() == whole.to_dict()


def test_the_order_of_events(server: RunningServer) -> None:
    found = events(server, tools=[WEATHER])
    names = [event["type"] for event in found]
    assert names[:2] == ["message_start", "ping"]
    assert names[-2:] == ["message_delta", "message_stop"]
    start_message = found[0]["message"]
    assert start_message["content"] == [] and start_message["stop_reason"] is None
    assert start_message["usage"]["input_tokens"] == len(prompt(server).encode())
    assert start_message["usage"]["output_tokens"] <= 1
    open_block: int | None = None
    kinds = []
    for event in found[2:-2]:
        match event["type"]:
            case "content_block_start":
                assert open_block is None
                open_block = event["index"]
                assert open_block == len(kinds)
                kinds.append(event["content_block"]["type"])
            case "content_block_delta":
                assert event["index"] == open_block
            case "content_block_stop":
                assert event["index"] == open_block
                open_block = None
            case other:
                raise AssertionError(other)
    assert open_block is None
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    assert found[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None, "stop_details": None}
    assert found[-2]["usage"]["output_tokens"] == len(REPLY.encode())


@pytest.mark.parametrize("max_tokens", [1, 3, 20, 37, 50, 100, 140, 2000])
def test_answers_cut_short_agree_too(client: anthropic.Anthropic, server: RunningServer, max_tokens: int) -> None:
    body = {**BODY, "max_tokens": max_tokens, "tools": [WEATHER]}
    whole = client.messages.create(**body)
    with client.messages.stream(**body) as stream:
        streamed = stream.get_final_message()
    assert whole.stop_reason == streamed.stop_reason == ("tool_use" if max_tokens == 2000 else "max_tokens")
    assert whole.usage == streamed.usage
    for one, other in zip(whole.content, streamed.content, strict=True):
        assert one.to_dict() | {"id": ""} == other.to_dict() | {"id": ""}


def test_answers_may_fill_the_context(server: RunningServer) -> None:
    """Clients ask for more than small contexts hold."""
    limit = server.engine.info.max_model_len
    message = {"role": "user", "content": "x" * (limit - 30)}
    answer = post(server, messages=[message], max_tokens=32000)
    assert server.engine.calls[-1]["params"].max_tokens == limit - len(prompt(server)) < 30
    assert answer["stop_reason"] == "model_context_window_exceeded"


def test_text_alone(client: anthropic.Anthropic, server: RunningServer) -> None:
    server.engine.reply = "<think>\n\n</think>\n\nHello 世界"
    message = client.messages.create(**BODY)
    (block,) = message.content
    assert block.type == "text" and block.text == "Hello 世界"
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens_details is None


def test_stop_sequences(client: anthropic.Anthropic, server: RunningServer) -> None:
    server.engine.reply = "<think>a</think>One two three"
    body = {**BODY, "stop_sequences": ["zwei", "two"]}
    message = client.messages.create(**body)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "two")
    assert message.content[-1].type == "text" and message.content[-1].text == "One "
    with client.messages.stream(**body) as stream:
        streamed = stream.get_final_message()
    assert (streamed.stop_reason, streamed.stop_sequence) == ("stop_sequence", "two")


def test_sampling(server: RunningServer) -> None:
    post(server, temperature=0.5, top_k=7, top_p=0.9, max_tokens=11, cache_salt="s", vllm_xargs={"a": 1}, priority=0)
    call = server.engine.calls[-1]
    params = call["params"]
    assert (params.temperature, params.top_k, params.top_p, params.max_tokens) == (0.5, 7, 0.9, 11)
    assert params.extra_args == {"a": 1}
    assert call["cache_salt"] == "s"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "user: hi\neffort: low\nassistant: "),
        ({"thinking": {"type": "enabled", "budget_tokens": 5000}}, "user: hi\neffort: medium\nassistant: "),
        ({"thinking": {"type": "enabled", "budget_tokens": 30000}}, "user: hi\neffort: high\nassistant: "),
        ({"thinking": {"type": "disabled"}}, "user: hi\nassistant: <think>\n\n</think>\n\n"),
        ({"thinking": {"type": "adaptive"}}, "user: hi\nassistant: "),
        ({"output_config": {"effort": "max"}}, "user: hi\neffort: high\nassistant: "),
        ({"output_config": {"effort": "low"}}, "user: hi\neffort: low\nassistant: "),
        (
            {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": True}},
            "user: hi\nassistant: ",
        ),
    ],
)
def test_thinking_and_effort(server: RunningServer, fields: dict[str, Any], expected: str) -> None:
    post(server, **fields)
    assert prompt(server) == expected


def test_models_that_always_think_may_think_less(start_server: StartServer) -> None:
    server = start_server(thinking_engine(), anthropic_disabled_thinking_effort="low")
    post(server, thinking={"type": "disabled"})
    assert "effort: low\n" in prompt(server)
    post(server, thinking={"type": "disabled"}, output_config={"effort": "high"})
    assert "effort: high\n" in prompt(server)
    post(server)
    assert "effort" not in prompt(server)


def test_thoughts_can_be_left_out(client: anthropic.Anthropic, server: RunningServer) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}
    message = client.messages.create(**BODY, thinking=thinking)
    assert message.content[0].type == "thinking"
    assert (message.content[0].thinking, bool(message.content[0].signature)) == ("", True)


def test_a_conversation_with_tools_goes_on(client: anthropic.Anthropic, server: RunningServer) -> None:
    first = client.messages.create(**BODY, tools=[WEATHER])
    call = next(block for block in first.content if block.type == "tool_use")
    result: Any = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": [{"type": "text", "text": "rain"}],
        "is_error": False,
    }
    messages = [
        *HELLO,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result, {"type": "text", "text": "and?"}]},
    ]
    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    client.messages.create(model="fake/model", max_tokens=9, messages=messages, tools=[WEATHER], system=system)
    text = prompt(server)
    assert text.startswith("tool: weather\nsystem: Be brief.\nuser: hi\nassistant: (The user wants the weather.")
    assert f'[{call.id} weather{{"city": "Zürich 😀", "days": [1, 2]}}]' in text
    assert text.endswith("tool: rain\nuser: and?\nassistant: ")


def test_messages_of_the_system_come_first(server: RunningServer) -> None:
    post(server, messages=[*HELLO, {"role": "system", "content": "New rule."}], system="Be brief.")
    assert prompt(server) == "system: Be brief.\nNew rule.\nuser: hi\nassistant: "


def test_an_answer_begun_is_continued(server: RunningServer) -> None:
    server.engine.reply = "B)"
    answer = post(server, messages=[*HELLO, {"role": "assistant", "content": "The answer is ("}])
    assert prompt(server).endswith("assistant: The answer is (")
    assert [block["text"] for block in answer["content"]] == ["B)"]


def test_one_call_at_a_time(server: RunningServer) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    answer = post(server, tools=[WEATHER], tool_choice=choice)
    assert [block["type"] for block in answer["content"]].count("tool_use") == 1


def test_no_tools_but_those_offered(server: RunningServer) -> None:
    answer = post(server, tools=[WEATHER], tool_choice={"type": "none"})
    assert [block["type"] for block in answer["content"]] == ["thinking", "text"]
    assert answer["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    ("choice", "reply", "called"),
    [
        ({"type": "any"}, '[{"name": "weather", "parameters": {"city": "Rome"}}]', [("weather", {"city": "Rome"})]),
        ({"type": "tool", "name": "weather"}, '{"city": "Rome"}', [("weather", {"city": "Rome"})]),
    ],
)
def test_forced_calls(server: RunningServer, choice: Any, reply: str, called: list[tuple[str, Any]]) -> None:
    server.engine.reply = f"<think>hm</think>{reply}"
    answer = post(server, tools=[WEATHER], tool_choice=choice)
    calls = [(block["name"], block["input"]) for block in answer["content"] if block["type"] == "tool_use"]
    assert calls == called
    assert answer["stop_reason"] == "tool_use"
    constraint = server.engine.calls[-1]["params"].structured_outputs
    assert constraint is not None and constraint.json is not None
    found = events(server, tools=[WEATHER], tool_choice=choice)
    deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    streamed = "".join(delta["partial_json"] for delta in deltas if delta["type"] == "input_json_delta")
    assert json.loads(streamed) == called[0][1]


def test_structured_answers(client: anthropic.Anthropic, server: RunningServer) -> None:
    server.engine.reply = '<think>hm</think>{"a": 1}'
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted = {"type": "json_schema", "schema": schema}
    for fields in ({"output_config": {"format": wanted}}, {"output_format": wanted}):
        answer = post(server, **fields)
        assert answer["content"][-1]["text"] == '{"a": 1}'
        constraint = server.engine.calls[-1]["params"].structured_outputs
        assert constraint.json == schema
        assert constraint.start_after == list(server.engine.tokenizer.encode("</think>"))


def test_tools_that_wait_to_be_found(server: RunningServer) -> None:
    tools = [WEATHER, {**WEATHER, "name": "later", "defer_loading": True}]
    post(server, tools=tools)
    assert prompt(server).startswith("tool: weather\nuser")
    found = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [{"type": "tool_reference", "tool_name": "later"}],
    }
    post(server, tools=tools, messages=[*HELLO, {"role": "user", "content": [found]}])
    assert prompt(server).startswith("tool: weather\ntool: later\nuser")
    changes = [
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "weather"}},
        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {**WEATHER, "name": "new"}}},
    ]
    post(server, tools=tools, messages=[*HELLO, {"role": "user", "content": changes}])
    assert prompt(server).startswith("tool: new\nuser")
    for role in ("user", "system"):
        post(server, tools=tools, messages=[*HELLO, {"role": role, "content": changes}])
        assert prompt(server).startswith("tool: new\nuser")
    again = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "weather"}}
    words = {"type": "text", "text": "Tools changed."}
    post(server, tools=tools, messages=[*HELLO, {"role": "system", "content": [words, *changes, again]}])
    assert prompt(server).startswith("tool: weather\ntool: new\n") and "Tools changed." in prompt(server)


def test_system_messages_that_end_or_set_the_effort(server: RunningServer) -> None:
    reminder = {"role": "system", "content": "Be brief.", "clear_at": "next_user_message"}
    post(server, messages=[*HELLO, reminder])
    assert "Be brief." in prompt(server)
    post(server, messages=[*HELLO, reminder, {"role": "assistant", "content": "ok"}, *HELLO])
    assert "Be brief." not in prompt(server)
    efforts = [{"role": "system", "output_config": {"effort": effort}} for effort in ("high", "low")]
    post(server, output_config={"effort": "medium"}, messages=[*efforts, *HELLO])
    assert "effort: low" in prompt(server)


def test_counting_tokens(client: anthropic.Anthropic, server: RunningServer) -> None:
    count = client.messages.count_tokens(model="fake/model", messages=HELLO, tools=[WEATHER], system="Be brief.")
    post(server, tools=[WEATHER], system="Be brief.", max_tokens=1)
    assert count.input_tokens == len(prompt(server).encode())


def test_served_names(start_server: StartServer) -> None:
    server = start_server(thinking_engine(), served_model_name=["claude-opus", "fake"])
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        assert client.messages.create(**{**BODY, "model": "fake"}).model == "fake"
        with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
            client.messages.create(**BODY)


def test_keys(start_server: StartServer) -> None:
    server = start_server(thinking_engine(), api_key=["secret"])
    with anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0) as client:
        assert client.messages.create(**BODY).stop_reason == "end_turn"
    with anthropic.Anthropic(base_url=server.url, auth_token="secret", max_retries=0) as client:
        assert client.messages.create(**BODY).stop_reason == "end_turn"
    with (
        anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError, match="authentication_error"),
    ):
        client.messages.create(**BODY)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("text", "status", "kind"),
    [("overload", 503, "overloaded_error"), ("dead", 503, "overloaded_error"), ("bug", 500, "api_error")],
)
def test_failures(start_server: StartServer, is_streamed: bool, text: str, status: int, kind: str) -> None:
    server = start_server(failing_engine())
    messages = [{"role": "user", "content": text}]
    response = server.client.post(PATH, json={**BODY, "messages": messages, "stream": is_streamed})
    assert response.status_code == status
    assert response.json()["type"] == "error"
    assert response.json()["error"]["type"] == kind
    assert "secret" not in response.text


def failing_engine() -> FakeEngine:
    """Its prompts are the user's bare words, for which the fake fails."""
    engine = FakeEngine()
    assert engine.chat_renderer is not None
    engine.chat_renderer = engine.chat_renderer.with_template("{{ messages[0].content }}")
    return engine


def test_leaving_ends_the_request(start_server: StartServer) -> None:
    server = start_server(thinking_engine(REPLY * 100, step_seconds=0.01))
    with (
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client,
        client.messages.stream(**BODY) as stream,
    ):
        next(iter(stream.text_stream))
    until(lambda: server.engine.num_aborted == 1)


def test_failures_amid_a_stream(start_server: StartServer) -> None:
    server = start_server(failing_engine())
    messages: Any = [{"role": "user", "content": "fail late"}]
    with (
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client,
        pytest.raises(anthropic.APIStatusError, match="api_error"),
        client.messages.stream(**{**BODY, "messages": messages}) as stream,
    ):
        stream.get_final_message()
    response = server.client.post(PATH, json={**BODY, "messages": messages, "stream": True})
    last = response.text.strip().split("\n\n")[-1]
    assert last.startswith('event: error\ndata: {"type":"error","error":{"type":"api_error"')
    assert server.engine.num_running == 0
