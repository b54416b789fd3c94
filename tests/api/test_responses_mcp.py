"""Tools of a real MCP server are listed, called and asked leave for; no other address is ever reached."""

import socket
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from mcp_server import RunningMcpServer, running_mcp_server
from responses_engine import ScriptedEngine, call_text, check_order, without_ids
from running_server import RunningServer, StartServer
from test_responses_api import PATH, WEATHER, create, stream

from octavo.api.responses.mcp import McpServers, request_headers
from octavo.api.responses.protocol import McpTool
from octavo.config import ServerSettings
from octavo.errors import ConfigError, InvalidRequestError


@pytest.fixture(scope="module")
def mcp() -> Iterator[RunningMcpServer]:
    with running_mcp_server() as server:
        yield server


@pytest.fixture(autouse=True)
def forget(mcp: RunningMcpServer) -> None:
    mcp.calls.clear()
    mcp.headers.clear()


def tool(mcp: RunningMcpServer, **fields: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": "tests", "server_url": mcp.url, "require_approval": "never", **fields}


def serve(start_server: StartServer, mcp: RunningMcpServer, *replies: str) -> RunningServer:
    return start_server(ScriptedEngine(*replies), allowed_mcp_server=[f"tests={mcp.url}"], tool_call_parser="hermes")


def test_a_tool_is_called_and_the_model_goes_on(start_server: StartServer, mcp: RunningMcpServer) -> None:
    replies = (call_text("add", '{"a": 2, "b": 3}'), "It is 5.")
    server = serve(start_server, mcp, *replies)
    answer = create(server, tools=[tool(mcp, headers={"X-Team": "a"}, authorization="secret")])
    listing, call, message = answer["output"]
    assert [(listing["type"], listing["server_label"], listing["error"])] == [("mcp_list_tools", "tests", None)]
    assert [entry["name"] for entry in listing["tools"]] == ["add", "remove", "fail"]
    assert (call["type"], call["name"], call["output"], call["error"]) == ("mcp_call", "add", "5", None)
    assert call["status"] == "completed"
    assert message["content"][0]["text"] == "It is 5."
    assert mcp.calls == [("add", (2, 3))]
    engine = server.engine
    assert isinstance(engine, ScriptedEngine)
    assert "tools: add remove fail" in engine.prompts[0]
    assert '<assistant>add({"a": 2, "b": 3})\n<tool>5\n' in engine.prompts[1]
    assert {headers["x-team"] for headers in mcp.headers} == {"a"}
    assert {headers["authorization"] for headers in mcp.headers} == {"Bearer secret"}
    assert "secret" not in str(answer["tools"])
    assert answer["usage"]["output_tokens"] == sum(len(reply) for reply in replies)


def test_a_server_over_events(start_server: StartServer) -> None:
    with running_mcp_server("/sse") as mcp:
        host = mcp.url.removeprefix("http://").removesuffix("/sse")
        engine = ScriptedEngine(call_text("add", '{"a": 2, "b": 3}'), "Five.")
        server = start_server(engine, tool_server=host, tool_call_parser="hermes")
        answer = create(server, tools=[tool(mcp, headers={"X-Team": "a"})])
        assert answer["output"][1]["output"] == "5"
        assert {headers["x-team"] for headers in mcp.headers} == {"a"}


def test_a_stream_tells_how_far_the_tools_are(start_server: StartServer, mcp: RunningMcpServer) -> None:
    replies = [call_text("add", '{"a": 2, "b": 3}') + call_text("fail", "{}"), "Done."]
    events = stream(serve(start_server, mcp, *replies), tools=[tool(mcp)])
    check_order(events)
    kinds = [event["type"] for event in events if "mcp" in event["type"] and not event["type"].endswith("delta")]
    assert kinds == [
        *("response.mcp_list_tools.in_progress", "response.mcp_list_tools.completed"),
        *("response.mcp_call.in_progress", "response.mcp_call_arguments.done"),
        *("response.mcp_call.in_progress", "response.mcp_call_arguments.done"),
        *("response.mcp_call.completed", "response.mcp_call.failed"),
    ]
    failed = events[-1]["response"]["output"][2]
    assert failed["status"] == "failed" and failed["error"]["type"] == "mcp_tool_execution_error"
    assert "out of order" in failed["error"]["content"][0]["text"]
    whole = create(serve(start_server, mcp, *replies), tools=[tool(mcp)])
    assert without_ids(whole) == without_ids(events[-1]["response"])


def test_the_official_client_gives_leave(start_server: StartServer, mcp: RunningMcpServer) -> None:
    server = serve(start_server, mcp, call_text("remove", '{"name": "x"}'), "Gone.")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    tools: Any = [tool(mcp, require_approval={"never": {"read_only": True}})]
    first = client.responses.create(model="fake/model", input="Remove x.", tools=tools)
    request = first.output[1]
    assert request.type == "mcp_approval_request"
    assert (request.name, request.arguments, mcp.calls) == ("remove", '{"name": "x"}', [])
    answer: Any = [{"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}]
    second = client.responses.create(model="fake/model", previous_response_id=first.id, input=answer, tools=tools)
    call, message = second.output
    assert call.type == "mcp_call" and call.output == "removed x" and call.approval_request_id == request.id
    assert message.type == "message"
    assert mcp.calls == [("remove", "x")]
    # Leave is for one call: asking again does nothing more.
    third = client.responses.create(model="fake/model", previous_response_id=second.id, input=answer, tools=tools)
    assert [item.type for item in third.output] == ["message"]
    assert mcp.calls == [("remove", "x")]
    refusal: Any = [{**answer[0], "approve": False, "reason": "no!"}]
    client.responses.create(model="fake/model", previous_response_id=first.id, input=refusal, tools=tools)
    assert isinstance(server.engine, ScriptedEngine)
    assert "<tool>The user did not allow this call. Reason: no!" in server.engine.prompts[-1]


def test_tools_are_listed_once_a_conversation(start_server: StartServer, mcp: RunningMcpServer) -> None:
    server = serve(start_server, mcp, "Hello.", call_text("add", '{"a": 1, "b": 1}'), "Two.")
    first = create(server, tools=[tool(mcp)])
    second = create(server, tools=[tool(mcp)], previous_response_id=first["id"])
    assert [item["type"] for item in second["output"]] == ["mcp_call", "message"]


def test_a_request_narrows_the_choice(start_server: StartServer, mcp: RunningMcpServer) -> None:
    server = serve(start_server, mcp, call_text("remove", '{"name": "x"}'), "No.")
    assert isinstance(server.engine, ScriptedEngine)
    for allowed in (["add"], {"tool_names": ["add", "nothing"]}, {"read_only": True}):
        answer = create(server, tools=[tool(mcp, allowed_tools=allowed)])
        assert [entry["name"] for entry in answer["output"][0]["tools"]] == ["add"]
        assert "tools: add \n" in server.engine.prompts[-1]
    assert mcp.calls == []


def test_a_function_of_the_same_name_is_told_apart(start_server: StartServer, mcp: RunningMcpServer) -> None:
    replies = (call_text("tests__add", '{"a": 1, "b": 1}') + call_text("add", '{"c": 1}'), "Two.")
    server = serve(start_server, mcp, *replies)
    answer = create(server, tools=[{**WEATHER, "name": "add"}, tool(mcp)])
    assert [item["type"] for item in answer["output"]] == ["mcp_list_tools", "mcp_call", "function_call"]
    assert answer["output"][1]["name"] == "add" and answer["output"][1]["output"] == "2"
    assert len(server.engine.calls) == 1  # the client's turn


def test_calls_have_a_limit(start_server: StartServer, mcp: RunningMcpServer) -> None:
    call = call_text("add", '{"a": 1, "b": 1}')
    server = serve(start_server, mcp, call, call, "Enough.")
    answer = create(server, tools=[tool(mcp)], max_tool_calls=1)
    # Without budget the tools are not offered, and a call by a name that nobody knows is not the server's.
    assert [item["type"] for item in answer["output"]] == ["mcp_list_tools", "mcp_call", "message"]
    assert len(mcp.calls) == 1
    server = serve(start_server, mcp, call)
    answer = create(server, tools=[tool(mcp)], max_output_tokens=10 * len(call))
    assert answer["status"] == "incomplete" and len(mcp.calls) <= 10


def test_wrong_arguments_are_told_to_the_model(start_server: StartServer, mcp: RunningMcpServer) -> None:
    server = serve(start_server, mcp, call_text("add", '{"a": "many"}'), "Sorry.")
    answer = create(server, tools=[tool(mcp)])
    assert answer["output"][1]["status"] == "failed" and answer["status"] == "completed"
    assert mcp.calls == []


def test_no_other_address_is_reached(start_server: StartServer, mcp: RunningMcpServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(0.2)
        server = serve(start_server, mcp, "no")
        for url in (
            f"http://127.0.0.1:{trap.getsockname()[1]}/mcp",
            mcp.url + "/../other",
            mcp.url.replace("127.0.0.1", f"127.0.0.1:{trap.getsockname()[1]}@127.0.0.1"),
            mcp.url.replace("http://", "file://"),
            mcp.url + "?to=http://127.0.0.1",
            "not a URL",
            "http://[broken",
            "",
        ):
            refused = server.client.post(PATH, json={"input": "hi", "tools": [tool(mcp, server_url=url)]})
            assert refused.status_code == 400, url
            assert refused.json()["error"]["param"] == "tools"
        with pytest.raises(TimeoutError):
            trap.accept()
    assert mcp.headers == []


def test_a_server_that_is_down_fails_the_request(start_server: StartServer) -> None:
    with socket.socket() as deaf:  # which keeps the port and does not listen
        deaf.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/mcp"
        server = start_server(ScriptedEngine("no"), allowed_mcp_server=[url])
        body = {"input": "hi", "tools": [{"type": "mcp", "server_label": "x", "server_url": url}]}
        refused = server.client.post(PATH, json=body)
        assert refused.status_code == 424, refused.text
        events = stream(server, **body)
    check_order(events)
    assert events[-1]["type"] == "response.failed"
    assert "response.mcp_list_tools.failed" in [event["type"] for event in events]


def test_servers_are_the_owners_choice() -> None:
    servers = McpServers.from_settings(
        ServerSettings(allowed_mcp_server=["docs=https://Example.com/mcp/"], tool_server="127.0.0.1:9000,[::1]:9001")
    )
    assert servers.find(McpTool(type="mcp", server_label="docs")).url == "https://Example.com/mcp/"
    by_url = McpTool(type="mcp", server_label="x", server_url="https://example.com:443/mcp")
    assert servers.find(by_url).url == "https://Example.com/mcp/"
    sse = McpTool(type="mcp", server_label="x", server_url="http://127.0.0.1:9000/sse")
    assert servers.find(sse).url == "http://127.0.0.1:9000/sse"
    with pytest.raises(InvalidRequestError, match="known here"):
        servers.find(McpTool(type="mcp", server_label="other"))
    with pytest.raises(InvalidRequestError, match="connectors"):
        servers.find(McpTool(type="mcp", server_label="docs", connector_id="connector_gmail"))
    for wrong in ("ftp://example.com", "example.com", "docs=", "http://"):
        with pytest.raises(ConfigError):
            McpServers.from_settings(ServerSettings(allowed_mcp_server=[wrong]))
    with pytest.raises(ConfigError, match="demo"):
        McpServers.from_settings(ServerSettings(tool_server="demo"))


@pytest.mark.parametrize(
    "headers", [{"Host": "internal"}, {"X": "a\r\nY: b"}, {"X Y": "a"}, {"": "a"}, {"Content-Length": "5"}, {"X": "ü"}]
)
def test_headers_that_change_the_connection_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError, match="tools"):
        request_headers(McpTool(type="mcp", server_label="x", headers=headers))
