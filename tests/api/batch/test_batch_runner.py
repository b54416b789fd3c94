"""Requests go through the server's own app."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from fake_engine import FakeEngine
from starlette.types import Receive, Scope, Send

from octavo.api.app import build_app
from octavo.api.batch.answers import AnswerFile
from octavo.api.batch.lines import BatchRequest
from octavo.api.batch.runner import BatchRunner
from octavo.config import ServerSettings
from octavo.errors import OverloadedError, RequestFailedError


def request(custom_id: str, url: str = "/v1/completions", method: str = "POST", **body: Any) -> BatchRequest:
    return msgspec.convert(
        {"custom_id": custom_id, "method": method, "url": url, "body": msgspec.Raw(json.dumps(body).encode())},
        BatchRequest,
    )


class Batch:
    """Runs requests through an app and reads what was kept."""

    def __init__(self, folder: Path) -> None:
        self.output, self.part = folder / "out", folder / "out.part"
        self.waits: list[float] = []

    def run(self, app: Any, requests: list[BatchRequest], max_inflight: int = 4) -> list[dict[str, Any]]:
        ids = [each.custom_id for each in requests]

        async def sleep(seconds: float) -> None:
            self.waits.append(seconds)

        async def run() -> None:
            answers = AnswerFile(self.output, self.part, ids)
            try:
                await BatchRunner(app, answers, max_inflight, sleep=sleep).run(iter(requests))
                answers.write_output(ids)
            finally:
                answers.close()

        asyncio.run(run())
        return [json.loads(line) for line in self.output.read_bytes().splitlines()]


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    return Batch(tmp_path)


def app_of(engine: FakeEngine) -> Any:
    return build_app(engine, ServerSettings())


CHAT = {"messages": [{"role": "user", "content": "Hi"}], "n": 2, "logprobs": True, "top_logprobs": 1}
BODIES = [
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 3, "echo": True}),
    ("/v1/completions", {"prompt": "x", "max_tokens": -1}),
    ("/v1/completions", {"prompt": "x", "model": "other"}),
    ("/v1/completions", {"prompt": "bug"}),
    ("/v1/completions", {"nothing": 1}),
]


def test_answers_are_the_servers(batch: Batch) -> None:
    app = app_of(FakeEngine())
    requests = [request(str(index), url, **body) for index, (url, body) in enumerate(BODIES)]
    answers = batch.run(app, requests)

    async def ask_server(url: str, body: dict[str, Any]) -> tuple[int, Any]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            response = await client.post(url, json=body)
        return response.status_code, response.json()

    for answer, (url, body) in zip(answers, BODIES, strict=True):
        status, expected = asyncio.run(ask_server(url, body))
        found = answer["response"]
        assert found["status_code"] == status
        for changing in ("id", "created"):
            expected.pop(changing, None)
            found["body"].pop(changing, None)
        assert found["body"] == expected
        assert answer["error"] == expected.get("error")
    assert [answer["response"]["status_code"] for answer in answers] == [200, 200, 400, 404, 500, 400]


def test_one_bad_request_does_not_keep_others(batch: Batch) -> None:
    requests = [request("a", "/sleep"), request("b", method="GET"), request("c", stream=True), request("d", prompt="x")]
    answers = batch.run(app_of(FakeEngine()), requests)
    assert [answer["response"]["status_code"] for answer in answers] == [400, 400, 400, 200]
    assert [answer["custom_id"] for answer in answers] == ["a", "b", "c", "d"]


def test_a_route_that_the_server_lacks_is_told(batch: Batch) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await app_of(FakeEngine())({**scope, "path": "/none", "raw_path": b"/none"}, receive, send)

    (answer,) = batch.run(app, [request("a", "/classify", input="x")])
    assert answer["response"]["status_code"] == 404
    assert "no route" in answer["error"]["message"]


def test_no_more_than_allowed_are_asked_at_once(batch: Batch) -> None:
    engine = FakeEngine("0123456789", step_seconds=0.001)
    most = 0
    generate = engine.generate

    async def watch(*arguments: Any, **options: Any) -> Any:
        nonlocal most
        async for output in generate(*arguments, **options):
            most = max(most, engine.num_running)
            yield output

    engine.generate = watch  # type: ignore[method-assign]
    batch.run(app_of(engine), [request(str(index), prompt="x") for index in range(12)], max_inflight=3)
    assert most == 3


def test_requests_are_read_as_they_are_needed(batch: Batch) -> None:
    engine = FakeEngine("0123456789", step_seconds=0.001)
    num_read = 0

    def requests() -> Iterator[BatchRequest]:
        nonlocal num_read
        for index in range(12):
            assert index - len(engine.calls) < 3, "a long file must not be held in memory"
            num_read += 1
            yield request(str(index), prompt="x")

    async def run() -> None:
        answers = AnswerFile(batch.output, batch.part, map(str, range(12)))
        await BatchRunner(app_of(engine), answers, 2).run(requests())
        answers.close()

    asyncio.run(run())
    assert num_read == 12


def test_a_busy_server_is_asked_again(batch: Batch) -> None:
    engine = FakeEngine()
    generate, failures = engine.generate, itertools.count()

    async def refuse_thrice(*arguments: Any, **options: Any) -> Any:
        if next(failures) < 3:
            raise OverloadedError("Later.")
        async for output in generate(*arguments, **options):
            yield output

    engine.generate = refuse_thrice  # type: ignore[method-assign]
    (answer,) = batch.run(app_of(engine), [request("a", prompt="x")])
    assert answer["response"]["status_code"] == 200
    assert batch.waits == sorted(batch.waits) and len(batch.waits) == 3


def test_a_server_that_stays_busy_is_given_up(batch: Batch) -> None:
    (answer,) = batch.run(app_of(FakeEngine()), [request("a", prompt="overload")])
    assert answer["response"]["status_code"] == 503
    assert answer["error"]["message"] == "The queue is full."
    assert 3 < len(batch.waits) < 20 and max(batch.waits) <= 30


def test_answers_that_are_no_json_do_not_break_the_file(batch: Batch) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/octet-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"\x00\n\xff"})

    (answer,) = batch.run(app, [request("a", "/v1/embeddings", input="x")])
    assert answer["response"]["status_code"] == 400
    assert "not JSON" in answer["error"]["message"]


def test_what_has_its_answer_is_not_asked_again(batch: Batch) -> None:
    engine = FakeEngine()
    requests = [request(each, prompt=each) for each in "abc"]
    batch.run(app_of(engine), requests[:2])
    # The input has grown since.
    answers = batch.run(app_of(engine), requests)
    assert [call["prompt"] for call in engine.calls] == ["a", "b", "c"]
    assert [answer["custom_id"] for answer in answers] == ["a", "b", "c"]


def test_a_broken_disk_ends_the_run_and_its_requests(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine("0123456789", step_seconds=0.001)

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("octavo.api.batch.answers.os.fsync", fail)
    with pytest.raises(ExceptionGroup) as failure:
        batch.run(app_of(engine), [request(str(index), prompt="x") for index in range(50)])
    assert failure.group_contains(RequestFailedError, match="No space left")
    assert engine.num_running == 0
    assert len(engine.calls) < 50
