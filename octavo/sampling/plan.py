"""Which rows of a step need what: worked out on the host, kept as long as the batch stays the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag

import numpy as np
import torch
from torch import Tensor

from octavo.platforms.transfer import to_device
from octavo.records import NewRow, SamplingParams
from octavo.sampling.masks import BatchEdits, RequestEdits, compile_edits


class Feature(IntFlag):
    """What a request needs beyond the likeliest token of the raw logits."""

    RANDOM = 1
    TOP_K = 2
    TOP_P = 4
    MIN_P = 8
    PENALTIES = 16
    EDITS = 32


@dataclass(slots=True, frozen=True)
class RequestNeeds:
    """One request's features and what the host must know to plan for it.

    Attributes:
        top_k: number of candidates; the whole vocabulary without :attr:`Feature.TOP_K`.
        num_logprobs: as :attr:`SamplingParams.logprobs`.
        listed: tokens whose log-probabilities are wanted in place of the likeliest; empty for none.
    """

    features: Feature
    top_k: int
    edits: RequestEdits | None
    num_logprobs: int | None
    listed: tuple[int, ...] = ()

    @property
    def must_be_planned(self) -> bool:
        """Whether parameters that lie on the device are not all there is to it."""
        planned = Feature.PENALTIES | Feature.EDITS
        return self.num_logprobs is not None or bool(self.features & planned)

    @classmethod
    def of(cls, row: NewRow, vocab_size: int) -> "RequestNeeds":
        """Read them off a request's parameters."""
        edits = compile_edits(row, vocab_size)
        features = _features(row.params, vocab_size)
        if edits is not None:
            features |= Feature.EDITS
        top_k = row.params.top_k if Feature.TOP_K in features else vocab_size
        return cls(features, top_k, edits, row.params.logprobs, tuple(row.params.logprob_token_ids or ()))


def _features(params: SamplingParams, vocab_size: int) -> Feature:
    features = Feature(0)
    if params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1:
        features |= Feature.PENALTIES
    # One candidate leaves nothing to chance: the lowest id among equals wins, as in greedy sampling.
    if params.is_greedy or params.top_k == 1:
        return features
    features |= Feature.RANDOM
    if 1 < params.top_k < vocab_size:
        features |= Feature.TOP_K
    if params.top_p < 1:
        features |= Feature.TOP_P
    if params.min_p > 0:
        features |= Feature.MIN_P
    return features


@dataclass(slots=True, frozen=True)
class Subset:
    """Some rows of a tensor; consecutive ones need no copying.

    Attributes:
        index: a slice of consecutive rows, or ``[n]`` int64 on the device.
        size: number of rows.
    """

    index: Tensor | slice
    size: int

    @classmethod
    def of(cls, rows: Sequence[int], device: torch.device) -> "Subset":
        """The given distinct rows, at least one, in rising order."""
        if len(rows) == rows[-1] + 1 - rows[0]:
            return cls(slice(rows[0], rows[-1] + 1), len(rows))
        return cls(to_device(np.array(rows, np.int64), device), len(rows))

    def take(self, x: Tensor) -> Tensor:
        """The rows of ``x``: a view of consecutive ones, a copy of others."""
        return x[self.index] if isinstance(self.index, slice) else x.index_select(0, self.index)

    def put(self, x: Tensor, values: Tensor) -> None:
        """Write values of these rows, changed or not since :meth:`take` gave them, into ``x``."""
        if not isinstance(self.index, slice):
            x.index_copy_(0, self.index, values)
        elif values.data_ptr() != x[self.index].data_ptr():
            x[self.index] = values


@dataclass(slots=True)
class SamplingPart:
    """Rows that are worked on together; the subsets count within the part and are None without rows.

    Attributes:
        rows: of the step.
        random: rows that draw; the others take the likeliest token.
        is_penalised: whether any row has penalties.
        top_k, top_p: rows with the filter, counted within ``random``.
        has_min_p: whether a random row has a min_p.
        largest_k: the largest number of candidates of the ``top_k`` rows.
        edits: of all rows, None without any.
    """

    rows: Subset
    random: Subset | None
    is_penalised: bool
    top_k: Subset | None
    top_p: Subset | None
    has_min_p: bool
    largest_k: int
    edits: BatchEdits | None

    @property
    def is_edited(self) -> bool:
        """Whether a row's logits change before the likeliest is taken."""
        return self.edits is not None or self.is_penalised

    @property
    def draws_all(self) -> bool:
        """Whether no row takes the likeliest token."""
        return self.random is not None and self.random.size == self.rows.size


