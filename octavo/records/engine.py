"""Records exchanged between a frontend and the engine, in one process or two."""

from collections.abc import Iterator
from typing import Any

import msgspec

from octavo.records.experts import RoutedExperts
from octavo.records.key_spans import KeySpan
from octavo.records.pooling import PooledData, PoolingRequest, PoolingSpec
from octavo.records.prompts import PromptEmbeds
from octavo.records.sampling_params import SamplingParams
from octavo.records.start import StartPhase
from octavo.records.token_ids import NO_TOKEN_IDS, TokenIds


class EngineRequest(msgspec.Struct, omit_defaults=True, eq=False):
    """One sequence to generate, as the engine sees it: token ids, no text.

    Attributes:
        request_id: unique among the requests in flight.
        params: sampling parameters; ``max_tokens`` is resolved, ``n`` is ignored (the frontend makes ``n`` requests).
        seed: 64-bit seed of the request's random numbers; a draw depends on seed and position only.
        eos_token_ids: tokens that end the text unless ``params.ignore_eos``.
        bad_words_token_ids: tokenised ``params.bad_words``.
        output_token_ids: tokens generated before (a replay after a restart); never sent again.
        priority: lower runs first under the priority policy.
        arrival_time: seconds since the epoch.
        cache_salt: separates prefix-cache entries of different tenants.
        leader_id: with ``n`` > 1, id of the first request of the prompt (also in itself); the others wait until it has
            computed the prompt, then share its blocks.
        client_index: index of the frontend that gets the output.
        client: waiting requests take turns by client; may be empty.
        pooling: parameters of a pooling request; None for text.
        prompt_embeds: vectors that replace the prompt's tokens, whose ids are then arbitrary.
        key_spans: parts of the prompt whose cache entries depend on more than the token ids, such as images.
    """

    request_id: str
    prompt_token_ids: TokenIds
    params: SamplingParams
    seed: int = 0
    eos_token_ids: list[int] = []
    bad_words_token_ids: list[list[int]] = []
    output_token_ids: TokenIds = NO_TOKEN_IDS
    priority: int = 0
    arrival_time: float = 0.0
    cache_salt: str | None = None
    leader_id: str | None = None
    client_index: int = 0
    client: str = ""
    pooling: PoolingRequest | None = None
    prompt_embeds: PromptEmbeds | None = None
    key_spans: list[KeySpan] = []


class TokenLogprobs(msgspec.Struct, array_like=True):
    """Log-probabilities at one position, as plain numbers.

    Attributes:
        token_ids: the chosen (or prompt) token first, then the top ones by probability.
        logprobs: natural logarithms, same order.
        rank: rank of the first token, 1 is the most likely.
        is_listed: whether the others are the requested tokens instead of the most likely ones.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int
    is_listed: bool = False


class RequestTimes(msgspec.Struct, omit_defaults=True):
    """Timestamps of a request in the engine: seconds since the epoch, 0 for not yet."""

    queued: float = 0.0
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    num_preemptions: int = 0


class EngineOutput(msgspec.Struct, omit_defaults=True):
    """A step's output for one request, if it is more than a token.

    Attributes:
        new_token_ids: tokens to append; empty with prompt logprobs only or on an error.
        finish_reason: ``stop``, ``length``, ``repetition``, ``abort`` or ``error``; None while running.
        stop_reason: the stop token that ended the text; None for an end-of-sequence token.
        error: the message, with finish_reason ``error``.
        is_refused: whether the error is the request's fault, not the engine's.
        logprobs: one per new token, if requested.
        prompt_logprobs: for prompt positions from 1 on, sent once if requested; if there are many, they are split into
            several outputs, which may have no other content.
        num_cached_tokens: prompt tokens served from the prefix cache; sent with the first output.
        times: sent with the first token and at the end.
        pooled: the result of a pooling request.
        routed: the experts of tokens that the model has read since the last output, if they are captured.
    """

    request_id: str
    new_token_ids: list[int] = []
    finish_reason: str | None = None
    stop_reason: int | None = None
    error: str | None = None
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    num_cached_tokens: int | None = None
    times: RequestTimes | None = None
    is_refused: bool = False
    pooled: PooledData | None = None
    routed: RoutedExperts | None = None


class StepOutputs(msgspec.Struct, array_like=True):
    """A step's outputs for all requests.

    Nearly every row of nearly every step yields only tokens. These are parallel lists, so that no object is made per
    token; everything else but log-probabilities is an :class:`EngineOutput`.

    Attributes:
        request_ids: requests that got tokens. Steps of the same rows share this list: it must not be changed, and its
            identity may be compared instead of its contents.
        token_ids: their tokens, one request's after the other's.
        others: first tokens, ends, errors.
        num_tokens: the number of tokens per request; empty if each got one.
        logprobs: index in ``request_ids`` → log-probabilities of its tokens, for those that asked.
    """

    request_ids: list[str] = []
    token_ids: list[int] = []
    others: list[EngineOutput] = []
    num_tokens: list[int] = []
    logprobs: dict[int, list[TokenLogprobs]] = {}

    def __bool__(self) -> bool:
        """Whether there are any outputs."""
        return bool(self.request_ids or self.others)

    def __iter__(self) -> Iterator[EngineOutput]:
        """All outputs as :class:`EngineOutput` objects, one by one."""
        for request_id, token_ids, logprobs in self.rows():
            yield EngineOutput(request_id, token_ids, logprobs=logprobs)
        yield from self.others

    def rows(self) -> Iterator[tuple[str, list[int], list[TokenLogprobs] | None]]:
        """The requests that got only tokens, each with these and their log-probabilities."""
        end = 0
        for index, request_id in enumerate(self.request_ids):
            start, end = end, end + (self.num_tokens[index] if self.num_tokens else 1)
            yield request_id, self.token_ids[start:end], self.logprobs.get(index)


STEP_SIZES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds of the histogram buckets of step sizes; there is one more bucket for larger steps."""


