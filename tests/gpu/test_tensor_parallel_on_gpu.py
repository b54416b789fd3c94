"""A model divided over two GPUs, in captured graphs, against one GPU; NCCL inside a graph also on one."""

import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

sys.path.append(str(Path(__file__).parents[1]))
from tiny_llama import SETTINGS, write_model

from octavo import LLM, SamplingParams
from octavo.errors import EngineDeadError
from octavo.parallel import connect
from octavo.platforms import runtime_of

PROMPTS = [[1, 5, 9, 33, 70, 2], [8] * 11, [100], list(range(40))]
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=2)
SEEDED = SamplingParams(temperature=1.0, top_p=0.9, seed=3, max_tokens=16, ignore_eos=True, presence_penalty=0.5)

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs; ran on two NVIDIA H200")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


def _outputs(llm: LLM, params: SamplingParams) -> list[Any]:
    answers = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params)
    return [
        (answer.outputs[0].token_ids, [next(iter(each.values())).logprob for each in answer.outputs[0].logprobs or []])
        for answer in answers
    ]


def _assert_equal(outputs: list[Any], expected: list[Any]) -> None:
    for (tokens, logprobs), (expected_tokens, expected_logprobs) in zip(outputs, expected, strict=True):
        assert tokens == expected_tokens
        assert logprobs == pytest.approx(expected_logprobs, abs=1e-2)


def test_collectives_are_captured(tmp_path: Path) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    group = connect(dist.FileStore(str(tmp_path / "store"), 1), 0, 1, "nccl", is_local=True)
    x = torch.ones(3, 64, device=device)

    def work() -> tuple[torch.Tensor, ...]:
        doubled = group.all_reduce(x * 2)
        return doubled, group.all_gather(doubled)

    work()
    with runtime_of(device).graph_capture() as graphs:
        graph, (reduced, gathered) = graphs.capture(work)
    x.fill_(4)
    graph.replay()
    assert reduced.unique().tolist() == [8.0]
    assert gathered.shape == (1, 3, 64) and gathered.unique().tolist() == [8.0]
    group.abort()


@two_gpus
@pytest.mark.parametrize(
    "settings",
    [{}, {"enforce_eager": True}, {"dtype": "bfloat16"}, {"dtype": "bfloat16", "quantization": "fp8"}],
    ids=["graphs", "eager", "bfloat16", "float8"],
)
def test_two_gpus_write_what_one_does(settings: dict[str, Any], folder: Path) -> None:
    common = SETTINGS | {"device": "cuda"} | settings
    one = LLM(str(folder), **common)
    expected = _outputs(one, GREEDY), _outputs(one, SEEDED)
    one.shutdown()
    two = LLM(str(folder), tensor_parallel_size=2, **common)
    try:
        found = _outputs(two, GREEDY), _outputs(two, SEEDED)
        if common["dtype"] == "float32":
            for outputs, wanted in zip(found, expected, strict=True):
                _assert_equal(outputs, wanted)
        assert [len(tokens) for outputs in found for tokens, _ in outputs] == [16] * 2 * len(PROMPTS)
        again = _outputs(two, GREEDY)
        assert [tokens for tokens, _ in again] == [tokens for tokens, _ in found[0]]
    finally:
        two.shutdown()


@two_gpus
def test_owners_reach_both_gpus(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    weights = load_file(folder / "model.safetensors")
    (tmp_path / "new").mkdir()
    changed = {name: tensor + 0.1 * torch.randn_like(tensor) for name, tensor in weights.items()}
    save_file(changed, tmp_path / "new" / "model.safetensors")
    common = SETTINGS | {"device": "cuda", "weight_update_dir": str(tmp_path)}
    one = LLM(str(folder), **common)
    before = _outputs(one, GREEDY)
    one.update_weights("new")
    after = _outputs(one, GREEDY)
    one.shutdown()
    two = LLM(str(folder), tensor_parallel_size=2, **common)
    try:
        _assert_equal(_outputs(two, GREEDY), before)
        two.update_weights("new")
        _assert_equal(_outputs(two, GREEDY), after)
        two.sleep(1)
        two.wake_up()
        _assert_equal(_outputs(two, GREEDY), after)
        two.sleep(2)
        two.wake_up()
        _assert_equal(_outputs(two, GREEDY), after)
    finally:
        two.shutdown()


@two_gpus
@pytest.mark.parametrize("is_busy", [False, True])
def test_a_rank_that_dies_ends_what_waits_for_it(is_busy: bool, folder: Path) -> None:
    llm = LLM(str(folder), tensor_parallel_size=2, **(SETTINGS | {"device": "cuda"}))
    children = psutil.Process().children()
    (worker,) = (child for child in children if "octavo.execution.worker_process" in child.cmdline())
    if is_busy:
        threading.Timer(0.5, worker.kill).start()
    else:
        worker.kill()
    long = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    with pytest.raises(EngineDeadError, match="worker of rank 1 ended by signal SIGKILL"):
        for _ in range(1000):
            llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], long, use_tqdm=False)
    llm.shutdown()
