"""Fields that nothing reads are told, whatever the protocol."""

import logging
import re
from typing import Any

import pytest
from running_server import RunningServer

from octavo.api import ignored_fields

HELLO = [{"role": "user", "content": "hi"}]
HEADER = ignored_fields.HEADER


@pytest.fixture(autouse=True)
def nothing_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignored_fields, "_logged", set())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HELLO}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": HELLO, "model": "fake/model", "max_tokens": 5}),
        ("/tokenize", {"prompt": "hi"}),
    ],
)
def test_unknown_fields_are_told(
    server: RunningServer, path: str, body: dict[str, Any], stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if path == "/tokenize" and stream:
        pytest.skip("this route has no streams")
    body = {**body, "stream": True} if stream else body
    with caplog.at_level(logging.WARNING, "octavo.api.ignored_fields"):
        for _ in range(2):
            response = server.client.post(path, json={**body, "no_such_field": 1, "another": {"x": 1}, "empty": None})
            assert response.status_code == 200, response.text
            assert response.headers[HEADER] == "no_such_field, another"
    lines = [record.getMessage() for record in caplog.records if record.name == ignored_fields.__name__]
    assert [line.split("'")[1] for line in lines] == ["no_such_field", "another"]
    assert HEADER not in server.client.post(path, json=body).headers


def test_a_batch_of_chats_tells_what_none_of_them_reads(server: RunningServer) -> None:
    body = {"messages": [HELLO, HELLO], "temperature": 0.5, "no_such_field": 1}
    response = server.client.post("/v1/chat/completions/batch", json=body)
    assert response.status_code == 200 and response.headers[HEADER] == "no_such_field"


def test_names_cannot_break_headers_or_fill_the_log(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    nasty = {"a\r\nx-evil: 1": 1, "ü" * 200: 1, "b" * 10_000: 1}
    response = server.client.post("/v1/completions", json={"prompt": "hi", **nasty})
    assert response.headers[HEADER] == f"axevil1, ?, {'b' * 64}".replace("axevil1", "ax-evil1")
    assert "x-evil" not in response.headers
    for batch in range(20):
        fields = {f"field_{batch}_{index}": 1 for index in range(5000)}
        response = server.client.post("/v1/completions", json={"prompt": "hi", **fields})
        assert len(response.headers[HEADER].split(", ")) == ignored_fields.MAX_NAMES
    # The client's own library may log as well.
    lines = [record.getMessage() for record in caplog.records if record.name == ignored_fields.__name__]
    assert 0 < len(lines) <= ignored_fields.MAX_LOGGED + 1
    assert all(re.fullmatch(r"[\w .;'?%-]+", line) for line in lines)
