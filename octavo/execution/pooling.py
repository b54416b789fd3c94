"""Pooling: from a step's hidden states to the vectors of the requests whose prompts end in it.

State of prompts that take several steps is kept by slot in :class:`PoolingState`; ``layers/pooling.py`` has the maths.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.layers.pooling import Pooler, max_sim, sum_by_row
from octavo.platforms import runtime_of
from octavo.platforms.transfer import HostCopies, to_device
from octavo.records import NAN_TOKEN, NewRow, PooledData, PoolingRequest, PoolingTask, Step, StepResult

_Kind = tuple[PoolingTask, bool, int | None]


@dataclass(slots=True)
class _Row:
    """A pooling request in the batch.

    Attributes:
        carried: results of earlier chunks of its prompt: the sum of states, the first token's state, or a list of
            per-token vectors.
        is_returned: ``[prompt_len]`` bool, the tokens whose vectors are given; None for all.
    """

    request: PoolingRequest
    prompt_len: int
    is_returned: torch.Tensor | None
    carried: list[torch.Tensor] = field(default_factory=list)

    @property
    def kind(self) -> _Kind:
        """Requests of the same kind go through the pooler together."""
        return self.request.task, self.request.use_activation, self.request.dimensions


@dataclass(slots=True)
class PooledStep:
    """A step whose device work is queued; a :class:`PendingStep`.

    Attributes:
        num_rows: rows of the step.
        answers: rows, their results concatenated, and the length of each row's part (None: one entry per row, without
            a leading dimension).
    """

    num_rows: int
    answers: list[tuple[list[int], torch.Tensor, list[int] | None]]
    copies: HostCopies

    def result(self) -> StepResult:
        """Wait for the vectors and read them; rows with NaN or infinity are marked with ``NAN_TOKEN``."""
        self.copies.wait()
        token_ids = np.zeros(self.num_rows, np.int64)
        pooled: dict[int, PooledData] = {}
        for rows, tensor, lengths in self.answers:
            array = tensor.numpy()
            parts = list(array) if lengths is None else np.split(array, np.cumsum(lengths)[:-1])
            for row, part in zip(rows, parts, strict=True):
                if np.isfinite(part).all():
                    pooled[row] = PooledData.of(np.asarray(part))
                else:
                    token_ids[row] = NAN_TOKEN
        return StepResult(token_ids, pooled=pooled)


class PoolingState:
    """Pooling requests by slot, with the partial results of their earlier chunks."""

    def __init__(self, pooler: Pooler, device: torch.device) -> None:
        self._pooler = pooler
        self._device = device
        self._rows: dict[int, _Row] = {}

    def take_changes(self, step: Step) -> None:
        """Drop requests whose slots were freed, and add new ones."""
        for slot in step.freed_slots:
            self._rows.pop(slot, None)
        for row in step.new_rows:
            self._rows[row.slot] = self._new_row(row)

    def _new_row(self, row: NewRow) -> _Row:
        assert row.pooling is not None, "a pooling model gets no other requests"
        step_tag_id, is_returned = self._pooler.spec.step_tag_id, None
        if step_tag_id is not None and row.pooling.task == "token_classify":
            is_returned = to_device(np.asarray(row.token_ids[: row.prompt_len]) == step_tag_id, self._device)
        return _Row(row.pooling, row.prompt_len, is_returned)

    def run(self, step: Step, hidden: torch.Tensor) -> PooledStep:
        """Process the states of a step's tokens; return results of the requests whose prompts end in this step.

        Args:
            hidden: ``[T, hidden]``, rows in the step's order.
        """
        rows = [self._rows[slot] for slot in step.slots.tolist()]
        ends = np.cumsum(step.num_scheduled_tokens)
        places = _Places(ends - step.num_scheduled_tokens, ends, step.num_drawn > 0)
        by_kind: dict[_Kind, list[int]] = defaultdict(list)
        for index, row in enumerate(rows):
            by_kind[row.kind].append(index)
        copies = HostCopies(runtime_of(self._device))
        answers: list[tuple[list[int], torch.Tensor, list[int] | None]] = []
        for kind, indices in by_kind.items():
            take = self._pool_tokens if kind[0].startswith("token_") else self._pool_sequences
            answers += take(kind, indices, rows, places, hidden)
        found = [(indices, copies.add(tensor), lengths) for indices, tensor, lengths in answers]
        copies.seal()
        return PooledStep(len(rows), found, copies)

    def _pool_sequences(
        self, kind: _Kind, indices: list[int], rows: list[_Row], places: "_Places", hidden: torch.Tensor
    ) -> list[tuple[list[int], torch.Tensor, list[int] | None]]:
        if self._pooler.spec.pooling == "SPLADE":
            tokens, row_of_token = self._tokens_of(indices, places)
            chosen = hidden.index_select(0, to_device(tokens, self._device))
            return [(indices, self._pooler.sparse(chosen, row_of_token, len(indices)), None)]
        states = self._sequence_states(indices, rows, places, hidden)
        complete = [number for number, index in enumerate(indices) if places.is_last[index]]
        if not complete:
            return []
        if len(complete) < len(indices):
            states = states[to_device(np.array(complete), self._device)]
        task, use_activation, dimensions = kind
        vectors = self._pooler(states, task, use_activation=use_activation, dimensions=dimensions)
        return [([indices[number] for number in complete], vectors, None)]

    def _sequence_states(
        self, indices: list[int], rows: list[_Row], places: "_Places", hidden: torch.Tensor
    ) -> torch.Tensor:
        """``[N, hidden]``: pooled state of each sequence so far; carried over for prompts that continue."""
        how = self._pooler.spec.pooling
        if how == "LAST":
            return hidden.index_select(0, to_device(places.ends[indices].astype(np.int64) - 1, self._device))
        if how == "CLS":
            states = hidden.index_select(0, to_device(places.starts[indices].astype(np.int64), self._device)).float()
        else:
            tokens, row_of_token = self._tokens_of(indices, places)
            chosen = hidden if len(tokens) == len(hidden) else hidden.index_select(0, to_device(tokens, self._device))
            states = sum_by_row(chosen, row_of_token, len(indices))
        for number, index in enumerate(indices):
            row = rows[index]
            if row.carried:
                states[number] = row.carried[0] if how == "CLS" else row.carried[0] + states[number]
            if not places.is_last[index]:
                row.carried = [states[number].clone()]
        if how == "MEAN":
            lengths = np.array([rows[index].prompt_len for index in indices], np.float32)
            states /= to_device(lengths, self._device)[:, None]
        return states

    def _pool_tokens(
        self, kind: _Kind, indices: list[int], rows: list[_Row], places: "_Places", hidden: torch.Tensor
    ) -> list[tuple[list[int], torch.Tensor, list[int] | None]]:
        task, use_activation, dimensions = kind
        tokens, _ = self._tokens_of(indices, places)
        chosen = hidden if len(tokens) == len(hidden) else hidden.index_select(0, to_device(tokens, self._device))
        vectors = self._pooler(chosen, task, use_activation=use_activation, dimensions=dimensions)
        pieces = vectors.split((places.ends - places.starts)[indices].tolist())
        wholes: dict[int, torch.Tensor] = {}
        for index, piece in zip(indices, pieces, strict=True):
            row = rows[index]
            if not places.is_last[index]:
                row.carried.append(piece.clone())
            else:
                whole = torch.cat([*row.carried, piece]) if row.carried else piece
                wholes[index] = whole if row.is_returned is None else whole[row.is_returned]
        plain = [index for index in wholes if rows[index].request.query is None]
        answers: list[tuple[list[int], torch.Tensor, list[int] | None]] = []
        if plain:
            together = torch.cat([wholes[index] for index in plain])
            answers.append((plain, together, [len(wholes[index]) for index in plain]))
        return answers + self._match([index for index in wholes if index not in set(plain)], rows, wholes)

    def _match(
        self, indices: list[int], rows: list[_Row], wholes: dict[int, torch.Tensor]
    ) -> list[tuple[list[int], torch.Tensor, list[int] | None]]:
        """Late-interaction scores of requests with a query; requests with the same query are computed together."""
        by_query: dict[bytes, list[int]] = defaultdict(list)
        for index in indices:
            query = rows[index].request.query
            assert query is not None, "only such requests come here"
            by_query[query.data].append(index)
        answers: list[tuple[list[int], torch.Tensor, list[int] | None]] = []
        for same in by_query.values():
            query = rows[same[0]].request.query
            assert query is not None
            lengths = [len(wholes[index]) for index in same]
            row_of_token = to_device(np.repeat(np.arange(len(same)), lengths), self._device)
            tokens = torch.cat([wholes[index] for index in same])
            vectors = to_device(query.array().copy(), self._device)
            answers.append((same, max_sim(vectors, tokens, row_of_token, len(same)), None))
        return answers

    def _tokens_of(self, indices: list[int], places: "_Places") -> tuple[NDArray[np.int64], torch.Tensor]:
        """Indices of the rows' tokens in the step, and the row (index into ``indices``) of each, on the device."""
        lengths = (places.ends - places.starts)[indices]
        tokens = np.concatenate([np.arange(places.starts[index], places.ends[index]) for index in indices])
        return tokens, to_device(np.repeat(np.arange(len(indices)), lengths), self._device)


@dataclass(slots=True)
class _Places:
    """The token range of each row in the step.

    Attributes:
        starts, ends: ``[R]``.
        is_last: ``[R]`` whether a row's prompt ends in this step.
    """

    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    is_last: NDArray[np.bool_]
