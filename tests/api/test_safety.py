"""Promises to whoever runs a server in the open: keys, limits, no reach beyond, no prompts in the log."""

import contextlib
import hmac
import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from running_server import RunningServer, StartServer, start
from short_engine import EVERYTHING, ShortEngine
from starlette.routing import BaseRoute, Route

from octavo.api.app import build_app
from octavo.api.console.router import console_paths
from octavo.config import ServerSettings

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
MARK = "octavo-mark"
MARKS = (f"/{MARK}/../../etc/passwd", f"file:///{MARK}", f"http://{MARK}.invalid/x", f"{{{{ '{MARK}' }}}}")


def all_routes(routes: Iterable[BaseRoute]) -> Iterator[Route]:
    """Every route of an app, those of the routers in it included."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from all_routes(inner.routes)
        else:
            assert isinstance(route, Route), f"{route} is of a kind that this test does not know"
            yield route


def test_every_route_wants_the_key(start_server: StartServer) -> None:
    server = start_server(ShortEngine(), api_key=["secret"], **EVERYTHING)
    routes = list(all_routes(server.server.config.app.routes))  # type: ignore[union-attr]
    assert len(routes) > 60
    open_paths = {"/health"} | console_paths()
    for route in routes:
        path = re.sub(r"\{.*?\}", "x", route.path)
        for method in route.methods or ():
            for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}):
                response = server.client.request(method, path, headers=headers)
                assert (response.status_code == 401) == (path not in open_paths), (method, path)
            response = server.client.request(method, path, headers={"authorization": "Bearer secret"})
            assert response.status_code != 401, (method, path)


@pytest.mark.parametrize(
    "path",
    ["//health", "/health/", "/health/../v1/models", "/health%2f..%2fv1/models", "/v1/models?x=/health", "/HEALTH"],
)
def test_odd_paths_are_no_way_around_the_key(start_server: StartServer, path: str) -> None:
    server = start_server(api_key=["secret"])
    # As bytes: a client would tidy the path up.
    url = httpx.URL(server.url).copy_with(raw_path=path.encode())
    assert server.client.get(url).status_code == 401


@pytest.mark.parametrize("offered", ["first", "second", "third", "firs", "firstt", "x" * 5000, "é"])
def test_keys_are_compared_all_and_in_constant_time(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, offered: str
) -> None:
    server = start_server(api_key=["first", "second", "third"])
    compared: list[tuple[int, int]] = []
    original = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return original(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    server.client.get("/v1/models", headers={"authorization": b"Bearer " + offered.encode()})
    # Digests of one length, so that not even a key's length can be told from the time.
    assert compared == [(32, 32)] * 3


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": f"f{index}"}} for index in range(1025)]},
        {"tools": [{"type": "function", "function": {"name": "f" * 257}}]},
        {"chat_template_kwargs": {f"k{index}": 1 for index in range(65)}},
        {"chat_template_kwargs": {"mood": "x" * 300_000}},
        {"messages": HELLO * 20_000},
        {"stop": ["x"] * 257},
        {"stop": ["x" * 4097]},
        {"stop_token_ids": [1] * 300_000},
        {"allowed_token_ids": [1] * 300_000},
        {"logit_bias": {str(index): 1 for index in range(300)}},
        {"bad_words": ["x"] * 1025},
        {"n": 1025, "temperature": 1},
        {"logprobs": True, "top_logprobs": 21},
        {"cache_salt": "x" * 2000},
        {"structured_outputs": {"regex": "a" * 10_000}},
        {"structured_outputs": {"grammar": "a" * 70_000}},
        {"structured_outputs": {"choice": ["a"] * 5000}},
        {"structured_outputs": {"choice": ["a" * 300_000]}},
        {"structured_outputs": {"json": {"enum": ["a" * 70_000]}}},
    ],
    ids=lambda fields: f"{next(iter(fields))}-{len(json.dumps(fields))}",
)
def test_everything_has_a_limit(server: RunningServer, fields: dict[str, Any]) -> None:
    response = server.client.post(CHAT, json={"messages": HELLO, **fields})
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert message.endswith(".") and not message.endswith("..")
    assert len(message) < 2100
    assert server.engine.calls == []


@pytest.mark.parametrize("place", ["tool", "response_format", "structured_outputs"])
def test_schemas_have_a_depth(server: RunningServer, place: str) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(33):
        schema = {"type": "object", "properties": {"a": schema}}
    body: dict[str, Any] = {
        "tool": {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]},
        "response_format": {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}},
        "structured_outputs": {"structured_outputs": {"json": schema}},
    }[place]
    response = server.client.post(CHAT, json={"messages": HELLO, **body})
    assert response.status_code == 400
    assert "64" in response.json()["error"]["message"]


class _Reach:
    """What the process opened or called that has the mark in it, while it looks.

    An audit hook cannot be taken away again, so one serves all tests.
    """

    EVENTS = ("open", "os.", "shutil.", "socket.", "subprocess.", "urllib.", "http.", "import", "exec", "compile")

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._is_looking = False
        sys.addaudithook(self._on_event)

    def _on_event(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._is_looking and event.startswith(self.EVENTS) and MARK in repr(arguments):
            self.seen.append(f"{event} {arguments!r:.200}")

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[str]]:
        self.seen.clear()
        self._is_looking = True
        try:
            yield self.seen
        finally:
            self._is_looking = False


REACH = _Reach()


def test_the_watch_sees_files_and_addresses() -> None:
    with REACH.watched() as seen:
        with contextlib.suppress(OSError):
            open(f"/tmp/{MARK}/x")  # noqa: SIM115
        with contextlib.suppress(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:9/{MARK}", proxy=f"http://{MARK}.invalid:1")
        assert len(seen) >= 2


SCHEMA = build_app(ShortEngine(), ServerSettings(enable_tokenizer_info_endpoint=True)).openapi()
PLAIN = {
    "messages": HELLO,
    "prompt": "hi",
    "input": "hi",
    "query": "hi",
    "documents": ["hi"],
    "texts": ["hi"],
    "text_1": "hi",
    "text_2": "hi",
    "items": ["hi"],
    "label_token_ids": [1, 2],
    "tokens": [1],
    "token_ids": [1],
    "max_tokens": 3,
    "max_output_tokens": 3,
    "sampling_params": {"max_tokens": 3},
}


def bodies(path: str) -> Iterator[dict[str, Any]]:
    """For every field of a route's body, bodies that carry the mark there in several shapes."""
    content = SCHEMA["paths"][path]["post"].get("requestBody", {"content": {}})["content"]
    if not content:
        return
    name = content["application/json"]["schema"].get("$ref", "").rpartition("/")[2]
    properties = SCHEMA["components"]["schemas"].get(name, {}).get("properties", PLAIN)
    base = {field: value for field, value in PLAIN.items() if field in properties}
    for field in properties:
        for number, mark in enumerate(MARKS):
            shapes: Sequence[object] = (
                mark,
                [mark],
                {"url": mark, "path": mark, "type": mark},
                [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": mark}}]}],
                [{"role": "user", "content": mark}],
            )
            yield {**base, field: shapes[number % len(shapes)]}
            yield {**base, field: shapes[(number + 3) % len(shapes)]}


@pytest.fixture(scope="module")
def named_server(stopped_servers: list[RunningServer]) -> Iterator[RunningServer]:
    """A server that sends request ids back."""
    server = start(ShortEngine(), enable_tokenizer_info_endpoint=True, enable_request_id_headers=True)
    yield server
    server.stop()
    stopped_servers.append(server)


@pytest.mark.sample(8)
@pytest.mark.parametrize("path", [path for path, methods in SCHEMA["paths"].items() if "post" in methods])
def test_nothing_sent_is_opened_called_or_logged(
    named_server: RunningServer, path: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    client = named_server.client
    headers = {
        "x-request-id": MARKS[0],
        "traceparent": MARKS[2],
        "x-forwarded-host": f"{MARK}.invalid",
        "forwarded": f"host={MARK}.invalid",
        "referer": MARKS[2],
        "user-agent": MARK,
        "anthropic-version": MARK,
    }
    url = re.sub(r"\{.*?\}", "x", path)
    with caplog.at_level(logging.DEBUG), REACH.watched() as seen:
        for body in bodies(path):
            client.post(url, json=body, headers=headers)
    assert seen == []
    ours = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    assert [record for record in ours if MARK in record.getMessage()] == []
    assert MARK not in "".join(capfd.readouterr())


def test_the_page_on_security_names_tests_that_exist() -> None:
    root = Path(__file__).parents[2]
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (root / "docs/security.md").read_text(encoding="utf-8"))
    assert len(named) > 25
    for file, test in named:
        assert (root / file).is_file(), file
        assert not test or f"def {test}(" in (root / file).read_text(encoding="utf-8"), test
