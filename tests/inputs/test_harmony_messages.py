"""Conversations reach gpt-oss's chat template in the form that it takes."""

import pytest
from harmony_template import CONVERSATION
from hypothesis import given
from hypothesis import strategies as st
from tokenization.tiny import byte_level_tokenizer

from octavo.inputs.chat import ChatRenderer
from octavo.inputs.harmony import harmony_effort, harmony_messages, harmony_tools, is_harmony_template

# It has gpt-oss's rules, and its ways to fail.
TEMPLATE = (
    """
{%- set told = messages[0].role in ("developer", "system") %}
{{- "<|start|>system<|message|>" + (reasoning_effort or "medium") + "<|end|>" }}
{%- if told %}{{ "<|start|>developer<|message|>" + messages[0].content + "<|end|>" }}{% endif %}
{%- for tool in tools or [] %}{{ "// " + tool.function.description + "/" + tool.function.name }}{% endfor %}"""
    + CONVERSATION
)
TOKENIZER = byte_level_tokenizer()
USER = {"role": "user", "content": "hi"}
NOBODY_ELSE = "<|start|>system<|message|>medium<|end|><|start|>user<|message|>hi<|end|>"


def written(messages, **options):
    return ChatRenderer(TOKENIZER, TEMPLATE).render(messages, **options)["prompt"]


def call(call_id, name=None):
    return {"id": str(call_id), "type": "function", "function": {"name": name or f"f{call_id}", "arguments": "{}"}}


def calling(*call_ids, content=None, **rest):
    return {"role": "assistant", "content": content, "tool_calls": [call(call_id) for call_id in call_ids], **rest}


def result(call_id):
    return {"role": "tool", "tool_call_id": str(call_id), "content": f"result {call_id}"}


def shown(call_id, has_result=True):
    text = f"<|start|>assistant to=functions.f{call_id}<|channel|>commentary json<|message|>{{}}<|call|>"
    if not has_result:
        return text
    return f"{text}<|start|>functions.f{call_id} to=assistant<|channel|>commentary<|message|>result {call_id}<|end|>"


def thought(text):
    return f"<|start|>assistant<|channel|>analysis<|message|>{text}<|end|>"


def said(text):
    return f"<|start|>assistant<|channel|>commentary<|message|>{text}<|end|>"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        # A thought before a call stays: the model goes on with it.
        ([calling(1, reasoning="hm"), result(1)], thought("hm") + shown(1)),
        ([calling(1, reasoning_content="hm"), result(1)], thought("hm") + shown(1)),
        ([calling(1, thinking="hm"), result(1)], thought("hm") + shown(1)),
        ([calling(1, content="I look.", reasoning="hm"), result(1)], thought("hm") + said("I look.") + shown(1)),
        # Several calls are several messages, each with its own result.
        ([calling(1, 2, reasoning="hm"), result(2), result(1)], thought("hm") + shown(1) + shown(2)),
        ([calling(1, 2), result(1)], shown(1) + shown(2, has_result=False)),
        ([calling(1), result(1), calling(2, reasoning="hm"), result(2)], shown(1) + thought("hm") + shown(2)),
        # Results that name no call belong to the calls in order.
        ([calling(1, 2), {**result(1), "tool_call_id": None}, {**result(2), "tool_call_id": "?"}], shown(1) + shown(2)),
        ([calling(1, 2), {**result(1), "tool_call_id": ["1"]}, {**result(2), "tool_call_id": {}}], shown(1) + shown(2)),
        # What clients send that have kept the whole message.
        (
            [{"role": "assistant", "content": "hello", "tool_calls": None, "reasoning": None, "thinking": None}],
            "<|start|>assistant<|channel|>final<|message|>hello<|end|>",
        ),
        (
            [{"role": "assistant", "content": "hello", "tool_calls": [], "refusal": None}],
            "<|start|>assistant<|channel|>final<|message|>hello<|end|>",
        ),
    ],
)
def test_what_the_assistant_did_is_shown(messages, expected):
    assert written([USER, *messages]) == NOBODY_ELSE + expected + "<|start|>assistant"


def test_instructions_are_one_message_in_front():
    told = [
        {"role": "system", "content": "A"},
        {"role": "developer", "content": "B"},
        {"role": "system", "content": ""},
    ]
    front = "<|start|>system<|message|>medium<|end|><|start|>developer<|message|>A\n\nB<|end|>"
    assert written([told[0], USER, *told[1:]]) == front + "<|start|>user<|message|>hi<|end|><|start|>assistant"


def test_tools_need_no_description():
    tools = [
        {"type": "function", "function": {"name": "f"}},
        {"type": "function", "function": {"name": "g", "description": "G."}},
    ]
    assert "// /f// G./g" in written([USER], tools=tools)
    assert "description" not in tools[0]["function"]
    assert harmony_tools([{"name": "f"}]) == [{"name": "f"}]


@pytest.mark.parametrize(
    ("effort", "expected"),
    [("none", "low"), ("minimal", "low"), ("low", "low"), ("high", "high"), ("max", "high"), ("odd", "odd"), (3, 3)],
)
def test_efforts_are_those_that_the_model_knows(effort, expected):
    assert harmony_effort(effort) == expected


def test_the_effort_of_a_request_is_shown():
    assert "<|message|>high<|end|>" in written([USER], template_kwargs={"reasoning_effort": "xhigh"})


def test_a_result_without_a_call_is_for_the_template_to_refuse():
    assert harmony_messages([result(1)]) == [result(1)]
    assert harmony_messages([]) == []
    assert not is_harmony_template("<|im_start|>")


steps = st.lists(
    st.one_of(
        st.sampled_from([USER, {"role": "assistant", "content": "so"}, {"role": "developer", "content": "told"}]),
        st.tuples(st.integers(1, 3), st.permutations(range(3)), st.sampled_from(["", "hm"])),
    ),
    max_size=8,
)


@given(steps)
def test_every_result_follows_its_call(steps):
    messages, num_calls = [], 0
    for step in steps:
        if isinstance(step, dict):
            messages.append(step)
            continue
        count, order, reasoning = step
        ids = [num_calls + place for place in range(count)]
        num_calls += count
        messages.append({**calling(*ids), "content": "", "reasoning_content": reasoning})
        messages += [result(ids[place]) for place in order if place < count]
    known = harmony_messages(messages)
    assert harmony_messages(known) == known
    answered = []
    for before, message in zip([{}, *known], known, strict=False):
        assert len(message.get("tool_calls", ())) <= 1
        assert message["role"] != "developer" or message is known[0]
        if message["role"] == "tool":
            assert before["tool_calls"][0]["id"] == message["tool_call_id"]
            answered.append(message["tool_call_id"])
    assert answered == [str(number) for number in range(num_calls)]
    spoken = [message["content"] for message in messages if message["role"] in ("user", "assistant")]
    assert [m["content"] for m in known if m["role"] in ("user", "assistant") and m["content"]] == [
        *filter(None, spoken)
    ]
