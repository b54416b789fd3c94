"""Items become the messages that templates take, gpt-oss's among them."""

from typing import Any

import pytest
from harmony_template import CONVERSATION
from hypothesis import given
from hypothesis import strategies as st
from responses_engine import ScriptedEngine
from running_server import StartServer
from test_responses_api import PATH, WEATHER, both, create

from octavo.api.responses.items import parse_items, reasoning_of, seal_reasoning
from octavo.api.responses.messages import Message, cut_points, to_messages, without_beginning
from octavo.config import ServerSettings
from octavo.errors import ConfigError

# It has gpt-oss's rules: one call a message, no thought beside a preamble, instructions in front only.
HARMONY = (
    """
{%- set first = messages[0] %}
{%- set told = first.role in ("developer", "system") %}
{{- "<|start|>system<|message|>Current date: " + strftime_now("%Y-%m-%d") + "<|end|>" }}
{%- if told %}{{ "<|start|>developer<|message|>" + first.content + "<|end|>" }}{% endif %}
{%- for tool in tools or () %}
{{- "<|start|>developer<|message|>namespace functions { type " + tool.function.name + " }<|end|>" }}
{%- endfor %}"""
    + CONVERSATION
)
REPLY = (
    "<|channel|>analysis<|message|>I need the weather.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    '{"city": "Oslo"}<|call|>'
)


def harmony_engine(*replies: str) -> ScriptedEngine:
    engine = ScriptedEngine(*replies)
    assert engine.tokenizer is not None
    engine.tokenizer.chat_templates["default"] = HARMONY
    return engine


def message(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


def call(call_id: str, arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": f"tool_{call_id}", "arguments": arguments}


def output(call_id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": f"output of {call_id}"}


def test_channels_of_gpt_oss_are_items(start_server: StartServer) -> None:
    engine = harmony_engine(REPLY, "<|channel|>final<|message|>It rains.<|return|>")
    server = start_server(
        engine, reasoning_parser="openai_gptoss", tool_call_parser="openai", chat_template_date="2025-06-28"
    )
    answer = create(server, tools=[WEATHER], instructions="Be kind.")
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message", "function_call"]
    thought, preamble, made = answer["output"]
    assert thought["content"][0]["text"] == "I need the weather."
    assert preamble["content"][0]["text"] == "Let me look."
    assert (made["name"], made["arguments"]) == ("weather", '{"city": "Oslo"}')
    result = {"type": "function_call_output", "call_id": made["call_id"], "output": "rain"}
    second = create(server, tools=[WEATHER], previous_response_id=answer["id"], input=[result])
    assert second["output"][-1]["content"][0]["text"] == "It rains."
    assert engine.prompts[0].startswith("<|start|>system<|message|>Current date: 2025-06-28<|end|>")
    assert "<|start|>developer<|message|>Be kind.<|end|>" in engine.prompts[0]
    assert "<|message|>namespace functions { type weather }<|end|>" in engine.prompts[0]
    assert engine.prompts[1].endswith(
        "<|start|>user<|message|>hi<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>I need the weather.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>"
        '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>'
        "<|start|>functions.weather to=assistant<|channel|>commentary<|message|>rain<|end|>"
        "<|start|>assistant"
    )
    engine.replies = [REPLY]
    both(server, tools=[WEATHER])


def test_a_preamble_and_the_answer_are_two_messages(start_server: StartServer) -> None:
    """What gpt-oss says before it goes on is a message of its own, and no thought."""
    reply = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Two.<|return|>"
    )
    server = start_server(harmony_engine(reply), reasoning_parser="openai_gptoss", tool_call_parser="openai")
    answer = both(server, include=["message.output_text.logprobs"])
    thought, preamble, final = answer["output"]
    assert thought["content"][0]["text"] == "Hm."
    assert (preamble["content"][0]["text"], final["content"][0]["text"]) == ("I look.", "Two.")
    assert [item["status"] for item in answer["output"]] == ["completed"] * 3
    assert answer["usage"]["output_tokens_details"] == {"reasoning_tokens": len("Hm.")}
    said = server.client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]}).json()
    assert said["choices"][0]["message"]["content"] == "I look.\nTwo."


def test_any_date_is_one() -> None:
    from octavo.api.chat.conversation import pinned_date

    assert pinned_date(ServerSettings(chat_template_date="2025-06-28"))["strftime_now"]("%d.%m.%Y") == "28.06.2025"
    assert pinned_date(ServerSettings()) == {}
    with pytest.raises(ConfigError, match="chat_template_date"):
        pinned_date(ServerSettings(chat_template_date="yesterday"))


_steps = st.lists(
    st.one_of(
        st.builds(message, st.sampled_from(["user", "assistant", "system", "developer"]), st.text("ab", max_size=3)),
        st.just({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}),
        st.integers(1, 3),
    ),
    max_size=12,
)


@given(_steps, st.booleans())
def test_outputs_follow_their_calls(steps: list[Any], is_interleaved: bool) -> None:
    """Whatever a conversation holds, each output comes after its call and before anybody else speaks."""
    given_items: list[dict[str, Any]] = []
    count = 0
    for step in steps:
        if not isinstance(step, int):
            given_items.append(step)
            continue
        ids = [f"c{count + index}" for index in range(step)]
        count += step
        if is_interleaved:
            given_items += [item for call_id in ids for item in (call(call_id), output(call_id))]
        else:
            given_items += [*map(call, ids), *map(output, ids)]
    messages = to_messages(parse_items(given_items, "t"), instructions="Be kind.")
    waiting: list[str] = []
    answered: list[str] = []
    for said in messages:
        if said["role"] == "tool":
            waiting.remove(said["tool_call_id"])
            assert said["content"] == f"output of {said['tool_call_id']}"
            assert said["name"] == f"tool_{said['tool_call_id']}"
            answered.append(said["tool_call_id"])
        else:
            assert not waiting
            waiting = [made["id"] for made in said.get("tool_calls", ())]
    assert not waiting and answered == [f"c{index}" for index in range(count)]
    told = [item["content"] for item in given_items if item.get("role") in ("system", "developer")]
    assert sum(text in str(messages) for text in told) == len(told)


@given(st.lists(st.sampled_from(["user", "assistant", "system"]), min_size=1, max_size=12))
def test_a_conversation_is_cut_before_a_user(roles: list[str]) -> None:
    messages: list[Message] = [{"role": role, "content": str(index)} for index, role in enumerate(roles)]
    for start in cut_points(messages):
        rest = without_beginning(messages, start)
        assert rest[-1] == messages[-1]
        spoken = [said for said in rest if said["role"] != "system"]
        assert spoken[0]["role"] == "user"
        assert [said for said in messages if said["role"] == "system"] == [
            said for said in rest if said["role"] == "system"
        ]


@given(st.text())
def test_sealed_thoughts_are_read_again(text: str) -> None:
    assert (
        reasoning_of({"summary": [], "encrypted_content": seal_reasoning(text)})
        == text.encode("utf-8", "replace").decode()
    )


@given(st.text())
def test_what_others_have_sealed_stays_so(text: str) -> None:
    assert reasoning_of({"summary": [{"text": "short"}], "encrypted_content": "gAAAA" + text}) == "short"


def test_calls_of_built_in_tools_of_others_are_left_out(start_server: StartServer) -> None:
    server = start_server(ScriptedEngine("ok"))
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    response = server.client.post(PATH, json={"input": [message("user", "hi"), searched, message("user", "so?")]})
    assert response.status_code == 200
    assert server.engine.calls[0]["prompt"] == "<user>hi\n<user>so?\n<assistant>"
