"""Overload, deadlines, fair turns, and what an owner does: over HTTP, with a real engine behind it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from running_llm import SCENARIO_SECONDS, SLOWING, slowed, until, until_idle
from tiny_llama import SETTINGS, write_model

from octavo import AsyncLLM, SamplingParams
from octavo.api.app import build_app
from octavo.config import ServerSettings

pytestmark = pytest.mark.usefixtures("importable_in_engines")

LONG = {"prompt": "tea", "max_tokens": 240, "ignore_eos": True, "seed": 1, "return_token_ids": True}
Scenario = Callable[[AsyncLLM, httpx.AsyncClient], Awaitable[None]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


def run(folder: Path, scenario: Scenario, server: dict[str, Any], **settings: Any) -> None:
    async def main() -> None:
        llm = AsyncLLM.from_engine_args(model=str(folder), log_level="warning", **(SETTINGS | SLOWING | settings))
        await llm.start()
        app = build_app(llm, ServerSettings(**server))
        try:
            async with (
                asyncio.timeout(SCENARIO_SECONDS),
                httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x", timeout=60) as client,
            ):
                await scenario(llm, client)
                await until_idle(llm)
        finally:
            await llm.shutdown()

    asyncio.run(main())


def start(client: httpx.AsyncClient, path: str = "/v1/completions", **body: Any) -> asyncio.Task[httpx.Response]:
    headers = body.pop("headers", None)
    return asyncio.create_task(client.post(path, json=LONG | body, headers=headers))


@pytest.mark.long
def test_owner_and_deadlines(folder: Path, tmp_path: Path) -> None:
    async def scenario(llm: AsyncLLM, client: httpx.AsyncClient) -> None:
        expected = (await start(client)).json()["choices"][0]["token_ids"]
        await _pause_and_sleep(llm, client, expected)
        await _abort(llm, client)
        await _weights(client, expected)
        await _deadlines(llm, client)
        await _stuck(llm, client, tmp_path / "gate")

    run(folder, scenario, {"enable_admin_endpoints": True, "request_deadline": 120.0}, step_timeout=0.3)


async def _pause_and_sleep(llm: AsyncLLM, client: httpx.AsyncClient, expected: list[int]) -> None:
    for order, undo in (
        ("/pause?mode=keep", "/resume"),
        ("/sleep?level=1&mode=keep", "/wake_up"),
        ("/sleep?level=2&mode=keep", "/wake_up?tags=weights&tags=kv_cache&tags=scheduling"),
        ("/release_kv_cache_memory", "/wake_up"),
    ):
        with slowed() as params:
            running = start(client, vllm_xargs=params.extra_args)
            await until(lambda: llm.stats.num_running == 1)
            assert (await client.post(order)).status_code == 200
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
    with slowed() as params:
        running = start(client, vllm_xargs=params.extra_args)
        await until(lambda: llm.stats.num_running == 1)
        assert (await client.post("/pause")).json() == {"status": "paused"}
    assert (await running).json()["choices"][0]["finish_reason"] == "abort"
    assert (await client.post("/resume")).json() == {"status": "resumed"}
    assert (await client.get("/is_paused")).json() == {"is_paused": False}


async def _abort(llm: AsyncLLM, client: httpx.AsyncClient) -> None:
    with slowed() as params:
        running = start(client, request_id="mine", vllm_xargs=params.extra_args)
        await until(lambda: llm.stats.num_running == 1)
        answer = await client.post("/abort_requests", json={"request_ids": ["cmpl-mine", "cmpl-other"]})
    assert answer.json() == {"status": "aborted", "aborted": ["cmpl-mine"]}
    assert (await running).json()["choices"][0]["finish_reason"] == "abort"
    await until_idle(llm)
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
    with slowed() as params:
        answer = await start(client, headers=late, stream=True, n=8, vllm_xargs=params.extra_args)
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
        with slowed() as params:
            flood = [start(client, user="flood", max_tokens=50, vllm_xargs=params.extra_args) for _ in range(6)]
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
