"""Keys, request ids, other origins."""

import asyncio
import logging

import pytest
from fake_engine import FakeEngine
from running_server import RunningServer, StartServer
from starlette.types import Message

from octavo.api.app import build_app
from octavo.api.drain import Drain
from octavo.config import ServerSettings
from octavo.records.caller import CALLER
from octavo.telemetry.logs import OneLineFormatter

ROUTES = [
    ("GET", "/v1/models"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/metrics"),
    ("GET", "/version"),
    ("GET", "/ping"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/nothing"),
    ("GET", "/health/"),
]


def test_keys_guard_everything_but_health(start_server: StartServer) -> None:
    client = start_server(api_key=["secret", "other"]).client
    assert client.get("/health").status_code == 200
    for method, path in ROUTES:
        response = client.request(method, path)
        assert response.status_code == 401, path
        assert response.json()["error"]["code"] == 401
        assert response.headers["www-authenticate"] == "Bearer"
    for key, status in (("secret", 200), ("other", 200), ("Secret", 401), ("s", 401), ("secretx", 401)):
        response = client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
        assert response.status_code == status, key
    assert client.get("/v1/models", headers={"authorization": "secret"}).status_code == 401
    assert client.get("/v1/models", headers={"authorization": "Basic secret"}).status_code == 401


def test_health_is_open_behind_a_proxy_too(start_server: StartServer) -> None:
    client = start_server(api_key=["secret"], root_path="/llm").client
    assert client.get("/health").status_code == 200
    assert client.get("/v1/models").status_code == 401
    assert client.get("/llm/health").status_code == 200
    assert client.get("/llm/v1/models").status_code == 401
    assert client.get("/llm/llm/health").status_code == 401


@pytest.mark.parametrize("path", ["/v1/models", "/llm/v1/models"])
def test_a_root_path_may_be_stripped_or_not(start_server: StartServer, path: str) -> None:
    client = start_server(root_path="/llm").client
    assert client.get(path).status_code == 200
    assert client.get(f"/other{path}").status_code == 404


def test_paths_that_the_owner_opens_need_no_key(start_server: StartServer) -> None:
    client = start_server(api_key=["secret"], no_auth_paths=["/metrics", "/ping"]).client
    for path, status in (("/metrics", 200), ("/ping", 200), ("/v1/models", 401), ("/metrics/", 401)):
        assert client.get(path).status_code == status, path


def test_probes_may_ask_for_the_head_alone(start_server: StartServer) -> None:
    client = start_server(api_key=["secret"]).client
    response = client.head("/health")
    assert (response.status_code, response.content) == (200, b"")
    assert client.head("/ping").status_code == 401


def test_request_ids_come_back_harmless(start_server: StartServer) -> None:
    server = start_server(enable_request_id_headers=True)
    response = server.client.get("/health", headers={"x-request-id": "abc <b>\t" + "x" * 300})
    assert response.headers["x-request-id"] == ("abcb" + "x" * 300)[:128]
    assert len(server.client.get("/nothing").headers["x-request-id"]) == 32
    answer = server.client.post("/v1/completions", json={"prompt": "hi"}, headers={"x-request-id": "mine"})
    assert answer.headers["x-request-id"] == "mine"
    assert answer.json()["id"] == "cmpl-mine"


def test_no_request_ids_if_they_are_switched_off(start_server: StartServer) -> None:
    server = start_server(enable_request_id_headers=False)
    assert "x-request-id" not in server.client.get("/health", headers={"x-request-id": "a"}).headers
    answer = server.client.post("/v1/completions", json={"prompt": "hi", "request_id": "mine"})
    assert answer.json()["id"] == "cmpl-mine"


@pytest.mark.parametrize(
    ("headers", "fields", "expected"),
    [
        ({"x-request-id": "mine"}, {"request_id": "other"}, "mine"),
        ({}, {"request_id": "mine"}, "mine"),
        ({}, {}, None),
    ],
)
def test_the_answer_and_its_head_name_a_request_alike(
    server: RunningServer, headers: dict[str, str], fields: dict[str, str], expected: str | None
) -> None:
    """By the client's header, else by the body's field, else by an id of the server's making."""
    answer = server.client.post("/v1/completions", json={"prompt": "hi", **fields}, headers=headers)
    name = answer.headers["x-request-id"]
    assert answer.json()["id"] == f"cmpl-{name}"
    assert name == expected or (expected is None and len(name) == 32)


def test_log_lines_of_a_request_name_it(server: RunningServer) -> None:
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(OneLineFormatter("%(message)s").format(record))

    handler = Lines()
    logger = logging.getLogger("octavo.api.ignored_fields")
    logger.addHandler(handler)
    server.client.post(
        "/v1/completions", json={"prompt": "hi", "never_seen_before": 1}, headers={"x-request-id": "mine"}
    )
    logger.removeHandler(handler)
    assert len(lines) == 1 and lines[0].startswith("[mine] Ignored the unknown request field 'never_seen_before'")


def test_log_lines_of_refused_requests_name_them() -> None:
    """Also of those that never reach a route: without a key, or while the server goes down."""
    drain = Drain()
    app = build_app(FakeEngine(), ServerSettings(api_key=["secret"]), drain)
    known: list[tuple[int, str]] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":  # the server writes its line here
            known.append((message["status"], CALLER.get().request_id))

    async def get(*headers: tuple[bytes, bytes]) -> None:
        scope = {"type": "http", "method": "GET", "path": "/v1/models", "query_string": b"", "root_path": ""}
        await app({**scope, "headers": [(b"x-request-id", b"mine"), *headers]}, receive, send)

    asyncio.run(get())
    drain.start_draining()
    asyncio.run(get((b"authorization", b"Bearer secret")))
    assert known == [(401, "mine"), (503, "mine")]
    assert CALLER.get().request_id == ""


@pytest.mark.parametrize("path", ["/health", "/ping"])
def test_health_answers_head(server: RunningServer, path: str) -> None:
    response = server.client.head(path)
    assert (response.status_code, response.content) == (200, b"")
    server.engine.is_healthy = False
    try:
        assert server.client.head(path).status_code == 503
    finally:
        server.engine.is_healthy = True


def test_two_requests_of_one_name_do_not_clash(server: RunningServer) -> None:
    for _ in range(2):
        server.client.post("/v1/completions", json={"prompt": "hi", "request_id": "same"})
    first, second = (call["request_id"] for call in server.engine.calls)
    assert first != second


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions"])
def test_other_origins(start_server: StartServer, path: str) -> None:
    asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
    closed = start_server()
    assert "access-control-allow-origin" not in closed.client.options(path, headers=asked).headers
    opened = start_server(allowed_origins=["https://a.example"], api_key=["k"])
    response = opened.client.options(path, headers=asked)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "https://a.example"
    # An error that no CORS header goes with would be unreadable in a browser.
    refused = opened.client.get(path, headers={"origin": "https://a.example"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://a.example"
