"""Drafts on a GPU, in captured steps: the same tokens as without."""

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, RequestOutput, SamplingParams

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "parity")]
import tiny_llama
from table_drafter import DRAFTS, TableDrafter, abort_and_check, ask, texts, use
from tiny_checkpoints import MAX_LENGTH, VOCAB_SIZE, Checkpoint, write_checkpoint

NUM_TOKENS = 40
NGRAMS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
Start = Callable[..., LLM]


@pytest.fixture(scope="module", params=["llama", "llama-one-kv-head", "mistral-window", "qwen3", "gemma3"])
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


def run(llm: LLM) -> list[tuple[list[int], list[float]]]:
    """Tokens of prompts that repeat themselves, and the log-probabilities that some ask for."""
    source = random.Random(0)
    prompts = [source.choices(range(VOCAB_SIZE), k=1 + index % 6) * (1 + index % 4) for index in range(14)]
    choices: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0.4, "top_k": 20},
        {"temperature": 0.6, "top_p": 0.9, "min_p": 0.02},
        {"temperature": 0, "logprobs": 1, "repetition_penalty": 1.1},
    ]
    params = [
        SamplingParams(**choices[index % 4], seed=index, max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False)
        for index in range(len(prompts))
    ]
    return [figures(output) for output in llm.generate(prompts, params, use_tqdm=False)]


def figures(output: RequestOutput) -> tuple[list[int], list[float]]:
    completion = output.outputs[0]
    rows = zip(completion.logprobs or [], completion.token_ids, strict=False)
    return list(completion.token_ids), [row[token].logprob for row, token in rows]


@pytest.mark.usefixtures("hasty_admission")
def test_the_same_tokens_with_drafts(source: Checkpoint, start: Start) -> None:
    plain = start(source)
    expected, few_blocks = run(plain), 104 if len(plain._engine.plan.groups) > 1 else 48
    ways: dict[str, dict[str, Any]] = {
        "graphs": {},
        "eager": {"enforce_eager": True},
        "chunks": {"max_num_batched_tokens": 32, "max_num_seqs": 8},
        "preempted": {"num_gpu_blocks_override": few_blocks, "block_size": 8, "enable_prefix_caching": False},
        "in turn": {"async_scheduling": False},
        "deterministic": {"deterministic": True},
        "many drafts": {"speculative_config": NGRAMS | {"num_speculative_tokens": 7}},
    }
    for name, settings in ways.items():
        found = run(start(source, **({"speculative_config": NGRAMS} | settings)))
        for (tokens, logprobs), (other_tokens, other_logprobs) in zip(found, expected, strict=True):
            assert tokens == other_tokens, name
            assert logprobs == pytest.approx(other_logprobs, abs=2e-4), name


@pytest.mark.parametrize("acceptance", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 64, "max_num_seqs": 5}])
def test_requests_are_aborted_in_the_middle_of_drafts(
    tmp_path: Path, acceptance: float, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts that the host never sees in time, in captured steps a step ahead: the blocks of all come back."""
    folder, on_gpu = str(tiny_llama.write_model(tmp_path)), tiny_llama.SETTINGS | {"device": "cuda"}
    plain = LLM(folder, **on_gpu)
    expected = ask(plain)
    plain.shutdown()
    use(TableDrafter(texts(expected), acceptance, tiny_llama.VOCAB_SIZE, "cuda"), monkeypatch)
    llm = LLM(folder, **(on_gpu | settings), speculative_config=DRAFTS)
    assert texts(ask(llm)) == texts(expected)
    abort_and_check(llm, expected)
    llm.shutdown()
