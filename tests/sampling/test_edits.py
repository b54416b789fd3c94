"""Penalties and masks change exactly the logits they should, in all rows of a batch at once."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_reference import edited

from octavo.records import NewRow, SamplingParams, as_token_ids
from octavo.sampling.masks import BatchEdits, TokensAt, compile_edits
from octavo.sampling.penalties import TokenCounts, count_tokens, penalise

VOCAB, MAX_LEN = 9, 20
ids = st.integers(0, VOCAB - 1)
histories = st.tuples(st.lists(ids, min_size=1, max_size=8), st.lists(ids, max_size=8))


def token_matrix(rows: list[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """``[N, MAX_LEN]`` tokens with garbage behind them, and their lengths."""
    token_ids = torch.randint(-3, VOCAB + 3, (len(rows), MAX_LEN), dtype=torch.int32)
    for i, (prompt, output) in enumerate(rows):
        token_ids[i, : len(prompt) + len(output)] = torch.tensor([*prompt, *output], dtype=torch.int32)
    return token_ids, torch.tensor([len(prompt) + len(output) for prompt, output in rows])


def reader(by_slot: torch.Tensor) -> TokensAt:
    """Reads a matrix with a row of tokens per slot."""
    return lambda slots, positions: by_slot[slots, positions]


@given(
    st.lists(st.tuples(histories, st.floats(0.1, 3), st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=5),
    st.integers(0, 5),
    st.integers(0, 3),
    st.integers(0, 1000),
)
def test_penalties(rows: list, num_counted: int, num_drafts: int, seed: int) -> None:
    """Whichever of the generated tokens are known from the start, counted step by step, or drafts."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((len(rows), VOCAB)).astype(np.float32)
    mine = torch.from_numpy(logits.copy())
    counts = TokenCounts(len(rows) + 2, VOCAB, torch.device("cpu"))
    counts.table.fill_(77)
    slots = torch.from_numpy(rng.permutation(len(rows) + 2)[: len(rows)])
    penalties = torch.full((3, len(rows) + 2), 77, dtype=torch.float64)
    counted, drafts = (torch.full((len(rows), width), -1) for width in (num_counted, num_drafts))
    for i, ((prompt, output), *values) in enumerate(rows):
        known = [*prompt, *output[: max(0, len(output) - num_counted - num_drafts)]]
        later = [*prompt, *output][len(known) :]
        counted[i, : len(later[:num_counted])] = torch.tensor(later[:num_counted])
        drafts[i, : len(later[num_counted:])] = torch.tensor(later[num_counted:])
        token_ids = as_token_ids(known)
        counts.write(NewRow(int(slots[i]), token_ids, len(prompt), SamplingParams(), 0, [], []))
        penalties[:, slots[i]] = torch.tensor(values, dtype=torch.float64)
    counts.flush()
    count_tokens(counts.table, slots, counted, (counted >= 0).sum(1))
    penalise(mine, mine, slots, counts.table, *penalties, drafts if num_drafts else None)
    for i, ((prompt, output), repetition, frequency, presence) in enumerate(rows):
        params = SamplingParams(repetition_penalty=repetition, frequency_penalty=frequency, presence_penalty=presence)
        expected = edited(logits[i].astype(np.float64), params, prompt, output)
        np.testing.assert_allclose(mine[i].numpy(), expected, rtol=1e-4, atol=1e-5)


masks = st.fixed_dictionaries(
    {
        "logit_bias": st.none() | st.dictionaries(ids, st.floats(-100, 100, width=32), max_size=3),
        "allowed_token_ids": st.none() | st.lists(ids, min_size=1, max_size=4),
        "min_tokens": st.integers(0, 9),
    }
)
words = st.lists(st.lists(ids, min_size=1, max_size=4), max_size=4)


@settings(max_examples=200)
@given(st.lists(st.tuples(histories, masks, words, st.lists(ids, max_size=3)), min_size=1, max_size=5), st.data())
def test_masks(rows: list, data: st.DataObject) -> None:
    logits = np.random.default_rng(len(rows)).standard_normal((len(rows), VOCAB)).astype(np.float32)
    mine = torch.from_numpy(logits.copy())
    token_ids, lengths = token_matrix([row[0] for row in rows])
    slots = torch.tensor(data.draw(st.permutations(range(len(rows)))))
    compiled = []
    expected = []
    for i, ((prompt, output), settings_, some_words, stop) in enumerate(rows):
        # Most often a word is about to be completed.
        bad_words = [*some_words, [*output[-2:], 3]]
        params = SamplingParams(**settings_, max_tokens=None)
        row = NewRow(int(slots[i]), as_token_ids([*prompt, *output]), len(prompt), params, 0, stop, bad_words)
        edits = compile_edits(row, VOCAB)
        assert edits is not None
        compiled.append((i, edits))
        expected.append(edited(logits[i].astype(np.float64), params, prompt, output, stop, bad_words))
    by_slot = torch.empty_like(token_ids)
    by_slot[slots] = token_ids
    BatchEdits(compiled, VOCAB, torch.device("cpu")).apply(mine, slots, lengths, reader(by_slot))
    np.testing.assert_allclose(mine.numpy(), np.stack(expected), rtol=1e-4, atol=1e-5)


def test_a_request_without_edits_costs_nothing() -> None:
    row = NewRow(0, as_token_ids([1]), 1, SamplingParams(logit_bias={}), 0, [5], [])
    assert compile_edits(row, VOCAB) is None


def test_ids_outside_the_vocabulary_are_left_out() -> None:
    params = SamplingParams(logit_bias={VOCAB: 5.0}, allowed_token_ids=[2, VOCAB], min_tokens=1)
    edits = compile_edits(NewRow(0, as_token_ids([1]), 1, params, 0, [VOCAB + 7], [[VOCAB], [1, VOCAB], []]), VOCAB)
    assert edits is not None
    mine = torch.zeros(1, VOCAB)
    token_ids, lengths = token_matrix([([1], [])])
    BatchEdits([(0, edits)], VOCAB, torch.device("cpu")).apply(mine, torch.tensor([0]), lengths, reader(token_ids))
    assert mine[0].isfinite().nonzero().tolist() == [[2]]
