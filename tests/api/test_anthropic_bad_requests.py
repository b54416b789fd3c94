"""Nothing that a client sends to ``/v1/messages`` is a fault of the server's."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running_server import RunningServer

PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
HELLO = [{"role": "user", "content": "hi"}]
BODY: dict[str, Any] = {"model": "fake/model", "max_tokens": 5, "messages": HELLO}
TOOL: dict[str, Any] = {"name": "f", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "a", "name": "f", "input": {}}


def changed(kind: str, **tool: Any) -> dict[str, Any]:
    return {"messages": [*HELLO, {"role": "system", "content": [{"type": kind, "tool": tool}]}]}


def refusal(server: RunningServer, body: Any, path: str = PATH) -> dict[str, Any]:
    response = server.client.post(path, json=body)
    assert response.status_code in (400, 404), response.text
    answer = response.json()
    assert set(answer) == {"type", "error"} and answer["type"] == "error"
    error: dict[str, Any] = answer["error"]
    assert set(error) == {"type", "message"}
    assert error["message"].endswith((".", "…")) and len(error["message"]) < 3000
    return error


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**10}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "x" * 200_000}]}, "tokens > 131072 maximum."),
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "images are not supported"),
        ({"messages": [*HELLO, {"role": "assistant", "content": [CALL]}]}, "does not end in text"),
        ({"messages": [*HELLO, {"role": "assistant", "content": ""}]}, "does not end in text"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system.0"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 1000}, "stop_sequences"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -5}, "top_k"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking"),
        ({"thinking": {"type": "maybe"}}, "thinking"),
        ({"tools": [{"name": "f"}]}, "no input_schema"),
        ({"tools": [{"name": "web_search", "type": "web_search_20250305"}]}, "web_search_20250305"),
        ({"tools": [{**TOOL, "input_schema": {"type": "array"}}]}, "its type must be 'object'"),
        ({"tools": [{**TOOL, "input_schema": {"const": 10**30}}], "tool_choice": {"type": "any"}}, "plain JSON"),
        ({"output_format": {"type": "json_schema", "schema": {"const": 10**30}}}, "plain JSON"),
        ({"tools": [TOOL, TOOL]}, "two tools named 'f'"),
        ({"tools": [{**TOOL, "name": ""}]}, "tools.0.name"),
        ({"tools": [{**TOOL, "name": str(i)} for i in range(2000)]}, "at most"),
        ({"tool_choice": {"type": "any"}}, "no tools"),
        ({"tool_choice": {"type": "tool"}, "tools": [TOOL]}, "name the tool"),
        ({"tool_choice": {"type": "tool", "name": "g"}, "tools": [TOOL]}, "not among the tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config"),
        ({"output_config": {"effort": "huge"}}, "output_config"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"mcp_servers": [{"url": "http://10.0.0.1/"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        ({"stream": "yes"}, "stream"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_addition", "tool": {"type": "tool_definition"}}]}
                ]
            },
            "tool.definition",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "tool_removal"}]}]}, "messages.0.content.0.tool"),
        (changed("tool_addition", type="tool_reference", name="x"), "'x', which is not declared in tools"),
        (changed("tool_removal", type="tool_definition", definition=TOOL), "only accepts a tool_reference"),
        (changed("tool_addition", type="mcp_toolset_reference", server_name="s"), "does not call MCP servers"),
        ({"messages": [*HELLO, {"role": "system"}]}, "messages.1.content"),
        ({"messages": [{"role": "user", "content": "hi", "clear_at": "never"}]}, "role system"),
    ],
)
def test_rejected_with_an_error(server: RunningServer, fields: dict[str, Any], sentence: str) -> None:
    error = refusal(server, {**BODY, **fields})
    assert error["type"] == "invalid_request_error"
    assert sentence in error["message"]
    assert server.engine.calls == []


def test_models_that_are_not_served(server: RunningServer) -> None:
    for path in (PATH, COUNT):
        error = refusal(server, {**BODY, "model": "claude"}, path)
        assert error["type"] == "not_found_error"
        assert "fake/model" in error["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"nul", b'{"a": NaN}', b"\xff", b"[" * 1000, b"5"])
def test_bodies_that_are_no_objects(server: RunningServer, body: bytes) -> None:
    response = server.client.post(PATH, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_bodies_of_another_kind(server: RunningServer) -> None:
    response = server.client.post(PATH, content=b"a=1", headers={"content-type": "text/plain"})
    assert response.status_code == 415
    assert response.json()["type"] == "error"


words = st.sampled_from(["hi", "", "f", "a", "text", "tool_use", "user", "\x00", "{{ messages }}"])
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(allow_nan=False, allow_infinity=False), words
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=5,
)
block_types = ["text", "image", "tool_use", "tool_result", "tool_reference", "thinking", "redacted_thinking"]
block_types += ["tool_addition", "tool_removal", "document", "search_result"]
BLOCK_FIELDS = ["text", "source", "id", "tool_use_id", "name", "input", "content", "is_error", "thinking", "tool"]
blocks = st.builds(
    lambda kind, fields: {"type": kind, **fields},
    st.sampled_from(block_types),
    st.dictionaries(st.sampled_from([*BLOCK_FIELDS, "title", "tool_name", "data"]), values, max_size=4),
)
contents = st.one_of(words, st.lists(st.one_of(blocks, values), max_size=3))
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": contents}), max_size=3
)
tools = st.lists(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("name", "type", "input_schema", "description", "strict"), values)
    ),
    max_size=2,
)
FIELDS = {
    "messages": st.one_of(messages, values),
    "system": st.one_of(contents, values),
    "tools": st.one_of(tools, st.just([TOOL]), values),
    "tool_choice": st.one_of(
        st.fixed_dictionaries({"type": st.sampled_from(["auto", "any", "tool", "none"])}, optional={"name": words}),
        values,
    ),
    "thinking": st.one_of(st.fixed_dictionaries({"type": words, "budget_tokens": scalars}), values),
    "output_config": st.one_of(st.fixed_dictionaries({"format": values, "effort": words}), values),
    "output_format": st.fixed_dictionaries({"type": st.just("json_schema"), "schema": values}),
    "metadata": values,
    "chat_template_kwargs": values,
    "vllm_xargs": values,
    "stop_sequences": values,
    "stream": st.booleans(),
    **dict.fromkeys(("max_tokens", "temperature", "top_p", "top_k", "cache_salt", "priority", "model"), scalars),
}


@settings(max_examples=200)
@given(st.fixed_dictionaries({}, optional=FIELDS), st.sampled_from([PATH, COUNT]))
def test_no_body_is_the_servers_fault(_shared_server: RunningServer, fields: dict[str, Any], path: str) -> None:
    response = _shared_server.client.post(path, json={**BODY, **fields})
    assert response.status_code in (200, 400, 404), (fields, response.text)
    if response.status_code == 200:
        assert "event: error" not in response.text
    else:
        assert json.loads(response.text)["type"] == "error"