class EngineStats(msgspec.Struct, omit_defaults=True):
    """Gauges and counters of an engine; counters only grow over the engine's life.

    Attributes:
        num_running, num_waiting: requests in each state.
        num_awaiting_grammar: waiting requests whose grammars are not compiled yet.
        cache_usage: share of blocks in use, 0 to 1.
        num_blocks, num_free_blocks: size of the cache and its free part, in blocks.
        prefix_queries, prefix_hits: prompt tokens looked up, and found, in the prefix cache.
        prompt_tokens, generation_tokens: tokens of prompts with at least one output token, and tokens sampled, so far.
        cached_prompt_tokens: those of these prompt tokens that the prefix cache served.
        num_corrupted: requests that ended because the model's output was NaN.
        num_dropped_event_batches: batches of cache events that were not sent because too many were waiting.
        num_step_tokens: prompt tokens and generated tokens of those steps.
        num_draft_tokens: drafts verified so far.
        acceptances: entry ``i`` counts how often, so far, ``i`` of the drafts of a request's step were accepted; steps
            of requests without drafts do not count. Empty without a drafter.
        step_sizes: steps so far by their number of tokens: up to 1, 8, 16, 32 and so on, see ``STEP_SIZES``.
        is_paused: no step is started until the engine is resumed.
        sleep_level: 0 is awake; 1: weights are in host memory, the cache is released; 2: weights are released, too.
        fault: an error message if no step may start before an owner acts; else empty.
    """

    num_running: int = 0
    num_waiting: int = 0
    cache_usage: float = 0.0
    num_blocks: int = 0
    num_free_blocks: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    num_preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    num_steps: int = 0
    cached_prompt_tokens: int = 0
    num_corrupted: int = 0
    num_step_tokens: int = 0
    step_sizes: list[int] = []
    is_paused: bool = False
    sleep_level: int = 0
    fault: str = ""
    num_awaiting_grammar: int = 0
    num_dropped_event_batches: int = 0
    num_draft_tokens: int = 0
    acceptances: list[int] = []

    @property
    def num_drafts(self) -> int:
        """How often drafts of a request were verified."""
        return sum(self.acceptances)

    @property
    def accepted_by_position(self) -> list[int]:
        """Drafts accepted, by their place among the drafts of a step."""
        return [sum(self.acceptances[place:]) for place in range(1, len(self.acceptances))]

    @property
    def only_awaits_grammars(self) -> bool:
        """Whether there are requests, and all of them wait for grammars."""
        return self.num_running == 0 and self.num_waiting == self.num_awaiting_grammar > 0


class EngineInfo(msgspec.Struct):
    """The description of a started engine for frontends.

    Attributes:
        max_model_len: maximum sequence length in tokens.
        vocab_size: number of logits; valid token ids are below it.
        num_blocks, block_size: size of the cache.
        max_num_seqs: maximum number of requests in one step.
        supports_prefix_caching: whether prefix hits can happen.
        pooling: the pooling specification; None for a generating model.
        decisions: resolved settings with their reasons, as name, value and reason.
        decode_limit: tokens/s of one request at the memory bandwidth limit; 0 if unknown.
        embeds_size: size of the vectors of prompts given as vectors; 0 if these are not enabled.
        cache_tokens: tokens that fit into the cache if every layer keeps all of them; 0 without a cache.
        phases: the phases of the engine's startup.
        kv_event_source: settings under which events of cached blocks are published; empty if they are not.
    """

    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    max_num_seqs: int
    supports_prefix_caching: bool
    decisions: list[dict[str, Any]] = []
    pooling: PoolingSpec | None = None
    device: str = ""
    decode_limit: float = 0.0
    embeds_size: int = 0
    cache_tokens: int = 0
    phases: list[StartPhase] = []
    kv_event_source: dict[str, Any] = {}
