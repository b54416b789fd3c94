"""Models divided over two processes write what they write in one."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import worker_host
from tiny_checkpoints import CONFIGS, Checkpoint

from octavo import LLM, SamplingParams
from octavo.execution import peer_process

Start = Callable[..., LLM]
PROMPTS = [[5, 6, 7, 8, 9], list(range(20, 90)), [3] * 17]
GREEDY = SamplingParams(temperature=0, max_tokens=8, logprobs=3, prompt_logprobs=2, ignore_eos=True, detokenize=False)

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(),
    reason="runs on a machine without a GPU; tests/gpu/test_tensor_parallel_on_gpu.py divides models over GPUs",
)


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
def start_two(start: Start, host: str, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts Octavo on a checkpoint, divided over two processes."""
    monkeypatch.setattr(worker_host.HostedPeer, "address", host)
    monkeypatch.setattr(peer_process, "PeerProcess", worker_host.HostedPeer)
    return lambda source, **settings: start(source, tensor_parallel_size=2, **settings)


def _outputs(llm: LLM, params: SamplingParams = GREEDY) -> list[tuple[list[int], list[Any]]]:
    answers = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params)
    return [
        (list(answer.outputs[0].token_ids), [*(answer.prompt_logprobs or []), *(answer.outputs[0].logprobs or [])])
        for answer in answers
    ]


def _assert_equal(found: list[Any], expected: list[Any], tolerance: float = 1e-4) -> None:
    for (tokens, logprobs), (expected_tokens, expected_logprobs) in zip(found, expected, strict=True):
        assert tokens == expected_tokens
        for entries, wanted in zip(logprobs, expected_logprobs, strict=True):
            if wanted is not None:
                values = {token: entry.logprob for token, entry in wanted.items()}
                assert {token: entry.logprob for token, entry in entries.items()} == pytest.approx(
                    values, abs=tolerance
                )


@pytest.mark.parametrize("name", CONFIGS)
def test_two_processes_write_what_one_does(
    name: str, checkpoint: Callable[[str], Checkpoint], start: Start, start_two: Start
) -> None:
    source = checkpoint(name)
    _assert_equal(_outputs(start_two(source)), _outputs(start(source)))
