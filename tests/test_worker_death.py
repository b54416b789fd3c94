"""A worker process is killed: the engine starts again with all its workers, and requests go on."""

import asyncio
import gc
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from running_llm import SLOWING, engine_processes, last, run, runs_module, slowed, until
from tiny_llama import SETTINGS, write_model

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.errors import ConfigError, EngineDeadError

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="runs on a machine without a GPU"),
    pytest.mark.usefixtures("importable_in_engines"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


def _workers(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children() if runs_module(child, "octavo.execution.worker_process")]


@pytest.mark.long
def test_requests_go_on_with_new_workers(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []

    async def scenario(llm: AsyncLLM) -> None:
        undisturbed = await last(llm, "undisturbed")
        texts.append(undisturbed.outputs[0].text)
        with slowed() as params:
            disturbed = asyncio.create_task(last(llm, "disturbed", params))
            num_tokens = llm.stats.generation_tokens
            await until(lambda: llm.stats.generation_tokens >= num_tokens + 20)
            (engine,) = engine_processes()
            (worker,) = _workers(engine)
            worker.kill()
            texts.append("killed")
            await asyncio.to_thread(engine.wait, 60)
        texts.append((await disturbed).outputs[0].text)
        await until(lambda: bool(engine_processes()))
        (engine,) = engine_processes()
        (worker,) = _workers(engine)
        assert worker.is_running()

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    run(folder, scenario, tensor_parallel_size=2, **SLOWING)
    asyncio.run(until(lambda: not list(tmp_path.glob("octavo-ranks-*"))))
    assert texts == [texts[0], "killed", texts[0]]


def test_a_worker_whose_connection_closes_first_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    (folder / "store").touch()
    own, others = socket.socketpair()
    command = [sys.executable, "-m", "octavo.execution.worker_process", str(others.fileno()), str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=[others.fileno()]
    ) as worker:
        others.close()
        own.close()
        worker.wait(180)
        assert not folder.exists()


def test_offline_the_next_step_says_who_died(folder: Path) -> None:
    others = _workers(psutil.Process())
    llm = LLM(str(folder), tensor_parallel_size=2, **SETTINGS)
    (worker,) = set(_workers(psutil.Process())) - set(others)
    try:
        worker.kill()
        for _ in range(2):
            with pytest.raises(EngineDeadError, match="worker of rank 1 ended by signal SIGKILL"):
                llm.generate("tea", SamplingParams(max_tokens=3))
    finally:
        llm.shutdown()
    assert not worker.is_running()


def test_workers_end_with_a_model_that_nobody_refers_to(folder: Path) -> None:
    others = _workers(psutil.Process())
    llm = LLM(str(folder), tensor_parallel_size=2, **SETTINGS)
    (worker,) = set(_workers(psutil.Process())) - set(others)
    assert worker.is_running()
    del llm
    gc.collect()
    assert not worker.is_running()


FAILING = """
import sys


class Failing:
    def __init__(self, *_):
        if any("worker_process" in argument for argument in sys.orig_argv) == {is_worker}:
            raise ValueError("no room")

    def apply(self, logits):
        return logits

    def is_argmax_invariant(self):
        return True

    def update_state(self, update):
        pass
"""


@pytest.mark.long
@pytest.mark.parametrize("is_worker", [False, True])
def test_a_start_that_fails_on_one_rank_says_why(
    is_worker: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"failing_{is_worker}"
    (tmp_path / f"{name}.py").write_text(FAILING.format(is_worker=is_worker))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(tmp_path))
    others = _workers(psutil.Process())
    with pytest.raises(ConfigError, match="no room"):
        LLM(str(folder), tensor_parallel_size=2, logits_processors=[f"{name}:Failing"], **SETTINGS)
    deadline = time.monotonic() + 180
    while set(_workers(psutil.Process())) - set(others):
        assert time.monotonic() < deadline, "the other rank goes on"
        time.sleep(0.05)
