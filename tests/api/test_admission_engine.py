"""Overload, deadlines, fair turns, and what an owner does: over HTTP, with a real engine behind it."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tiny_llama import SETTINGS, write_model

from octavo import AsyncLLM, SamplingParams
from octavo.api.app import build_app
from octavo.config import ServerSettings

LONG = {"prompt": "tea", "max_tokens": 480, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
Scenario = Callable[[AsyncLLM, httpx.AsyncClient], Awaitable[None]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def _importable_in_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def run(folder: Path, scenario: Scenario, server: dict[str, Any], **settings: Any) -> None:
    async def main() -> None:
        llm = AsyncLLM.from_engine_args(
            model=str(folder), log_level="warning", **(SETTINGS | {"max_model_len": 512} | settings)
        )
        await llm.start()
        app = build_app(llm, ServerSettings(**server))
        try:
            async with (
                asyncio.timeout(60),
                httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x", timeout=60) as client,
            ):
                await scenario(llm, client)
                await until(lambda: llm.num_unfinished == 0)
                await until(lambda: llm.stats.num_running == llm.stats.num_waiting == 0 and not llm.stats.cache_usage)
        finally:
            await llm.shutdown()

    asyncio.run(main())


async def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def caught(llm: AsyncLLM, client: httpx.AsyncClient, order: str, undo: str) -> asyncio.Task[httpx.Response]:
    """A request that had begun and not ended when the order took effect; on a busy machine that takes some tries."""
    while True:
        running = start(client)
        await until(lambda: llm.stats.num_running == 1 or running.done())
        assert (await client.post(order)).status_code == 200
        if llm.num_unfinished == 1:
            return running
        await running
        assert (await client.post(undo)).status_code == 200


def start(client: httpx.AsyncClient, path: str = "/v1/completions", **body: Any) -> asyncio.Task[httpx.Response]:
    headers = body.pop("headers", None)
    return asyncio.create_task(client.post(path, json=LONG | body, headers=headers))


def test_owner_and_deadlines(folder: Path, tmp_path: Path) -> None:
    async def scenario(llm: AsyncLLM, client: httpx.AsyncClient) -> None:
        expected = (await start(client)).json()["choices"][0]["token_ids"]
        await _pause_and_sleep(llm, client, expected)
        await _abort(llm, client)
        await _weights(client, expected)
        await _deadlines(llm, client)
        await _stuck(llm, client, tmp_path / "gate")

    settings = {"logits_processors": ["blocking_processor:Blocking"], "step_timeout": 0.3}
    run(folder, scenario, {"enable_admin_endpoints": True, "request_deadline": 30.0}, **settings)


async def _pause_and_sleep(llm: AsyncLLM, client: httpx.AsyncClient, expected: list[int]) -> None:
    for order, undo in (
        ("/pause?mode=keep", "/resume"),
        ("/sleep?level=1&mode=keep", "/wake_up"),
        ("/sleep?level=2&mode=keep", "/wake_up?tags=weights&tags=kv_cache&tags=scheduling"),
        ("/release_kv_cache_memory", "/wake_up"),
    ):
        running = await caught(llm, client, order, undo)
        assert (await client.get("/is_paused")).json() == {"is_paused": True}
        assert (await client.get("/is_sleeping")).json() == {"is_sleeping": order != "/pause?mode=keep"}
        late = start(client)
        await until(lambda: llm.stats.num_waiting == 2)
        await asyncio.sleep(0.4)
        assert (await client.get("/health")).status_code == 200, "standing still on purpose is healthy"
        assert not running.done() and not late.done()
        assert (await client.post(undo)).status_code == 200
        for task in (running, late):
            assert (await task).json()["choices"][0]["token_ids"] == expected
    finish_reason = None
    while finish_reason != "abort":  # It may have ended before the pause.
        running = start(client)
        await until(lambda: llm.stats.num_running == 1 or running.done())
        assert (await client.post("/pause")).json() == {"status": "paused"}
        finish_reason = (await running).json()["choices"][0]["finish_reason"]
        if finish_reason == "length":
            await client.post("/resume")
    assert (await client.post("/resume")).json() == {"status": "resumed"}
    assert (await client.get("/is_paused")).json() == {"is_paused": False}


async def _abort(llm: AsyncLLM, client: httpx.AsyncClient) -> None:
    aborted: list[str] = []
    while not aborted:  # It may have ended before.
        running = start(client, request_id="mine")
        await until(lambda: llm.stats.num_running == 1 or running.done())
        answer = await client.post("/abort_requests", json={"request_ids": ["cmpl-mine", "cmpl-other"]})
        aborted = answer.json()["aborted"]
        ended = (await running).json()["choices"][0]["finish_reason"]
    assert answer.json() == {"status": "aborted", "aborted": ["cmpl-mine"]}
    assert ended == "abort"
    assert (await client.post("/reset_prefix_cache")).json() == {"success": True}


async def _weights(client: httpx.AsyncClient, expected: list[int]) -> None:
    assert (await client.post("/start_weight_update")).status_code == 400
    before = (await client.post("/weight_checker", json={"action": "checksum"})).json()["checksums"]
    assert (await client.post("/init_weight_transfer_engine", json={"init_info": {}})).status_code == 200
    refused = await client.post("/init_weight_transfer_engine", json={"init_info": {"backend": "nccl"}})
    assert refused.status_code == 400
    await client.post("/pause")
    assert (await client.post("/start_weight_update")).status_code == 200
    elsewhere = await client.post("/update_weights", json={"update_info": {"path": "/etc"}})
    assert elsewhere.status_code == 400 and "--weight-update-dir" in elsewhere.text
    assert (await client.post("/update_weights", json={"update_info": {}})).status_code == 200
    assert (await client.post("/finish_weight_update", json={"weight_version": "v2"})).status_code == 200
    await client.post("/resume")
    assert (await client.get("/weight_info")).json() == {"weight_version": "v2"}
    compared = await client.post("/weight_checker", json={"action": "compare", "baseline": before})
    assert compared.json() == {"match": True, "mismatches": []}
    assert (await start(client)).json()["choices"][0]["token_ids"] == expected


async def _deadlines(llm: AsyncLLM, client: httpx.AsyncClient) -> None:
    late = {"x-request-timeout": "0.05"}
    await client.post("/pause?mode=keep")
    answer = await start(client, headers=late)
    assert answer.status_code == 504 and "deadline" in answer.json()["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"
    await client.post("/resume")
    await until(lambda: llm.stats.num_waiting == 0)
    # A stream that has begun cannot change its status any more.
    answer = await start(client, headers=late, stream=True, n=8)
    if answer.status_code == 200:
        assert "deadline" in answer.text and answer.text.endswith("data: [DONE]\n\n")
    assert llm.num_unfinished == 0
    for wrong in ("0", "-1", "soon", "nan", "inf", ""):
        refused = await start(client, headers={"x-request-timeout": wrong})
        assert refused.status_code == 400 and "X-Request-Timeout" in refused.text


async def _stuck(llm: AsyncLLM, client: httpx.AsyncClient, gate: Path) -> None:
    assert (await client.get("/health")).status_code == 200
    await asyncio.sleep(0.4)
    assert (await client.get("/health")).status_code == 200, "an idle engine need not get on"
    gate.touch()  # noqa: ASYNC240
    params = SamplingParams(max_tokens=8, ignore_eos=True, extra_args={"block_while": str(gate)})
    running = asyncio.create_task(collect(llm, params))
    await until(lambda: not llm.is_healthy)
    answer = await client.get("/health")
    assert answer.status_code == 503 and "no step" in answer.text
    gate.unlink()  # noqa: ASYNC240
    await running
    assert (await client.get("/health")).status_code == 200


async def collect(llm: AsyncLLM, params: SamplingParams) -> None:
    async for _ in llm.generate("tea", params, "blocked"):
        pass


def test_overload_and_fair_turns(folder: Path) -> None:
    async def scenario(llm: AsyncLLM, client: httpx.AsyncClient) -> None:
        flood = [start(client, user="flood", max_tokens=100) for _ in range(6)]
        await until(lambda: llm.num_unfinished == 6)
        refused = await start(client, user="flood")
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "RateLimitError"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        # Another client still gets in, and before those of the first that came earlier and wait.
        small = start(client, user="small", max_tokens=1)
        assert (await small).status_code == 200
        assert sum(not task.done() for task in flood) >= 3
        for task in flood:
            assert (await task).status_code == 200
        metrics = (await client.get("/metrics")).text
        assert 'octavo:admission_rejections_total{model_name="' in metrics
        assert 'reason="queue_full"} 1.0' in metrics

    run(folder, scenario, {}, max_num_seqs=2, max_num_waiting=4)
