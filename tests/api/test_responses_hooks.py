"""Built-in tools are what the server's owner hooks in."""

from pathlib import Path
from typing import Any

import pytest
from responses_engine import ScriptedEngine, call_text, check_order, without_ids
from running_server import StartServer
from test_responses_api import create, stream

from octavo.api.responses.hooks import base_type, load_hooks
from octavo.errors import ConfigError

SEARCH = {"type": "web_search_preview", "search_context_size": "low"}


HOOKS = [f"web_search={Path(__file__).with_name('search_hook.py')}:make_search"]


def test_a_hook_is_called(start_server: StartServer) -> None:
    engine = ScriptedEngine(call_text("search", '{"query": "octopus"}'), "It has eight arms.", "Yes.")
    server = start_server(engine, builtin_tool=HOOKS, tool_call_parser="hermes")
    answer = create(server, tools=[SEARCH])
    searched, told = answer["output"]
    assert (searched["type"], searched["status"]) == ("web_search_call", "completed")
    assert searched["action"] == {"type": "search", "query": "octopus"}
    assert told["content"][0]["text"] == "It has eight arms."
    assert '<assistant>search({"query": "octopus"})\n<tool>Found octopus.\n' in engine.prompts[1]
    assert answer["tools"] == [SEARCH]
    # The next request knows of it, by the server's memory or the client's.
    create(server, previous_response_id=answer["id"], input="Sure?")
    create(server, input=[{"role": "user", "content": "hi"}, *answer["output"], {"role": "user", "content": "Sure?"}])
    assert engine.prompts[2] == engine.prompts[3]
    assert "<tool>Found octopus." in engine.prompts[2]


def test_a_stream_tells_of_it(start_server: StartServer) -> None:
    replies = (call_text("search", '{"query": "octopus"}'), "Yes.")
    options: dict[str, Any] = {"builtin_tool": HOOKS, "tool_call_parser": "hermes"}
    events = stream(start_server(ScriptedEngine(*replies), **options), tools=[SEARCH])
    check_order(events)
    assert [event["type"] for event in events if "web_search" in event["type"]] == [
        f"response.web_search_call.{step}" for step in ("in_progress", "searching", "completed")
    ]
    whole = create(start_server(ScriptedEngine(*replies), **options), tools=[SEARCH])
    assert without_ids(whole) == without_ids(events[-1]["response"])


@pytest.mark.parametrize(("query", "told"), [("bug", "Error: The tool failed."), ("down", "Error: The index is down.")])
def test_failures_are_told_to_the_model(start_server: StartServer, query: str, told: str) -> None:
    engine = ScriptedEngine(call_text("search", f'{{"query": "{query}"}}'), "Sorry.")
    answer = create(start_server(engine, builtin_tool=HOOKS, tool_call_parser="hermes"), tools=[SEARCH])
    assert answer["output"][0]["status"] == "failed" and answer["output"][0]["output"] == told
    assert f"<tool>{told}\n" in engine.prompts[1]


def test_a_hook_may_refuse(start_server: StartServer) -> None:
    server = start_server(ScriptedEngine("no"), builtin_tool=HOOKS)
    for size, words in (("huge", "low or high"), ("bug", "cannot be set up")):
        refused = server.client.post(
            "/v1/responses", json={"input": "hi", "tools": [{**SEARCH, "search_context_size": size}]}
        )
        assert refused.status_code == 400 and words in refused.text and "secret" not in refused.text


def test_a_forced_search_is_forced_once(start_server: StartServer) -> None:
    engine = ScriptedEngine('{"query": "octopus"}', "Yes.")
    server = start_server(engine, builtin_tool=HOOKS, tool_call_parser="hermes")
    answer = create(server, tools=[SEARCH], tool_choice={"type": "web_search_preview"})
    assert [item["type"] for item in answer["output"]] == ["web_search_call", "message"]
    assert [call["params"].structured_outputs is None for call in engine.calls] == [False, True]


def test_a_model_that_never_stops_calling_is_stopped(start_server: StartServer) -> None:
    engine = ScriptedEngine(call_text("search", '{"query": "x"}'))
    answer = create(start_server(engine, builtin_tool=HOOKS, tool_call_parser="hermes"), tools=[SEARCH])
    assert answer["status"] == "completed"
    assert len(engine.calls) == 32
    assert [item["type"] for item in answer["output"]] == ["web_search_call"] * 31 + ["message"]


def test_versions_are_one_type() -> None:
    names = ("web_search", "web_search_preview", "web_search_2025_08_26", "web_search_preview_2025_03_11")
    assert {base_type(name) for name in names} == {"web_search"}


@pytest.mark.parametrize(
    "entry",
    [
        *(
            "web_search",
            "web_search=",
            "web_search=json",
            "=json:loads",
            "function=json:loads",
            "Web Search=json:loads",
        ),
        *("web_search=json:nothing", "web_search=no_such_module_here:f", "web_search=/no/such/file.py:f"),
    ],
)
def test_wrong_hooks_are_refused_at_the_start(entry: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="builtin_tool"):
        load_hooks([entry])
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    with pytest.raises(ConfigError, match="cannot be imported"):
        load_hooks([f"web_search={broken}:f"])
