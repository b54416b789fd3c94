"""Tools of the client that take text, and tools in namespaces."""

import json
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseCustomToolCall
from responses_engine import ScriptedEngine, call_text
from running_server import StartServer
from test_responses_api import PATH, both, client_of, create

from octavo.api.responses.items import custom_input

SQL: dict[str, Any] = {"type": "custom", "name": "sql", "description": "Runs SQL.", "format": {"type": "text"}}
CALL = call_text("sql", json.dumps({"input": 'select "a"\nfrom b'}))
CRM: dict[str, Any] = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [{"type": "function", "name": "find", "parameters": {"type": "object"}}, SQL],
}


def test_the_official_client_calls_a_custom_tool_and_goes_on(start_server: StartServer) -> None:
    engine = ScriptedEngine(CALL, "Two rows.")
    client = client_of(start_server(engine, tool_call_parser="hermes"))
    with client.responses.stream(model="fake/model", input="How many?", tools=[SQL]) as events:  # type: ignore[list-item]
        parsed = list(events)
        first = events.get_final_response()
    (call,) = first.output
    assert isinstance(call, ResponseCustomToolCall)
    assert (call.name, call.input, call.namespace) == ("sql", 'select "a"\nfrom b', None)
    deltas = [event.delta for event in parsed if event.type == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == call.input
    assert [event.input for event in parsed if event.type == "response.custom_tool_call_input.done"] == [call.input]
    result: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "2"}
    second = client.responses.create(model="fake/model", previous_response_id=first.id, input=[result])
    assert second.output_text == "Two rows."
    assert '<assistant>sql({"input": "select \\"a\\"\\nfrom b"})\n<tool>2\n' in engine.prompts[-1]
    items: Any = [{"role": "user", "content": "How many?"}, call.to_dict(), result]
    client.responses.create(model="fake/model", input=items, store=False)
    assert engine.prompts[-1] == engine.prompts[-2]


def test_a_custom_tool_comes_out_whole_as_streamed(start_server: StartServer) -> None:
    server = start_server(ScriptedEngine(CALL), tool_call_parser="hermes")
    answer = both(server, tools=[SQL])
    assert answer["tools"] == [SQL] and answer["output"][0]["status"] == "completed"
    for limit in range(1, len(CALL), 3):
        for item in both(server, tools=[SQL], max_output_tokens=limit)["output"]:
            assert item["type"] == "message" or 'select "a"\nfrom b'.startswith(item["input"])


def test_a_custom_tool_can_be_forced(start_server: StartServer) -> None:
    engine = ScriptedEngine('{"input": "select 1"}')
    server = start_server(engine, tool_call_parser="hermes")
    answer = create(server, tools=[SQL], tool_choice={"type": "custom", "name": "sql"})
    assert (answer["output"][0]["type"], answer["output"][0]["input"]) == ("custom_tool_call", "select 1")
    assert engine.calls[0]["params"].structured_outputs.json["required"] == ["input"]


def test_tools_of_a_namespace_are_called_by_their_own_names(start_server: StartServer) -> None:
    engine = ScriptedEngine(call_text("crm__find", "{}") + call_text("crm__sql", '{"input": "x"}'))
    server = start_server(engine, tool_call_parser="hermes")
    answer = both(server, tools=[CRM])
    found, sql = answer["output"]
    assert (found["type"], found["name"], found["namespace"]) == ("function_call", "find", "crm")
    assert (sql["type"], sql["name"], sql["namespace"]) == ("custom_tool_call", "sql", "crm")
    assert "tools: crm__find crm__sql" in engine.prompts[0]
    results = [{"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "ok"} for item in (found, sql)]
    engine.replies = ["Done."]
    create(server, previous_response_id=answer["id"], input=results, tools=[CRM])
    assert "crm__find({})" in engine.prompts[-1] and 'crm__sql({"input": "x"})' in engine.prompts[-1]


@pytest.mark.parametrize(
    ("tool", "part"),
    [
        ({**SQL, "format": {"type": "grammar", "syntax": "lark", "definition": "start: A"}}, "without a grammar"),
        ({**SQL, "name": ""}, "name"),
        ({**CRM, "tools": []}, "tools"),
        ({**CRM, "tools": [{"type": "mcp"}]}, "must be of the type"),
        ({**CRM, "tools": [SQL, SQL]}, "twice"),
        ({**CRM, "tools": [{**SQL, "name": f"t{number}"} for number in range(1024)]}, None),
    ],
)
def test_wrong_tools_are_rejected(start_server: StartServer, tool: dict[str, Any], part: str | None) -> None:
    server = start_server(ScriptedEngine("ok"), tool_call_parser="hermes")
    response = server.client.post(PATH, json={"input": "hi", "tools": [tool]})
    assert response.status_code == (400 if part else 200)
    assert part is None or part in response.json()["error"]["message"]
    if part is None:
        response = server.client.post(PATH, json={"input": "hi", "tools": [tool, SQL]})
        assert response.status_code == 400 and "at most 1024" in response.json()["error"]["message"]


def test_a_function_is_not_forced_as_a_custom_tool(start_server: StartServer) -> None:
    client = client_of(start_server(ScriptedEngine("ok"), tool_call_parser="hermes"))
    with pytest.raises(openai.BadRequestError, match="not among the tools"):
        client.responses.create(
            model="fake/model",
            input="hi",
            tools=[SQL],  # type: ignore[list-item]
            tool_choice={"type": "function", "name": "sql"},
        )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "a\\nb"}', "a\nb"),
        ('{"input": "a\\nb', "a\nb"),
        ('{"input": "a\\', "a"),
        ('{"input": "a\\ud83d\\ude0', "a"),
        ('{"input": "', ""),
        ('{"inp', ""),
        ("[]", ""),
    ],
)
def test_the_input_of_a_cut_call_is_its_beginning(arguments: str, text: str) -> None:
    assert custom_input(arguments) == text
