"""Anthropic's turns become messages as templates take them."""

from typing import Any

import pytest

from octavo.api.anthropic.content import assistant_message, system_text, user_messages
from octavo.errors import InvalidRequestError

TEXT = {"type": "text", "text": "hi"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Zürich"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def result(content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **fields}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Be brief.", "Be brief."),
        (
            [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}],
            "a\nb",
        ),
        ([{"type": "text", "text": "x-anthropic-billing-header: cc=1;"}, {"type": "text", "text": "b"}], "b"),
        ([], ""),
    ],
)
def test_system(content: Any, text: str) -> None:
    assert system_text("system", content) == text


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        ("hi", [{"role": "user", "content": "hi"}]),
        ([TEXT], [{"role": "user", "content": "hi"}]),
        ([], [{"role": "user", "content": ""}]),
        ([TEXT, TEXT], [{"role": "user", "content": [TEXT, TEXT]}]),
        (
            [result("sunny"), TEXT],
            [{"role": "tool", "tool_call_id": "toolu_1", "content": "sunny"}, {"role": "user", "content": "hi"}],
        ),
        (
            [TEXT, result([TEXT, {"type": "text", "text": "b"}])],
            [{"role": "user", "content": "hi"}, {"role": "tool", "tool_call_id": "toolu_1", "content": "hi\nb"}],
        ),
        ([result(None)], [{"role": "tool", "tool_call_id": "toolu_1", "content": ""}]),
        ([result("gone", is_error=True)], [{"role": "tool", "tool_call_id": "toolu_1", "content": "Error: gone"}]),
        ([result("Error 5", is_error=True)], [{"role": "tool", "tool_call_id": "toolu_1", "content": "Error 5"}]),
        ([result("", is_error=True)], [{"role": "tool", "tool_call_id": "toolu_1", "content": "Error"}]),
        (
            [result([{"type": "tool_reference", "tool_name": "f"}])],
            [{"role": "tool", "tool_call_id": "toolu_1", "content": "The tool f can be called now."}],
        ),
        (
            [{"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "d"}}],
            [{"role": "user", "content": "T\nd"}],
        ),
        (
            [{"type": "document", "source": {"type": "content", "content": [TEXT, TEXT]}}],
            [{"role": "user", "content": "hi\nhi"}],
        ),
        (
            [{"type": "search_result", "title": "T", "source": "https://a.example", "content": [TEXT]}],
            [{"role": "user", "content": "T\nhttps://a.example\nhi"}],
        ),
    ],
)
def test_users_turns(content: Any, messages: list[dict[str, Any]]) -> None:
    assert user_messages("m", content) == messages


def test_the_models_turns() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    redacted = {"type": "redacted_thinking", "data": "xyz"}
    message = assistant_message("m", [thought, redacted, TEXT, CALL, TEXT])
    assert message == {
        "role": "assistant",
        "content": "hihi",
        "reasoning_content": "hm",
        "reasoning": "hm",
        "tool_calls": [
            {"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
        ],
    }
    assert assistant_message("m", "hi") == {"role": "assistant", "content": "hi"}


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        (IMAGE, "messages.0.content.0: images are not supported"),
        (result([TEXT, IMAGE]), "messages.0.content.0.content.1: images are not supported"),
        ({"type": "document", "source": {"type": "base64", "data": "JVBE"}}, "documents are taken as text only"),
        ({"type": "document", "source": {"type": "url", "url": "http://10.0.0.1/"}}, "documents are taken as text"),
        ({"type": "document", "source": None}, "content.0.source: must be an object"),
        ({"type": "tool_use"}, "a block of type 'tool_use' is not allowed here; allowed types: text"),
        ({"type": "nonsense"}, "a block of type 'nonsense' is not allowed here"),
        ({}, "a block of type 'None' is not allowed here"),
        ({"type": ["text"]}, "is not allowed here"),
        ({"type": "text"}, "messages.0.content.0.text: must be a string."),
        ({"type": "text", "text": 5}, "messages.0.content.0.text: must be a string."),
        ({"type": "tool_result"}, "tool_use_id: must be a string"),
        (result(5), "messages.0.content.0.content: must be a string or a list"),
        (result([5]), "messages.0.content.0.content.0: must be an object"),
        ({"type": "search_result", "title": "T", "source": "s"}, "content: must be a string or a list"),
    ],
)
def test_blocks_that_users_may_not_send(block: Any, sentence: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^messages") as caught:
        user_messages("messages.0.content", [block])
    assert sentence in str(caught.value)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        (IMAGE, "images are not supported"),
        ({**CALL, "input": "{}"}, "input: must be an object"),
        ({**CALL, "name": None}, "name: must be a string"),
        ({**CALL, "id": 5}, "id: must be a string"),
        ({"type": "thinking", "signature": ""}, "thinking: must be a string"),
        ({"type": "server_tool_use", "id": "a", "name": "web_search", "input": {}}, "'server_tool_use' is not allowed"),
        (result("x"), "'tool_result' is not allowed here"),
    ],
)
def test_blocks_that_the_model_did_not_make(block: Any, sentence: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        assistant_message("messages.0.content", [block])
    assert sentence in str(caught.value)
