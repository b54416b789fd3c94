"""What an owner made of the engine holds for the next one, when the engine's process dies."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import torch
from running_llm import LONG, SCENARIO_SECONDS, SLOWING, engine_processes, last, slowed, until
from running_llm import run as run_llm
from safetensors.torch import load_file, save_file
from tiny_llama import SETTINGS, write_model

from octavo import AsyncLLM
from octavo.config import EngineConfig
from octavo.engine.supervisor import Supervisor
from octavo.errors import InvalidRequestError

pytestmark = pytest.mark.usefixtures("importable_in_engines")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def updates(folder: Path, tmp_path: Path) -> Path:
    """A folder with weights to update to."""
    weights = load_file(folder / "model.safetensors")
    torch.manual_seed(5)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        changed = {key: tensor + 0.1 * torch.randn_like(tensor) for key, tensor in weights.items()}
        save_file(changed, tmp_path / name / "model.safetensors")
    return tmp_path


def run(folder: Path, updates: Path, scenario: Callable[[AsyncLLM], Awaitable[None]]) -> None:
    run_llm(folder, scenario, weight_update_dir=str(updates), **SLOWING)


async def update(llm: AsyncLLM, name: str) -> None:
    await llm.pause_generation(mode="keep")
    await llm.start_weight_update()
    await llm.update_weights(name)
    await llm.finish_weight_update(name)
    await llm.resume_generation()


async def replace_engine(llm: AsyncLLM) -> None:
    """Kill the engine and wait for the next one, which need not be healthy."""
    (engine,) = engine_processes()
    engine.kill()
    await until_replaced(llm)
    assert engine_processes() != [engine]


async def until_replaced(llm: AsyncLLM) -> None:
    """Wait for the engine after this one."""
    assert llm._engine._client is not None
    client = llm._engine._client
    generation = client._generation
    await until(lambda: client.is_connected and client._generation > generation)


async def text(llm: AsyncLLM) -> str:
    return (await last(llm, "text")).outputs[0].text


@pytest.mark.long
def test_new_weights_stay_and_requests_go_on_with_them(folder: Path, updates: Path) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        first = await text(llm)
        await update(llm, "one")
        expected, checksums = await text(llm), await llm.compute_weight_checksums()
        assert expected != first
        with slowed() as params:
            requests = [asyncio.create_task(last(llm, str(number), params)) for number in range(3)]
            await until(lambda: llm.stats.num_running == 3)
            await replace_engine(llm)
        assert {output.outputs[0].text for output in await asyncio.gather(*requests)} == {expected}
        assert not await llm.is_paused() and llm.is_healthy
        assert await llm.get_weight_version() == "one"
        assert await llm.compute_weight_checksums() == checksums
        # The model's own weights are another state that stays, under their name.
        await llm.pause_generation()
        await llm.start_weight_update()
        await llm.update_weights()
        await replace_engine(llm)
        await llm.finish_weight_update("own again")
        await llm.resume_generation()
        assert await text(llm) == first and await llm.get_weight_version() == "own again"

    run(folder, updates, scenario)


@pytest.mark.long
def test_who_slept_sleeps_on(folder: Path, updates: Path) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        await update(llm, "one")
        expected, size = await text(llm), llm.info.num_blocks
        await llm.sleep(2)
        await replace_engine(llm)
        assert await llm.is_sleeping() and await llm.is_paused() and llm.is_healthy
        assert (llm.stats.sleep_level, llm.info.num_blocks) == (2, size)
        with pytest.raises(InvalidRequestError, match="wake the engine"):
            await llm.compute_weight_checksums()
        late = asyncio.create_task(last(llm, "late"))
        await until(lambda: llm.stats.num_waiting == 1)
        with pytest.raises(InvalidRequestError, match="wake it up"):
            await llm.resume_generation()
        await llm.wake_up(["weights"])
        await llm.wake_up(["kv_cache"])
        assert not await llm.is_sleeping() and await llm.is_paused()
        await llm.wake_up()
        assert (await late).outputs[0].text == expected

    run(folder, updates, scenario)


@pytest.mark.long
def test_weights_that_are_gone_are_not_replaced_by_others(
    folder: Path, updates: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def scenario(llm: AsyncLLM) -> None:
        await update(llm, "two")
        other = await text(llm)
        await update(llm, "one")
        expected = await text(llm)
        (updates / "one").rename(updates / "away")
        with slowed() as params:
            kept = asyncio.create_task(last(llm, "kept", params))
            await until(lambda: llm.stats.num_running == 1)
            await replace_engine(llm)
        assert not llm.is_healthy and "update them again" in (llm.fault or "")
        assert f"{updates / 'one'} are lost" in capfd.readouterr().err
        for call in (llm.resume_generation, llm.wake_up):
            with pytest.raises(InvalidRequestError, match="update them again"):
                await call()
        assert not kept.done() and llm.stats.num_steps == 0
        # Put back as they were, they are taken when the owner asks.
        (updates / "away").rename(updates / "one")
        await llm.wake_up()
        assert llm.is_healthy and llm.fault is None
        await kept
        assert await text(llm) == expected

        # Other files in the same place are other weights.
        shutil.copy(updates / "two" / "model.safetensors", updates / "one" / "model.safetensors")
        os.utime(updates / "one" / "model.safetensors", ns=(1, 1))
        await replace_engine(llm)
        assert not llm.is_healthy and await llm.get_weight_version() == "one"
        await update(llm, "one")
        assert llm.is_healthy and await text(llm) == other

    run(folder, updates, scenario)


@asynccontextmanager
async def two_frontends(folder: Path, updates: Path, place: Path) -> AsyncIterator[list[AsyncLLM]]:
    """One engine that serves two frontends, as with two API processes."""
    settings = EngineConfig.from_kwargs(
        model=str(folder), weight_update_dir=str(updates), log_level="warning", **(SETTINGS | SLOWING)
    )
    addresses = [f"ipc://{place}/{index}.sock" for index in range(2)]
    supervisor = Supervisor(settings, addresses)
    supervision = asyncio.create_task(supervisor.run())
    async with AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.gather, supervision)
        stack.push_async_callback(supervisor.stop)
        frontends = [AsyncLLM(settings, address=address, index=index) for index, address in enumerate(addresses)]
        for frontend in frontends:
            stack.push_async_callback(frontend.shutdown)
        await asyncio.gather(*(frontend.start() for frontend in frontends))
        yield frontends


@pytest.mark.long
def test_a_pause_holds_for_every_frontend_until_it_is_ended(folder: Path, updates: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(SCENARIO_SECONDS), two_frontends(folder, updates, tmp_path) as (first, second):
            await update(first, "one")
            expected = await text(second)
            with slowed() as params:
                kept = asyncio.create_task(last(second, "kept", params))
                await until(lambda: second.stats.num_running == 1)
                await first.pause_generation(mode="keep")
            await asyncio.gather(replace_engine(first), until_replaced(second))
            late = asyncio.create_task(last(first, "late", LONG))
            for frontend in (first, second):
                assert await frontend.is_paused() and frontend.is_healthy and not await frontend.is_sleeping()
            await until(lambda: first.stats.num_waiting == second.stats.num_waiting == 2)
            assert second.stats.num_steps == 0
            await second.resume_generation()
            assert [output.outputs[0].text for output in await asyncio.gather(kept, late)] == [expected] * 2
            assert await first.get_weight_version() == await second.get_weight_version() == "one"

    asyncio.run(main())
