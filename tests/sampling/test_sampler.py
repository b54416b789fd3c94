"""The sampler as the runner uses it: tokens, features alone and together, and rows that do not touch each other."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_batch import Batch, read_logprobs
from sampling_reference import edited, probabilities

from octavo.records import NAN_TOKEN, SamplingParams

VOCAB = 700


def logits_of(num_rows: int, seed: int = 0, vocab_size: int = VOCAB) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


def draw_many(logits: torch.Tensor, params: SamplingParams, count: int) -> np.ndarray:
    """Tokens of ``count`` requests that differ in their seeds only, ``logits`` ``[V]``."""
    batch = Batch(len(logits), max_num_seqs=count, max_len=4)
    for slot in range(count):
        batch.add(slot, params, seed=slot)
    return batch.sample(logits.repeat(count, 1), range(count)).token_ids.numpy()


ids = st.integers(0, VOCAB - 1)
params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([0, 0, 1, 5, 100, 10**6]),
    top_p=st.sampled_from([1.0, 1.0, 0.5, 0.95]),
    min_p=st.sampled_from([0.0, 0.0, 0.1]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.5, -0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.7]),
    logit_bias=st.none() | st.dictionaries(ids, st.floats(-100, 100, width=32), max_size=4),
    allowed_token_ids=st.none() | st.none() | st.lists(ids, min_size=1, max_size=30),
    min_tokens=st.sampled_from([0, 0, 3]),
)


@st.composite
def requests(draw: st.DrawFn) -> dict:
    """One request with something of everything; small ids make tokens repeat and bad words match."""
    few = st.lists(st.integers(0, 6), max_size=12)
    output = draw(few)
    words = draw(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=3), max_size=3))
    if output and draw(st.booleans()):
        words.append([*output[-2:], draw(ids)])
    return {
        "params": draw(params_strategy),
        "prompt": draw(few.filter(len)),
        "output": output,
        "seed": draw(st.integers(-(1 << 63), (1 << 64) - 1)),
        "stop": draw(st.lists(ids, max_size=3)),
        "bad_words": words,
    }


@settings(max_examples=150)
@given(request=requests(), seed=st.integers(0, 1000))
def test_every_feature_agrees_with_the_reference(request: dict, seed: int) -> None:
    logits = logits_of(1, seed)
    # The small ids that prompts, outputs and bad words consist of shall also be the likely ones.
    logits[0, :8] += 6
    batch = Batch(VOCAB)
    batch.add(3, **request)
    token = int(batch.sample(logits, [3]).token_ids[0])
    params = request["params"]
    x = edited(logits[0].double().numpy(), params, *(request[k] for k in ("prompt", "output", "stop", "bad_words")))
    if not np.isfinite(x.max()):
        assert token == NAN_TOKEN
    elif params.is_greedy or params.top_k == 1:
        assert x[token] >= x.max() - 1e-4
    else:
        # Rounding may move the border of the nucleus by a hair, not more.
        wider = SamplingParams(
            temperature=params.temperature, top_k=params.top_k, top_p=min(1.0, params.top_p + 1e-5), min_p=params.min_p
        )
        assert probabilities(x, wider)[token] > 0


@settings(max_examples=60)
@given(batch_of=st.lists(requests(), min_size=2, max_size=12), order=st.randoms(), seed=st.integers(0, 1000))
def test_a_row_is_the_same_alone_and_in_any_company(batch_of: list[dict], order: object, seed: int) -> None:
    logits = logits_of(len(batch_of), seed).bfloat16()
    together = Batch(VOCAB)
    slots = list(range(len(batch_of)))
    order.shuffle(slots)
    for slot, request in zip(slots, batch_of, strict=True):
        together.add(slot, **request)
    tokens = together.sample(logits, slots).token_ids.tolist()
    for row, request in enumerate(batch_of):
        alone = Batch(VOCAB)
        alone.add(0, **request)
        assert alone.sample(logits[row : row + 1], [0]).token_ids.tolist() == [tokens[row]]


def test_a_large_batch_equals_its_rows_one_by_one() -> None:
    # Large enough for several passes and for a device to share the work among threads.
    vocab_size, count = 49_157, 24
    logits = logits_of(count, 1, vocab_size)
    kinds = [{}, {"top_p": 0.9}, {"top_k": 40}, {"top_k": 900, "top_p": 0.5}, {"min_p": 0.01}, {"temperature": 0.0}]
    together = Batch(vocab_size, max_num_seqs=count)
    for slot in range(count):
        together.add(slot, SamplingParams(**kinds[slot % len(kinds)]), seed=slot)
    tokens = together.sample(logits, range(count)).token_ids
    for slot in range(count):
        assert together.sample(logits[slot : slot + 1], [slot]).token_ids[0] == tokens[slot]


def test_greedy_takes_the_lowest_of_equals() -> None:
    batch = Batch(VOCAB)
    for slot, params in enumerate([SamplingParams(temperature=0), SamplingParams(top_k=1)]):
        batch.add(slot, params)
    logits = torch.zeros(2, VOCAB)
    logits[:, [300, 301, 699]] = 5
    assert batch.sample(logits, [0, 1]).token_ids.tolist() == [300, 300]


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "settings_",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0, "top_k": 10},
        {"top_p": 0.8},
        {"min_p": 0.05},
        {"temperature": 1.3, "top_k": 30, "top_p": 0.9, "min_p": 0.01},
        {"logit_bias": {0: 2.0, 5: -1.0}},
        {"allowed_token_ids": [1, 2, 3, 4, 5]},
    ],
)
def test_frequencies_follow_the_probabilities(settings_: dict) -> None:
    params, count = SamplingParams(**settings_), 8000
    logits = logits_of(1, 5, 60)[0]
    tokens = draw_many(logits, params, count)
    expected = count * probabilities(edited(logits.double().numpy(), params, [0], []), params)
    counts = np.bincount(tokens, minlength=60).astype(float)
    assert (counts[expected == 0] == 0).all()
    large = expected >= 5
    observed = np.append(counts[large], counts[~large].sum())
    wanted = np.append(expected[large], expected[~large].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    degrees = len(wanted) - 1
    chi_square = ((observed - wanted) ** 2 / wanted).sum()
    assert chi_square < degrees + 4 * np.sqrt(2 * degrees) + 6


def test_a_text_is_decided_by_its_seed_and_survives_preemption() -> None:
    params = SamplingParams(temperature=1.2, top_p=0.97, frequency_penalty=0.3, repetition_penalty=1.1)
    logits = [logits_of(1, step) for step in range(20)]
    straight = Batch(VOCAB)
    straight.add(0, params, prompt=[1, 2], seed=42)
    text = [straight.step(x, [0])[0] for x in logits]
    assert len(set(text)) > 10

    again = Batch(VOCAB)
    again.add(5, params, prompt=[1, 2], seed=42)
    other = SamplingParams(temperature=0.3, top_k=7)
    for step in range(11):
        again.add(2, other, seed=step)
        again.step(torch.cat((logits_of(1, 99 + step), logits[step])), [2, 5])
    # Preempted, and back in another slot with what it has generated.
    again.sampler.remove(5)
    again.add(7, params, prompt=[1, 2], output=text[:11], seed=42)
    assert [again.step(logits[step], [7])[0] for step in range(11, 20)] == text[11:]

    different = Batch(VOCAB)
    different.add(0, params, prompt=[1, 2], seed=43)
    assert [different.step(x, [0])[0] for x in logits] != text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("bad_params", [{"temperature": 0}, {}, {"top_p": 0.5}, {"allowed_token_ids": [1, 2]}])
def test_a_row_that_is_not_numbers_fails_alone(value: float, bad_params: dict) -> None:
    batch = Batch(VOCAB)
    batch.add(0, SamplingParams(**bad_params, repetition_penalty=1.2, logprobs=2))
    others = [SamplingParams(temperature=0, logprobs=1), SamplingParams(top_p=0.9), SamplingParams(top_k=5)]
    for slot, params in enumerate(others, start=1):
        batch.add(slot, params, seed=slot)
    logits = logits_of(4)
    sound = batch.sample(logits, [0, 1, 2, 3])
    logits[0, 600] = value
    samples = batch.sample(logits, [0, 1, 2, 3])
    assert samples.token_ids.tolist() == [NAN_TOKEN, *sound.token_ids.tolist()[1:]]
    assert read_logprobs(samples)[1] == read_logprobs(sound)[1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_left_to_choose_from(temperature: float) -> None:
    batch = Batch(VOCAB)
    batch.add(0, SamplingParams(temperature=temperature))
    batch.add(1, SamplingParams(temperature=temperature, allowed_token_ids=[4]), bad_words=[[4]])
    batch.add(2, SamplingParams(temperature=temperature, allowed_token_ids=[4]))
    logits = logits_of(3)
    logits[0] = -torch.inf
    assert batch.sample(logits, [0, 1, 2]).token_ids.tolist() == [NAN_TOKEN, NAN_TOKEN, 4]


@pytest.mark.parametrize("scale", [1e-30, 1e38])
@pytest.mark.parametrize("temperature", [0.0, 1.1e-5, 1.0, 1e6])
def test_extreme_numbers(scale: float, temperature: float) -> None:
    batch = Batch(VOCAB)
    params = SamplingParams(
        temperature=temperature, top_p=0.9, min_p=0.1, repetition_penalty=1e-6, frequency_penalty=-2, top_k=600
    )
    batch.add(0, params, prompt=[3], output=[3, 9])
    logits = torch.zeros(1, VOCAB)
    logits[0, 3], logits[0, 9], logits[0, 8] = scale, -scale, -torch.inf
    token = int(batch.sample(logits, [0]).token_ids[0])
    assert 0 <= token < VOCAB
    assert token != 8


def test_min_tokens_end_when_enough_were_generated() -> None:
    batch = Batch(VOCAB)
    batch.add(0, SamplingParams(temperature=0, min_tokens=2), prompt=[1], stop=[7, 8, 10**6])
    logits = torch.zeros(1, VOCAB)
    logits[0, 7], logits[0, 8], logits[0, 20] = 9, 8, 1
    assert [batch.step(logits, [0])[0] for _ in range(3)] == [20, 20, 7]


def test_bad_words_match_generated_tokens_only() -> None:
    batch = Batch(VOCAB)
    logits = torch.zeros(1, VOCAB)
    logits[0, 7], logits[0, 8] = 9, 5
    batch.add(0, SamplingParams(temperature=0), prompt=[3, 5, 6], bad_words=[[5, 6, 7], [2, 3, 5, 6, 7], [1, 7]])
    assert batch.step(logits, [0]) == [7]
    batch.add(0, SamplingParams(temperature=0), prompt=[3], output=[5, 6], bad_words=[[1, 7], [5, 6, 7]])
    assert batch.step(logits, [0]) == [8]


def test_a_slot_forgets_its_last_request() -> None:
    batch = Batch(VOCAB)
    logits = logits_of(1)
    batch.add(0, SamplingParams(temperature=0, allowed_token_ids=[9], presence_penalty=2), prompt=[1, 1])
    assert batch.sample(logits, [0]).token_ids.tolist() == [9]
    batch.sampler.remove(0)
    batch.add(0, SamplingParams(temperature=0), prompt=[1, 1])
    assert batch.sample(logits, [0]).token_ids.tolist() == logits.argmax(-1).tolist()


def test_an_empty_step() -> None:
    samples = Batch(VOCAB).sample(torch.empty(0, VOCAB), [])
    assert samples.token_ids.tolist() == []
    assert samples.logprobs == []


def test_a_token_that_failed_does_not_break_a_later_step() -> None:
    # A step in flight may still run after a row's failure, with the failure's mark among its tokens.
    batch = Batch(VOCAB)
    params = SamplingParams(repetition_penalty=1.5, frequency_penalty=1.0)
    batch.add(0, params, prompt=[1], output=[2], bad_words=[[2, 3]])
    batch.append(0, NAN_TOKEN)
    assert 0 <= int(batch.sample(logits_of(1), [0]).token_ids[0]) < VOCAB
