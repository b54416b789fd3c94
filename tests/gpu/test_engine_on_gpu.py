"""A request has the same tokens on a GPU with and without graphs, in chunks, from the cache, preempted, in company."""

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo import LLM, RequestOutput, SamplingParams
from octavo.execution.executor import InProcessExecutor

sys.path.append(str(Path(__file__).parents[1] / "parity"))
from tiny_checkpoints import MAX_LENGTH, VOCAB_SIZE, Checkpoint, write_checkpoint

NUM_TOKENS = 40
LENGTHS = (1, 5, 8, 23, 40, 75, 60, 33, 17, 2, 64, 65)
NAMES = ("llama", "llama-one-kv-head", "mistral-window", "qwen2", "qwen3", "gemma3")
Start = Callable[..., LLM]


@pytest.fixture(scope="module", params=NAMES)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_checkpoint(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[LLM] = []

    def start_on(source: Checkpoint, **settings: Any) -> LLM:
        defaults: dict[str, Any] = {
            "dtype": "float32",
            "skip_tokenizer_init": True,
            "max_model_len": MAX_LENGTH,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 256,
            "num_gpu_blocks_override": 512,
            "use_tqdm_on_load": False,
        }
        started.append(LLM(str(source.folder), **(defaults | settings)))
        return started[-1]

    yield start_on
    for llm in started:
        llm.shutdown()


def prompts(seed: int = 0) -> list[list[int]]:
    source = random.Random(seed)
    return [source.choices(range(VOCAB_SIZE), k=length) for length in LENGTHS]


def params(kind: str) -> list[SamplingParams]:
    common: dict[str, Any] = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "detokenize": False}
    if kind == "greedy":
        return [SamplingParams(temperature=0, **common)] * len(LENGTHS)
    choices: list[dict[str, Any]] = [
        {},
        {"top_k": 20},
        {"top_p": 0.9},
        {"min_p": 0.05, "temperature": 1.3},
        {"top_k": 30, "top_p": 0.8},
    ]
    return [
        SamplingParams(**({"temperature": 0.8} | choices[index % len(choices)]), seed=index, **common)
        for index in range(len(LENGTHS))
    ]


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


def run(llm: LLM, kind: str) -> list[list[int]]:
    return tokens(llm.generate(prompts(), params(kind), use_tqdm=False))


@pytest.mark.usefixtures("hasty_admission")
@pytest.mark.parametrize("kind", ["greedy", "seeded"])
def test_every_way_through_the_engine_gives_the_same_tokens(source: Checkpoint, start: Start, kind: str) -> None:
    expected = run(start(source, device="cpu", num_threads=4), kind)
    llm = start(source)
    assert run(llm, kind) == expected
    assert run(llm, kind) == expected, "with prefixes from the cache"
    alone = [
        llm.generate([prompt], param, use_tqdm=False)[0] for prompt, param in zip(prompts(), params(kind), strict=True)
    ]
    assert tokens(alone) == expected
    few_blocks = 104 if len(llm._engine.plan.groups) > 1 else 48
    ways: dict[str, dict[str, Any]] = {
        "eager": {"enforce_eager": True},
        "chunks": {"max_num_batched_tokens": 17, "max_num_seqs": 8},
        "preempted": {"num_gpu_blocks_override": few_blocks, "block_size": 8, "enable_prefix_caching": False},
        "in turn": {"async_scheduling": False},
        "deterministic": {"deterministic": True},
    }
    for name, settings in ways.items():
        assert run(start(source, **settings), kind) == expected, name


def test_warm_up_steps_between_real_ones(tmp_path: Path, start: Start) -> None:
    """They queue copies from the host as real steps do, and nobody waits for the device in between."""
    llm = start(write_checkpoint("llama", tmp_path))
    executor = llm._engine.executor
    assert isinstance(executor, InProcessExecutor) and executor.worker._runner is not None
    expected = run(llm, "seeded")
    for _ in range(3):
        executor.worker._runner.warm_up()
        assert run(llm, "seeded") == expected


def test_requests_that_the_host_must_plan_for_go_with_the_others(source: Checkpoint, start: Start) -> None:
    wishes: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0, "presence_penalty": 1.0, "repetition_penalty": 1.2},
        {"temperature": 0.7, "seed": 3, "logit_bias": {5: 3.0}},
        {"temperature": 0, "logprobs": 3},
    ]
    mixed = [
        SamplingParams(**wishes[index % len(wishes)], max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False)
        for index in range(len(LENGTHS))
    ]
    on_cpu = start(source, device="cpu", num_threads=4).generate(prompts(), mixed, use_tqdm=False)
    on_gpu = start(source).generate(prompts(), mixed, use_tqdm=False)
    assert tokens(on_gpu) == tokens(on_cpu)
    for mine, theirs in zip(on_gpu, on_cpu, strict=True):
        for row, other in zip(mine.outputs[0].logprobs or [], theirs.outputs[0].logprobs or [], strict=True):
            assert [entry.rank for entry in row.values()] == [entry.rank for entry in other.values()]
            assert [entry.logprob for entry in row.values()] == pytest.approx(
                [entry.logprob for entry in other.values()], abs=1e-4
            )


def test_a_request_whose_values_are_not_numbers_ends_alone(tmp_path: Path, start: Start) -> None:
    source = write_checkpoint("llama", tmp_path)
    poison = VOCAB_SIZE - 1
    with torch.no_grad():
        source.model.get_input_embeddings().weight[poison] = float("nan")
        source.model.get_output_embeddings().weight[poison] = 0  # so that it is never the likeliest
    source.model.save_pretrained(tmp_path)
    llm = start(source, num_gpu_blocks_override=96)
    good = [[token for token in prompt if token != poison] or [1] for prompt in prompts()]
    expected = tokens(llm.generate(good, params("greedy"), use_tqdm=False))
    for _ in range(3):
        llm._engine.reset_prefix_cache()
        with pytest.raises(Exception, match="not a number"):
            llm.generate([[3, poison, 5, 6]], params("greedy")[0], use_tqdm=False)
        assert tokens(llm.generate(good, params("greedy"), use_tqdm=False)) == expected
