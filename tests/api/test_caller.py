"""What a request's headers and body say of its caller."""

import asyncio
import time
from typing import Any

import pytest
from fake_engine import FakeEngine
from running_server import StartServer

from octavo.api.caller import CallerMiddleware
from octavo.api.middleware import KEY_INDEX
from octavo.records.caller import CALLER, Caller

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def caller_of(headers: dict[str, str], key_index: int | None = None, **settings: Any) -> Caller | int:
    """What is noted of a request, or the status with which it is refused."""
    found: list[Caller | int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(CALLER.get())

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            found.append(message["status"])

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": "/v1/models", "headers": raw}
    if key_index is not None:
        scope[KEY_INDEX] = key_index
    middleware = CallerMiddleware(app, **({"fair_share": "auto", "num_keys": 0, "max_seconds": None} | settings))
    asyncio.run(middleware(scope, None, send))  # type: ignore[arg-type]
    assert CALLER.get() == Caller(), "one request's caller is nobody else's"
    return found[0]


def test_trace_context_and_request_id() -> None:
    caller = caller_of({"traceparent": TRACE, "x-request-id": "a <b>", "cookie": "secret"})
    assert isinstance(caller, Caller)
    assert caller.trace_headers == {"traceparent": TRACE}
    assert caller.request_id == "ab"


@pytest.mark.parametrize(
    ("asked", "limit", "expected"),
    [(None, None, None), ("5", None, 5), ("5", 2.0, 2), ("1", 2.0, 1), (None, 2.0, 2), ("0.5", None, 0.5)],
)
def test_deadlines(asked: str | None, limit: float | None, expected: float | None) -> None:
    headers = {} if asked is None else {"x-request-timeout": asked}
    before = time.monotonic()
    caller = caller_of(headers, max_seconds=limit)
    assert isinstance(caller, Caller)
    if expected is None:
        assert caller.deadline is None
    else:
        assert caller.deadline is not None
        assert before + expected <= caller.deadline <= time.monotonic() + expected


@pytest.mark.parametrize("asked", ["0", "-3", "nan", "inf", "1e999", "five", "", "1;2"])
def test_deadlines_that_are_none(asked: str) -> None:
    assert caller_of({"x-request-timeout": asked}) == 400


@pytest.mark.parametrize(
    ("settings", "key_index", "client"),
    [
        ({"num_keys": 2}, 1, "key 1"),
        ({"num_keys": 2, "fair_share": "none"}, 1, ""),
        ({"num_keys": 1, "fair_share": "key"}, 0, "key 0"),
    ],
)
def test_shares_by_key(settings: dict[str, Any], key_index: int, client: str) -> None:
    caller = caller_of({"authorization": "Bearer whatever"}, key_index, **settings)
    assert isinstance(caller, Caller) and caller.client == client


class Listening(FakeEngine):
    """Notes who calls."""

    def __init__(self) -> None:
        super().__init__()
        self.callers: list[Caller] = []

    async def generate(self, *arguments: Any, **options: Any) -> Any:
        self.callers.append(CALLER.get())
        async for output in super().generate(*arguments, **options):
            yield output


def test_shares_by_user_as_each_protocol_names_them(start_server: StartServer) -> None:
    engine = Listening()
    client = start_server(engine).client
    message = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    for path, body in (
        ("/v1/completions", {"prompt": "hi", "user": "ann"}),
        ("/v1/chat/completions", message | {"safety_identifier": "bob"}),
        ("/v1/chat/completions", message | {"stream": True, "user": "eve"}),
        ("/v1/messages", message | {"metadata": {"user_id": "cleo"}, "model": "fake/model"}),
        ("/v1/completions", {"prompt": "hi", "user": "x" * 5000}),
        ("/v1/completions", {"prompt": "hi"}),
    ):
        assert client.post(path, json=body).status_code == 200
    found = [caller.client for caller in engine.callers]
    assert found == ["user ann", "user bob", "user eve", "user cleo", "user " + "x" * 256, ""]


def test_with_several_keys_a_user_is_just_a_name(start_server: StartServer) -> None:
    engine = Listening()
    client = start_server(engine, api_key=["one", "two"]).client
    for key, user in (("one", "a"), ("two", "b"), ("two", "c")):
        # A second credential that is no key makes nobody another client.
        headers = {"authorization": f"Bearer {key}", "x-api-key": f"no key {user}"}
        assert client.post("/v1/completions", json={"prompt": "hi", "user": user}, headers=headers).status_code == 200
    assert [caller.client for caller in engine.callers] == ["key 0", "key 1", "key 1"]
