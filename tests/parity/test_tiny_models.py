"""Every family in float32 against Hugging Face, whatever way the engine takes through the tokens."""

import itertools
import math
import random
from collections.abc import Callable

import pytest
import torch
from comparison import assert_greedy, assert_logprobs
from tiny_checkpoints import CONFIGS, VOCAB_SIZE, Checkpoint

from octavo import LLM, RequestOutput, SamplingParams
from octavo.hub import load_model_config, resolve
from octavo.models.generic import attention, rotary_tables
from octavo.planning.groups import longest_sequence, make_groups
from octavo.planning.memory import model_size
from octavo.records import CacheGroup

NUM_TOKENS = 32
PROMPT_LENGTHS = (1, 5, 8, 23, 40, 75)
LONGEST = max(PROMPT_LENGTHS) + NUM_TOKENS

Start = Callable[..., LLM]
Checkpoints = Callable[[str], Checkpoint]

every_model = pytest.mark.parametrize("name", CONFIGS)
# What the next step is prepared from differs by kinds of layers, not by families.
AHEAD = ("llama", "mistral-window", "qwen2-window", "gemma3")
in_turn_and_ahead = pytest.mark.parametrize(
    ("name", "async_scheduling"),
    [pytest.param(name, False, id=name) for name in CONFIGS]
    + [pytest.param(name, True, id=f"{name}-ahead") for name in AHEAD],
)


def _prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB_SIZE), k=length)


PROMPTS = [_prompt(length, seed) for seed, length in enumerate(PROMPT_LENGTHS)]
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=-1, detokenize=False)
GREEDY_WITH_PROMPT = SamplingParams(
    temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=-1, prompt_logprobs=-1, detokenize=False
)


def _check(source: Checkpoint, outputs: list[RequestOutput]) -> None:
    for output in outputs:
        assert_logprobs(source.model, output)
        (completion,) = output.outputs
        assert len(completion.token_ids) == NUM_TOKENS
        assert_greedy(source.model, output)


def _groups(source: Checkpoint) -> tuple[CacheGroup, ...]:
    config = load_model_config(resolve(str(source.folder)), model_impl=source.model_impl)
    specs = model_size(config, torch.float32).cache_specs
    return make_groups(specs, 4, LONGEST, 1, 16)[0]


def _num_blocks_of_longest(source: Checkpoint) -> int:
    """Blocks without which a sequence of the greatest length would not fit."""
    groups = _groups(source)
    return next(count for count in itertools.count(1) if longest_sequence(groups, count, 16) >= LONGEST)


def _num_preemptions(outputs: list[RequestOutput]) -> int:
    return sum(output.metrics.num_preemptions for output in outputs if output.metrics is not None)


def test_rotation_by_other_tables_than_kernels_read(
    checkpoint: Checkpoints, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "are_interleaved", lambda *tables: None)
    monkeypatch.setattr(rotary_tables, "are_interleaved", lambda *tables: None)
    for name in ("generic-glm", "generic-qwen3"):
        _check(checkpoint(name), start(checkpoint(name)).generate(PROMPTS[:3], GREEDY, use_tqdm=False))


@pytest.mark.sample(6)
@every_model
def test_a_batch_of_mixed_lengths(name: str, checkpoint: Checkpoints, start: Start) -> None:
    source = checkpoint(name)
    outputs = start(source).generate(PROMPTS, GREEDY_WITH_PROMPT, use_tqdm=False)
    assert [len(output.prompt_logprobs or []) for output in outputs[1:]] == list(PROMPT_LENGTHS[1:])
    _check(source, outputs)


@pytest.mark.sample(6)
@in_turn_and_ahead
def test_prompts_in_chunks(name: str, async_scheduling: bool, checkpoint: Checkpoints, start: Start) -> None:
    source = checkpoint(name)
    llm = start(source, max_num_batched_tokens=9, max_num_seqs=4, async_scheduling=async_scheduling)
    _check(source, llm.generate(PROMPTS, GREEDY_WITH_PROMPT, use_tqdm=False))


@pytest.mark.sample(6)
@in_turn_and_ahead
def test_prompts_found_in_the_cache(name: str, async_scheduling: bool, checkpoint: Checkpoints, start: Start) -> None:
    source = checkpoint(name)
    llm = start(source, async_scheduling=async_scheduling)
    shared = _prompt(50, seed=100)
    first = llm.generate([shared], GREEDY, use_tqdm=False)
    assert first[0].num_cached_tokens == 0
    again = llm.generate([shared, shared[:41] + _prompt(20, seed=101)], GREEDY, use_tqdm=False)
    unit = math.lcm(*(group.block_size for group in _groups(source)))
    assert [output.num_cached_tokens for output in again] == [(len(shared) - 1) // unit * unit, 41 // unit * unit]
    # The answer is in the cache as well as the prompt.
    answer = [*shared, *first[0].outputs[0].token_ids]
    continued = llm.generate([[*answer, 7]], GREEDY, use_tqdm=False)
    assert continued[0].num_cached_tokens is not None
    assert continued[0].num_cached_tokens > len(shared) - unit
    _check(source, [*first, *again, *continued])


@pytest.mark.sample(6)
@pytest.mark.usefixtures("hasty_admission")
@in_turn_and_ahead
def test_requests_that_are_preempted(name: str, async_scheduling: bool, checkpoint: Checkpoints, start: Start) -> None:
    source = checkpoint(name)
    llm = start(
        source,
        async_scheduling=async_scheduling,
        max_num_batched_tokens=16,
        max_model_len=LONGEST,
        num_gpu_blocks_override=_num_blocks_of_longest(source) + 4,
    )
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert _num_preemptions(outputs) > 0
    _check(source, outputs)


@pytest.mark.sample(6)
@every_model
def test_several_completions_of_one_prompt(name: str, checkpoint: Checkpoints, start: Start) -> None:
    source = checkpoint(name)
    llm = start(source)
    params = SamplingParams(
        n=3, seed=11, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=-1, prompt_logprobs=-1, detokenize=False
    )
    alone = llm.generate([PROMPTS[3]], params, use_tqdm=False)
    among_others = llm.generate([PROMPTS[4], PROMPTS[3], PROMPTS[5]], [GREEDY, params, GREEDY], use_tqdm=False)
    texts = [tuple(completion.token_ids) for completion in alone[0].outputs]
    assert len(set(texts)) == 3
    assert texts == [tuple(completion.token_ids) for completion in among_others[1].outputs]
    for output in (*alone, *among_others):
        assert_logprobs(source.model, output)
