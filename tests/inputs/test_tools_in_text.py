"""Tools for chat templates that have no place for them: nothing of them is lost without a word."""

import json

import pytest
from tokenization.tiny import byte_level_tokenizer

from octavo.inputs.chat import ChatRenderer
from octavo.outputs.parsers.tools.call_text import HERMES, MISTRAL

TOKENIZER = byte_level_tokenizer()
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
USER = {"role": "user", "content": "Bern?"}
CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "rain"}
WITH_TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.content }}]{% endfor %}"
LLAMA_LIKE = (
    "{% if not tools is defined %}{% set tools = none %}{% endif %}{% if tools is not none %}{{ tools | length }}"
    "{% endif %}{% for m in messages %}{{ m.role }}{% endfor %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
PARTS = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"


def text_of(messages, template=None, **options):
    return ChatRenderer(TOKENIZER, template).render(messages, **options)["prompt"]


def test_tools_go_into_a_system_message():
    text = text_of([USER], tools=[TOOL])
    system, user = text.split("<|im_end|>\n")[:2]
    assert system.startswith("<|im_start|>system\n") and json.dumps(TOOL) in system
    assert '<tool_call>\n{"name": "FUNCTION_NAME"' in system
    assert user == "<|im_start|>user\nBern?"


def test_a_system_message_that_is_there_keeps_its_words():
    text = text_of([{"role": "system", "content": "Be brief."}, USER], tools=[TOOL])
    assert text.count("<|im_start|>system") == 1
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou can use these functions:")


def test_tools_without_a_format_are_shown_all_the_same():
    text = text_of([USER], tools=[TOOL], call_text=None)
    assert json.dumps(TOOL) in text and "To call" not in text


@pytest.mark.parametrize("tools", [None, [TOOL]])
def test_calls_and_their_results_stay_in_the_conversation(tools):
    text = text_of([USER, CALLS, RESULT, RESULT], tools=tools)
    call = HERMES.write([("weather", {"city": "Bern"})])
    assert f"<|im_start|>assistant\n{call}<|im_end|>" in text
    result = "<tool_response>\nrain\n</tool_response>"
    assert f"<|im_start|>user\n{result}\n{result}<|im_end|>" in text
    assert "[TOOL_CALLS][{" in text_of([USER, CALLS], tools=tools, call_text=MISTRAL)


def test_a_template_without_system_messages_shows_them_to_the_user():
    text = text_of([USER], NO_SYSTEM, tools=[TOOL])
    assert text.startswith("<user>You can use these functions:") and text.endswith("\n\nBern?")


def test_a_template_of_parts_gets_parts():
    text = text_of([{**USER, "content": [{"type": "text", "text": "Bern?"}]}, CALLS, RESULT], PARTS, tools=[TOOL])
    assert text.startswith("<system>You can use these functions:")
    assert "<user>Bern?<assistant><tool_call>" in text and "<user><tool_response>\nrain" in text


def test_templates_with_a_place_for_tools_are_left_alone():
    assert text_of([USER], WITH_TOOLS, tools=[TOOL]).endswith("}][Bern?]")
    assert text_of([USER], LLAMA_LIKE, tools=[TOOL]) == "1user"
    assert text_of([USER, CALLS, RESULT], LLAMA_LIKE) == "userassistanttool"
    assert [ChatRenderer(TOKENIZER, template).takes_tools for template in (WITH_TOOLS, LLAMA_LIKE, NO_SYSTEM)] == [
        True,
        True,
        False,
    ]


def test_a_message_of_nothing_but_a_thought_is_taken():
    thought = {"role": "assistant", "content": None, "reasoning": "Hm."}
    shown = "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content }}:{{ m.content }};{% endfor %}"
    assert text_of([USER, thought], shown) == "user::Bern?;assistant:Hm.:;"
