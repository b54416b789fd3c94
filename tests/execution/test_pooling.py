"""Vectors of requests whose states come in pieces, side by side with others, and more than once."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.execution.pooling import PoolingState
from octavo.layers.pooling import Pooler, max_sim
from octavo.records import (
    NAN_TOKEN,
    NewRow,
    PooledData,
    PoolingRequest,
    PoolingSpec,
    PoolingTask,
    SamplingParams,
    Step,
    StepResult,
    as_token_ids,
)
from octavo.records.pooling import SequencePooling

HIDDEN = 6
CPU = torch.device("cpu")


def make_state(pooling: SequencePooling) -> PoolingState:
    spec = PoolingSpec(["embed", "token_embed"], pooling, False, HIDDEN, normalize=True)
    return PoolingState(Pooler(spec), CPU)


def new_row(slot: int, length: int, request: PoolingRequest) -> NewRow:
    return NewRow(slot, as_token_ids([0] * length), length, SamplingParams(), 0, [], [], pooling=request)


def run(
    state: PoolingState,
    chunks: list[tuple[int, torch.Tensor, int, bool]],
    new: list[NewRow] | None = None,
    freed: list[int] | None = None,
) -> StepResult:
    """One step. Each chunk: slot, states, tokens before it, whether it is the last."""
    step = Step(
        1,
        np.array([chunk[0] for chunk in chunks], np.int32),
        np.array([chunk[2] for chunk in chunks], np.int32),
        np.array([len(chunk[1]) for chunk in chunks], np.int32),
        np.array([chunk[3] for chunk in chunks], np.int32),
        new_rows=new or [],
        freed_slots=freed or [],
    )
    state.take_changes(step)
    return state.run(step, torch.cat([chunk[1] for chunk in chunks])).result()


def expected(states: torch.Tensor, pooling: SequencePooling, task: PoolingTask) -> torch.Tensor:
    if task == "token_embed":
        return F.normalize(states, dim=-1)
    pooled = {"CLS": states[0], "LAST": states[-1], "MEAN": states.mean(0)}[pooling]
    return F.normalize(pooled, dim=-1)


@settings(max_examples=60)
@given(
    pooling=st.sampled_from(["CLS", "LAST", "MEAN"]),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    tasks=st.lists(st.sampled_from(["embed", "token_embed"]), min_size=5, max_size=5),
    data=st.data(),
)
def test_pieces_make_the_same_vectors_as_wholes(
    pooling: SequencePooling, lengths: list[int], tasks: list[PoolingTask], data: st.DataObject
) -> None:
    """Requests are cut anywhere, begin anywhen, and some begin again in another slot, as after a preemption."""
    generator = torch.Generator().manual_seed(len(lengths))
    states = [torch.randn(length, HIDDEN, generator=generator) for length in lengths]
    state = make_state(pooling)
    done = [0] * len(lengths)
    slots = list(range(len(lengths)))
    entered: set[int] = set()
    found: dict[int, np.ndarray] = {}
    restarts, next_slot = 3, len(lengths)
    freed: list[int] = []
    while len(found) < len(lengths):
        chunks, new, chosen = [], [], []
        for index, length in enumerate(lengths):
            if index in found:
                continue
            if restarts and index in entered and data.draw(st.booleans(), label="begins again"):
                restarts -= 1
                freed.append(slots[index])
                slots[index], next_slot = next_slot, next_slot + 1
                entered.discard(index)
                done[index] = 0
            remaining = length - done[index]
            count = remaining - data.draw(st.integers(0, remaining), label="tokens left for later")
            if count == 0:
                continue
            if index not in entered:
                entered.add(index)
                new.append(new_row(slots[index], length, PoolingRequest(tasks[index])))
            is_last = done[index] + count == length
            chunks.append((slots[index], states[index][done[index] :][:count], done[index], is_last))
            done[index] += count
            chosen.append((index, is_last))
        if not chunks:
            continue
        result = run(state, chunks, new, freed)
        freed = []
        assert set(result.pooled) == {row for row, (_, is_last) in enumerate(chosen) if is_last}
        for row, pooled in result.pooled.items():
            found[chosen[row][0]] = pooled.array()
            freed.append(chunks[row][0])
    for index, array in found.items():
        wanted = expected(states[index], pooling, tasks[index])
        torch.testing.assert_close(torch.tensor(array), wanted, rtol=0, atol=1e-6)


def test_documents_are_matched_with_their_own_queries() -> None:
    generator = torch.Generator().manual_seed(0)
    queries = [F.normalize(torch.randn(count, HIDDEN, generator=generator), dim=-1) for count in (2, 3)]
    documents = [torch.randn(count, HIDDEN, generator=generator) for count in (4, 1, 7)]
    owners = [0, 1, 0]
    new = [
        new_row(slot, len(document), PoolingRequest("token_embed", query=PooledData.of(queries[owner].numpy())))
        for slot, (document, owner) in enumerate(zip(documents, owners, strict=True))
    ]
    chunks = [(slot, document, 0, True) for slot, document in enumerate(documents)]
    result = run(make_state("LAST"), chunks, new)
    for row, (document, owner) in enumerate(zip(documents, owners, strict=True)):
        similarity = queries[owner] @ F.normalize(document, dim=-1).T
        wanted = similarity.max(1).values.sum()
        assert result.pooled[row].shape == []
        assert float(result.pooled[row].array()) == pytest.approx(float(wanted), abs=1e-5)


@pytest.mark.parametrize("max_elements", [1, 12, 25, 1 << 20])
def test_a_bound_on_the_matrix_of_scores_changes_no_score(max_elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    query, tokens = torch.randn(5, HIDDEN, generator=generator), torch.randn(12, HIDDEN, generator=generator)
    rows = torch.tensor([0] * 4 + [1] + [2] * 7)
    wanted = [(tokens[rows == row] @ query.T).amax(0).sum() for row in range(3)]
    sizes = []
    scatter = torch.Tensor.scatter_reduce_

    def watch(best: torch.Tensor, dim: int, index: torch.Tensor, scores: torch.Tensor, how: str) -> torch.Tensor:
        sizes.append(scores.numel())
        return scatter(best, dim, index, scores, how)

    monkeypatch.setattr(torch.Tensor, "scatter_reduce_", watch)
    found = max_sim(query, tokens, rows, 3, max_elements)
    torch.testing.assert_close(found, torch.stack(wanted), rtol=0, atol=1e-5)
    assert max(sizes) <= max(max_elements, len(tokens))


def test_what_is_not_a_number_is_no_answer() -> None:
    good, bad = torch.ones(2, HIDDEN), torch.full((2, HIDDEN), torch.nan)
    new = [new_row(slot, 2, PoolingRequest("embed")) for slot in range(2)]
    result = run(make_state("MEAN"), [(0, good, 0, True), (1, bad, 0, True)], new)
    assert list(result.pooled) == [0]
    assert np.asarray(result.token_ids).tolist() == [0, NAN_TOKEN]
