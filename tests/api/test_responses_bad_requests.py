"""Whatever is sent to ``/v1/responses``, the answer is an answer or a refusal in words, and nobody else notices."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running_server import RunningServer, StartServer
from test_responses_api import PATH, WEATHER

from octavo.api.responses.protocol import ResponsesRequest
from octavo.api.responses.tools import Toolset

USER = {"role": "user", "content": "hi"}
MCP = {"type": "mcp", "server_label": "a"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == response.status_code
    assert error["message"].endswith((".", "…"))
    assert len(error["message"]) < 3000
    return error


@pytest.fixture(autouse=True)
def others_schedule_running(server: RunningServer) -> Iterator[None]:
    yield
    assert server.client.post(PATH, json={"input": "hi"}).status_code == 200
    assert server.engine.num_running == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [5]}, "input"),
        ({"input": [{}]}, "input"),
        ({"input": [USER] * 20_000}, "input"),
        ({"input": [{"type": "message"}]}, "input"),
        ({"input": [{"type": ["message"]}]}, "input"),
        ({"input": [{"type": "telepathy", "content": "hi"}]}, "input"),
        ({"input": [{"role": "robot", "content": "hi"}]}, "input"),
        ({"input": [{"role": "user", "content": 5}]}, "input"),
        ({"input": [{"role": "user", "content": [5]}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": {}, "text": "x"}]}]}, "input"),
        ({"input": [{**USER, "id": 5}]}, "input"),
        ({"input": [{**USER, "id": "x" * 300}]}, "input"),
        ({"input": [{"type": "reasoning", "content": [{"text": 5}]}]}, "input"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input"),
        ({"input": [CALL, {"type": "function_call_output", "call_id": "c", "output": 5}]}, "input"),
        ({"input": [{"type": "mcp_list_tools", "server_label": "x", "tools": [{"name": 5}]}]}, "input"),
        ({"input": [{"type": "mcp_approval_response", "approval_request_id": "x", "approve": True}]}, "input"),
        ({"input": [{"type": "mcp_approval_response", "approval_request_id": "x", "approve": False}]}, "input"),
        ({"input": [{"type": "computer_call", "action": {}}]}, "input"),
        ({"instructions": ["be kind"]}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10**30}, "max_output_tokens"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"top_logprobs": 10**9}, "logprobs"),
        ({"include": ["everything"]}, "include"),
        ({"truncation": "left"}, "truncation"),
        ({"metadata": {"a": 5}}, "metadata"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
        ({"metadata": {"a": "x" * 600}}, "metadata"),
        ({"service_tier": "gold"}, "service_tier"),
        ({"reasoning": {"effort": "endless"}}, "reasoning"),
        ({"text": {"format": {"type": "xml"}}}, "text"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text"),
        ({"structured_outputs": {"poem": True}}, "structured_outputs"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs"),
        ({"tools": [5]}, "tools"),
        ({"tools": [{}]}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [{**WEATHER, "parameters": []}]}, "tools"),
        ({"tools": [WEATHER] * 2000}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}, "tools"),
        ({"tools": [{"type": "mcp", "server_label": "x", "server_url": "http://127.0.0.1:22"}]}, "tools"),
        ({"tools": [{"type": "mcp", "server_label": "a b"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}, "tools": [WEATHER]}, "tool_choice"),
        ({"tool_choice": {"type": "mcp", "server_label": "x"}}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tool_choice": {}}, "tool_choice"),
        ({"previous_response_id": "x" * 300}, "previous_response_id"),
        ({"background": True, "store": False}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"stop": ["x"] * 10_000}, "stop"),
        ({"logit_bias": {"5": "high"}}, "logit_bias"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{}] * 1025}}, "tool_choice"),
        ({"tools": [{**MCP, "allowed_tools": ["x"] * 1025}]}, "tools"),
        (
            {
                "tools": [
                    {"type": "mcp", "server_label": "a", "require_approval": {"never": {"tool_names": ["x"] * 1025}}}
                ]
            },
            "tools",
        ),
        ({"input": [{"type": "mcp_list_tools", "server_label": "a", "tools": [{}] * 1025}]}, "input"),
        ({"model": 5}, "model"),
    ],
)
def test_wrong_fields_are_refused_by_name(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    for is_streamed in (False, True):
        response = server.client.post(PATH, json={"input": "hi", "stream": is_streamed, **fields})
        assert response.status_code == 400, response.text
        assert error_of(response)["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "other"}, "model"),
        ({"previous_response_id": "resp_no"}, "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "msg_no"}]}, "input"),
    ],
)
def test_what_is_not_there(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    response = server.client.post(PATH, json={"input": "hi", **fields})
    assert response.status_code == 404
    assert error_of(response)["param"] == param


def test_tools_are_not_gathered_anew_for_each_item(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start_server(allowed_mcp_server=["a=http://127.0.0.1:9/mcp"])
    num_gathered = 0
    gather = Toolset.server_tools

    def counted(toolset: Toolset) -> Any:
        nonlocal num_gathered
        num_gathered += 1
        return gather(toolset)

    monkeypatch.setattr(Toolset, "server_tools", counted)
    tools = [{"name": f"t{number}", "input_schema": {}} for number in range(50)]
    call = {"type": "mcp_call", "server_label": "a", "name": "t1", "arguments": "{}", "output": "x"}
    body = {
        "input": [{"type": "mcp_list_tools", "server_label": "a", "tools": tools}, *[call] * 50],
        "tools": [{"type": "mcp", "server_label": "a"}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "a"}]},
    }
    assert server.client.post(PATH, json=body).status_code == 200
    assert num_gathered < 10


def test_one_request_reaches_few_servers(start_server: StartServer) -> None:
    server = start_server(allowed_mcp_server=["http://127.0.0.1:9/mcp"])
    tool = {"type": "mcp", "server_url": "http://127.0.0.1:9/mcp"}
    body = {"input": "hi", "tools": [{**tool, "server_label": f"s{number}"} for number in range(65)]}
    response = server.client.post(PATH, json=body)
    assert response.status_code == 400 and "at most 64" in error_of(response)["message"]


def test_odd_ids_in_paths(server: RunningServer) -> None:
    for odd in ("..%2F..%2Fetc%2Fpasswd", "%00", "x" * 5000, "resp_%F0%9F%98%80", "-1"):
        for method, path in (("GET", odd), ("DELETE", odd), ("POST", f"{odd}/cancel"), ("GET", f"{odd}/input_items")):
            response = server.client.request(method, f"{PATH}/{path}")
            assert response.status_code == 404
            assert len(error_of(response)["message"]) < 400


def test_pages_have_limits(server: RunningServer) -> None:
    made = server.client.post(PATH, json={"input": "hi"}).json()["id"]
    for query in ("limit=0", "limit=101", "limit=x", "order=up"):
        assert error_of(server.client.get(f"{PATH}/{made}/input_items?{query}"))["code"] == 400
    assert error_of(server.client.get(f"{PATH}/{made}/input_items?after=nothing"))["code"] == 404


@pytest.fixture(scope="module")
def fields() -> list[str]:
    return [*ResponsesRequest.model_fields, "conversation", "prompt", "n"]


_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["auto", "function", "mcp", "message", "user", "required", "web_search", "json_schema", "hi"]),
)
_keys = st.one_of(
    st.text(max_size=5),
    st.sampled_from(["type", "role", "content", "name", "id", "call_id", "output", "arguments", "tools", "format"]),
)
_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_keys, inner, max_size=4)),
    max_leaves=8,
)
_items = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["message", "function_call", "function_call_output", "reasoning", "mcp_call", "mcp_list_tools"]
        )
    },
    optional={
        "role": st.sampled_from(["user", "assistant", "system", "tool"]),
        "content": _values,
        "call_id": st.sampled_from(["c", "d"]),
        "name": _scalars,
        "arguments": _scalars,
        "output": _values,
        "summary": _values,
        "server_label": st.just("x"),
        "tools": _values,
        "error": _values,
        "encrypted_content": st.sampled_from(["octavo-reasoning-1:%%%", "octavo-reasoning-1:/w==", "x"]),
    },
)


@settings(max_examples=120, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_body_breaks_the_server(server: RunningServer, fields: list[str], data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(fields), max_size=4))
    body: dict[str, Any] = {name: data.draw(_values) for name in names}
    if data.draw(st.booleans()):
        body["input"] = data.draw(st.lists(_items, max_size=4))
    body["max_output_tokens"] = 3
    content = json.dumps(body).encode("utf-8", "replace")
    response = server.client.post(PATH, content=content, headers={"content-type": "application/json"})
    assert response.status_code in (200, 400, 404), (response.text, body)
    if response.status_code != 200:
        error_of(response)


def test_a_schema_is_checked_where_the_model_runs(start_server: StartServer) -> None:
    server = start_server()
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"type": "object", "properties": {"a": deep}}
    response = server.client.post(
        PATH, json={"input": "hi", "text": {"format": {"type": "json_schema", "name": "n", "schema": deep}}}
    )
    assert response.status_code == 400
    error_of(response)
