"""A step from the scheduler to the runner, and its result."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from octavo.records.engine import TokenLogprobs
from octavo.records.experts import RoutedExperts
from octavo.records.pooling import PooledData, PoolingRequest
from octavo.records.prompts import PromptEmbeds
from octavo.records.sampling_params import SamplingParams
from octavo.records.token_ids import TokenIds


@dataclass(slots=True)
class NewRow:
    """A request that enters device state, with everything that the runner needs.

    Attributes:
        slot: the request's slot in device state.
        token_ids: all known tokens: the prompt and, after a preemption or replay, generated tokens.
        prompt_len: number of prompt tokens among them.
        seed: 64-bit seed of its random numbers.
        stop_token_ids: all tokens that may end the text, which ``min_tokens`` masks.
        bad_words_token_ids: token sequences that must not be completed.
        prompt_logprobs_from: first prompt position whose log-probability is still to be computed
            (positions count from 0; position 0 has none).
        pooling: parameters of a pooling request.
        prompt_embeds: vectors that replace the prompt's tokens.
    """

    slot: int
    token_ids: TokenIds
    prompt_len: int
    params: SamplingParams
    seed: int
    stop_token_ids: list[int]
    bad_words_token_ids: list[list[int]]
    prompt_logprobs_from: int = 0
    pooling: PoolingRequest | None = None
    prompt_embeds: PromptEmbeds | None = None


@dataclass(slots=True)
class BlockUpdate:
    """Blocks appended to one request's block table.

    Attributes:
        start: index in the block table of the first new block.
    """

    group: int
    slot: int
    start: int
    block_ids: list[int]


@dataclass(slots=True)
class Step:
    """One pass of the engine over ``R`` requests and ``T`` tokens in total.

    A row's last tokens may be drafts, which a drafter has put behind the request's known tokens in device state. A
    token is drawn after each of them and after the last known one; the draws up to the first that differs from its
    draft are results. With drafts in flight, the host does not know how many tokens of a request are computed: its
    numbers are upper bounds until the results arrive.

    Rows of at most ``decode_len`` tokens come first. Steps of the same rows share the arrays ``slots``,
    ``num_scheduled_tokens`` and ``num_drawn``, which must not be changed.

    Attributes:
        step_id: counts from 1.
        slots: ``[R]`` int32, slots in device state.
        num_computed: ``[R]`` int32, tokens of the request in the cache before this step, or more.
        num_scheduled_tokens: ``[R]`` int32, tokens scheduled in this step.
        num_drawn: ``[R]`` int32, after how many of the row's last tokens a token is drawn: 0 in the middle of a prompt,
            1 at its end and behind it, and one more per draft.
        new_rows: requests that enter device state with this step.
        freed_slots: slots freed since the last step.
        blocks_to_wipe: blocks to zero before anything else, since they may contain NaN.
        masked_rows: ``[M]`` int64, rows with a rule that may forbid tokens. No token of the step is drawn before their
            masks arrive, one per drawn token, which need the results of all earlier steps; None in most steps.
        decode_len: number of tokens up to which a row counts as decoding: 1, and one more per draft.
        num_decodes, num_decode_tokens: number of such rows, and of their tokens.
        num_tokens: ``T``.
        max_query_len: maximum number of tokens of a row.
        num_cached_tokens: tokens that longer rows have in the cache before this step, in total, or more.
        is_fresh: whether that is none, so that they do not read the cache.
    """

    step_id: int
    slots: NDArray[np.int32]
    num_computed: NDArray[np.int32]
    num_scheduled_tokens: NDArray[np.int32]
    num_drawn: NDArray[np.int32]
    new_rows: list[NewRow] = field(default_factory=list)
    freed_slots: list[int] = field(default_factory=list)
    block_updates: list[BlockUpdate] = field(default_factory=list)
    blocks_to_wipe: list[int] = field(default_factory=list)
    masked_rows: NDArray[np.int64] | None = None
    decode_len: int = 1
    num_decodes: int = field(init=False)
    num_decode_tokens: int = field(init=False)
    num_tokens: int = field(init=False)
    max_query_len: int = field(init=False)
    num_cached_tokens: int = field(init=False)
    is_fresh: bool = field(init=False)

    def continues(self, rows: "StepRows") -> bool:
        """Whether it has the same rows as an earlier step, and brings nothing but their next tokens."""
        return (
            (self.slots is rows[0] and self.num_scheduled_tokens is rows[1] and self.num_drawn is rows[2])
            and self.masked_rows is None
            and not (self.new_rows or self.freed_slots or self.block_updates or self.blocks_to_wipe)
        )

    @property
    def rows(self) -> "StepRows":
        """The arrays that steps of the same rows share."""
        return self.slots, self.num_scheduled_tokens, self.num_drawn

    def __post_init__(self) -> None:
        counts = self.num_scheduled_tokens
        self.num_decodes = self.num_decode_tokens = int(np.count_nonzero(counts <= self.decode_len))
        if self.num_decodes == len(counts) and self.decode_len == 1:
            self.num_tokens, self.max_query_len, self.num_cached_tokens = len(counts), 1, 0
        else:
            self.num_decode_tokens = int(counts[: self.num_decodes].sum())
            self.num_tokens, self.max_query_len = int(counts.sum()), int(counts.max(initial=0))
            self.num_cached_tokens = int(self.num_computed[self.num_decodes :].sum())
        self.is_fresh = self.num_cached_tokens == 0


StepRows = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]
"""A step's ``slots``, ``num_scheduled_tokens`` and ``num_drawn``."""


@dataclass(slots=True)
class RowLogprobs:
    """Log-probabilities of one row in one step.

    Attributes:
        sampled: of each new token, if requested.
        prompt: of the prompt positions in this chunk, in order.
    """

    sampled: list[TokenLogprobs] = field(default_factory=list)
    prompt: list[TokenLogprobs] = field(default_factory=list)


NAN_TOKEN = -1
"""Placeholder for a token that could not be drawn because of NaN logits."""


@dataclass(slots=True)
class StepResult:
    """Results of one step.

    Attributes:
        token_ids: ``[R, W]`` integers, or ``[R]`` without ``num_tokens``: each row's new tokens; valid for rows
            that draw, and :data:`NAN_TOKEN` if the logits were NaN.
        num_tokens: ``[R]`` integers, the number of new tokens per row; None for one in each row that draws.
        drafts: ``[R, K]`` integers, the drafts that wait behind each row's tokens; None without a drafter.
        num_drafts: ``[R]`` integers, how many these are.
        logprobs: row index → log-probabilities, for rows that requested them.
        pooled: row index → result of a pooling request whose last token was computed.
        routed: row index → experts of tokens not told of before, for rows that draw; empty if they are not captured.
    """

    token_ids: NDArray[np.integer] | list[int]
    num_tokens: NDArray[np.integer] | None = None
    drafts: NDArray[np.integer] | None = None
    num_drafts: NDArray[np.integer] | None = None
    logprobs: dict[int, RowLogprobs] = field(default_factory=dict)
    pooled: dict[int, PooledData] = field(default_factory=dict)
    routed: dict[int, RoutedExperts] = field(default_factory=dict)
