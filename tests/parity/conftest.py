"""Checkpoints that the parity tests share."""

from collections.abc import Callable, Iterator

import pytest
import torch
from tiny_checkpoints import MAX_LENGTH, Checkpoint, write_checkpoint

from octavo import LLM


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
    """Starts Octavo on a checkpoint, in float32, with small blocks and such settings as are given."""
    threads = torch.get_num_threads()
    started: list[LLM] = []

    def start_on(source: Checkpoint, **settings: object) -> LLM:
        defaults = {
            "dtype": "float32",
            "device": "cpu",
            "skip_tokenizer_init": True,
            "max_model_len": MAX_LENGTH,
            "max_logprobs": -1,
            "block_size": 4,
            "max_num_seqs": 8,
            "num_gpu_blocks_override": 2048,
            "num_threads": 1,
            "use_tqdm_on_load": False,
        }
        started.append(LLM(str(source.folder), **(defaults | settings)))
        return started[-1]

    yield start_on
    for llm in started:
        llm.shutdown()
    torch.set_num_threads(threads)
