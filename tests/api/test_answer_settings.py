"""Settings of vLLM's server that shape requests and answers."""

from typing import Any

import pytest
from fake_engine import FakeEngine
from running_server import RunningServer, StartServer
from test_chat_fields import CHAT, COMPLETIONS, HELLO, post, stream

from octavo.config import ServerSettings
from octavo.config.engine_config import convert_section
from octavo.errors import ConfigError
from octavo.inputs.chat import ChatRenderer

TEMPLATE = "{{ reasoning_effort }}|{{ enable_thinking }}|{{ messages[0].content }}"


def answering(start_server: StartServer, **settings: Any) -> RunningServer:
    engine = FakeEngine()
    assert engine.tokenizer is not None
    engine.chat_renderer = ChatRenderer(engine.tokenizer, TEMPLATE)
    return start_server(engine, **settings)


@pytest.mark.parametrize(
    ("mode", "value", "expected"), [("custom", "mine", "mine"), ("none", "mine", None), ("custom", None, None)]
)
def test_fingerprints(start_server: StartServer, mode: str, value: str | None, expected: str | None) -> None:
    server = start_server(fingerprint_mode=mode, fingerprint_value=value)
    for path in (CHAT, COMPLETIONS):
        assert post(server, path).get("system_fingerprint") == expected
        assert {chunk.get("system_fingerprint") for chunk in stream(server, path)} == {expected}


def test_fingerprints_by_hash_are_the_usual_ones(start_server: StartServer) -> None:
    usual, hashed = (start_server(fingerprint_mode=mode) for mode in ("full", "hash"))
    assert post(usual, CHAT)["system_fingerprint"] == post(hashed, CHAT)["system_fingerprint"]


def test_efforts_have_other_names(start_server: StartServer) -> None:
    server = answering(start_server, reasoning_effort_map={"medium": "low", "none": "off"})
    for effort, shown in (("medium", "low"), ("high", "high"), ("none", "off")):
        post(server, CHAT, reasoning_effort=effort)
        assert server.engine.calls[-1]["prompt"].split("|")[0] == shown
    assert server.engine.calls[-1]["prompt"].split("|")[1] == "False"
    answer = server.client.post("/v1/responses", json={"input": "hi", "reasoning": {"effort": "medium"}})
    assert answer.status_code == 200 and server.engine.calls[-1]["prompt"].startswith("low|")
    body = {"model": "m", "max_tokens": 4, "messages": HELLO, "output_config": {"effort": "medium"}}
    server = answering(start_server, reasoning_effort_map={"medium": "low"}, skip_model_name_validation=True)
    assert server.client.post("/v1/messages", json=body).status_code == 200
    assert server.engine.calls[-1]["prompt"].startswith("low|")


@pytest.mark.parametrize("efforts", [{"heroic": "low"}, {"low": 3}, "low"])
def test_a_map_of_efforts_names_efforts(efforts: Any) -> None:
    with pytest.raises(ConfigError, match="reasoning_effort_map"):
        convert_section(ServerSettings, {"reasoning_effort_map": efforts})


@pytest.mark.parametrize(
    ("content_format", "shown"), [("auto", "hi"), ("string", "hi"), ("openai", "[{'type': 'text', 'text': 'hi'}]")]
)
def test_contents_have_the_form_of_the_setting(start_server: StartServer, content_format: str, shown: str) -> None:
    server = answering(start_server, chat_template_content_format=content_format)
    post(server, CHAT, messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}])
    assert server.engine.calls[-1]["prompt"].split("|")[2] == shown