@dataclass(slots=True)
class SamplingPlan:
    """How to sample one batch.

    Attributes:
        slot_list: the batch it is for.
        plain: rows that take the likeliest raw logit, None without any.
        parts: the other rows.
        is_penalised: whether any row has penalties.
        logprobs: rows that want log-probabilities, grouped by how many: (number, rows on the host, rows).
        listed: rows that want those of certain tokens, grouped by them: (tokens ``[n]``, rows on the host, rows).
    """

    slot_list: list[int]
    plain: Subset | None
    parts: list[SamplingPart]
    is_penalised: bool
    logprobs: list[tuple[int, list[int], Subset]]
    listed: list[tuple[Tensor, list[int], Subset]]


class Planner:
    """Builds plans for batches of slots.

    Args:
        rows_per_part: most rows in a part.
        works_all: whether every row goes through a part, also those that take the likeliest raw logit.
    """

    def __init__(self, vocab_size: int, device: torch.device, rows_per_part: int, *, works_all: bool) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._rows_per_part = rows_per_part
        self._works_all = works_all

    def plan(self, slot_list: list[int], needs: Sequence[RequestNeeds]) -> SamplingPlan:
        """Plan a batch; ``needs`` has one entry per row."""
        worked = [i for i, need in enumerate(needs) if need.features or self._works_all]
        plain = [] if self._works_all else [i for i, need in enumerate(needs) if not need.features]
        size = self._rows_per_part
        parts = [self._part(worked[i : i + size], needs) for i in range(0, len(worked), size)]
        is_penalised = any(part.is_penalised for part in parts)
        plain_rows = self._subset(plain)
        return SamplingPlan(
            list(slot_list), plain_rows, parts, is_penalised, self._logprobs(needs), self._listed(needs)
        )

    def _part(self, rows: list[int], needs: Sequence[RequestNeeds]) -> SamplingPart:
        own = [needs[row] for row in rows]
        random = [i for i, need in enumerate(own) if Feature.RANDOM in need.features]
        drawing = [own[i] for i in random]
        edits = [(i, need.edits) for i, need in enumerate(own) if need.edits is not None]
        return SamplingPart(
            rows=Subset.of(rows, self._device),
            random=self._subset(random),
            is_penalised=any(Feature.PENALTIES in need.features for need in own),
            top_k=self._with(Feature.TOP_K, drawing),
            top_p=self._with(Feature.TOP_P, drawing),
            has_min_p=any(Feature.MIN_P in need.features for need in drawing),
            largest_k=max((need.top_k for need in drawing if Feature.TOP_K in need.features), default=0),
            edits=BatchEdits(edits, self._vocab_size, self._device) if edits else None,
        )

    def _with(self, feature: Feature, needs: Sequence[RequestNeeds]) -> Subset | None:
        return self._subset([i for i, need in enumerate(needs) if feature in need.features])

    def _subset(self, rows: list[int]) -> Subset | None:
        return Subset.of(rows, self._device) if rows else None

    def _logprobs(self, needs: Sequence[RequestNeeds]) -> list[tuple[int, list[int], Subset]]:
        by_count: dict[int, list[int]] = {}
        for i, need in enumerate(needs):
            if need.num_logprobs is not None and not need.listed:
                by_count.setdefault(need.num_logprobs, []).append(i)
        return [(count, rows, Subset.of(rows, self._device)) for count, rows in by_count.items()]

    def _listed(self, needs: Sequence[RequestNeeds]) -> list[tuple[Tensor, list[int], Subset]]:
        by_tokens: dict[tuple[int, ...], list[int]] = {}
        for i, need in enumerate(needs):
            if need.listed:
                by_tokens.setdefault(need.listed, []).append(i)
        return [
            (to_device(np.array(tokens, np.int64), self._device), rows, Subset.of(rows, self._device))
            for tokens, rows in by_tokens.items()
        ]
