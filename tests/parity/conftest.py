"""Checkpoints that the parity tests share."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import worker_host
from record import register_recorder
from tiny_checkpoints import MAX_LENGTH, Checkpoint, write_checkpoint

from octavo import LLM
from octavo.execution import peer_process


def pytest_configure(config: pytest.Config) -> None:
    register_recorder(config)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    """Checkpoints by the name of their configuration, each written once."""
    known: dict[str, Checkpoint] = {}

    def get(name: str) -> Checkpoint:
        if name not in known:
            known[name] = write_checkpoint(name, tmp_path_factory.mktemp(name))
        return known[name]

    return get


@pytest.fixture
def start() -> Iterator[Callable[..., LLM]]:
    """Starts Octavo on a checkpoint, in float32, with small blocks and such settings as are given.

    On a machine with a GPU it runs there.
    """
    started: list[LLM] = []

    def start_on(source: Checkpoint, **settings: Any) -> LLM:
        defaults: dict[str, Any] = {
            "dtype": "float32",
            "device": "auto",
            "skip_tokenizer_init": True,
            "max_model_len": MAX_LENGTH,
            "max_logprobs": -1,
            "block_size": 4,
            "mamba_block_size": 16,
            "max_num_seqs": 8,
            "num_gpu_blocks_override": 2048,
            "num_threads": 1,
            "use_tqdm_on_load": False,
            "model_impl": getattr(source, "model_impl", "auto"),
        }
        started.append(LLM(str(source.folder), **(defaults | settings)))
        return started[-1]

    yield start_on
    for llm in started:
        llm.shutdown()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a process that is rank 1 of one model after the other."""
    address = str(tmp_path_factory.mktemp("host") / "socket")
    command = [sys.executable, worker_host.__file__, address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield address
        process.stdin.close()


@pytest.fixture
def start_two(start: Callable[..., LLM], host: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LLM]:
    """Starts Octavo on a checkpoint, divided over two processes."""
    monkeypatch.setattr(worker_host.HostedPeer, "address", host)
    monkeypatch.setattr(peer_process, "PeerProcess", worker_host.HostedPeer)
    return lambda source, **settings: start(source, tensor_parallel_size=2, **settings)
