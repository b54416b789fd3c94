"""Records that cross between a frontend and the engine, in one process or two."""

from collections.abc import Iterator
from typing import Any

import msgspec

from octavo.records.pooling import PooledData, PoolingRequest, PoolingSpec
from octavo.records.prompts import PromptEmbeds
from octavo.records.sampling_params import SamplingParams
from octavo.records.start import StartPhase


class EngineRequest(msgspec.Struct, omit_defaults=True):
    """One sequence to generate, as the engine sees it: token ids, no text.

    Attributes:
        request_id: unique among the requests in flight.
        prompt_token_ids: the prompt.
        params: sampling parameters; ``max_tokens`` is resolved, ``n`` is ignored (a frontend forks).
        seed: 64-bit seed of the request's random numbers; position and seed alone decide a draw.
        eos_token_ids: tokens that end the text unless ``params.ignore_eos``.
        bad_words_token_ids: tokenised ``params.bad_words``.
        output_token_ids: tokens generated before (a replay after a restart); never sent again.
        priority: lower runs first under the priority policy.
        arrival_time: seconds since the epoch.
        cache_salt: separates prefix-cache entries of different tenants.
        leader_id: with ``n`` > 1, the first of the requests of one prompt (for itself, too): the others wait for it,
            then share its blocks.
        client_index: which frontend gets the output.
        client: among whom turns are shared out fairly while requests wait; nobody in particular if empty.
        pooling: what to answer with a vector instead of tokens; None for text.
        prompt_embeds: vectors that the model reads in place of the prompt's tokens, which then mean nothing.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int = 0
    eos_token_ids: list[int] = []
    bad_words_token_ids: list[list[int]] = []
    output_token_ids: list[int] = []
    priority: int = 0
    arrival_time: float = 0.0
    cache_salt: str | None = None
    leader_id: str | None = None
    client_index: int = 0
    client: str = ""
    pooling: PoolingRequest | None = None
    prompt_embeds: PromptEmbeds | None = None


class TokenLogprobs(msgspec.Struct, array_like=True):
    """Log-probabilities at one position, as plain numbers.

    Attributes:
        token_ids: the chosen (or prompt) token first, then the top ones by probability.
        logprobs: natural logarithms, same order.
        rank: rank of the first token, 1 is the likeliest.
        is_listed: whether the others are not the likeliest, but those that were asked for.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int
    is_listed: bool = False


class RequestTimes(msgspec.Struct, omit_defaults=True):
    """When things happened to a request in the engine: seconds on the epoch clock, 0 for not yet."""

    queued: float = 0.0
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    num_preemptions: int = 0


class EngineOutput(msgspec.Struct, omit_defaults=True):
    """What one step brought for one request, where that is more than a token.

    Attributes:
        new_token_ids: tokens to append; empty with prompt logprobs only or on an error.
        finish_reason: ``stop``, ``length``, ``repetition``, ``abort`` or ``error``; None while running.
        stop_reason: the stop token that ended the text; None for an end-of-sequence token.
        error: a sentence, with finish_reason ``error``.
        is_refused: whether the request is at fault, not the engine.
        logprobs: one per new token, if asked for.
        prompt_logprobs: for prompt positions from 1 on, once, if asked for; in several outputs, the first of which
            may say nothing else, if there are many.
        num_cached_tokens: prompt tokens served from the prefix cache; sent with the first output.
        times: sent with the first token and at the end.
        pooled: the answer to a pooling request.
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


class StepOutputs(msgspec.Struct, array_like=True):
    """What one step brought for all requests.

    Nearly every row of nearly every step brings a token and nothing else. Those travel as two columns, so that no
    object is made for each; whatever has more to say travels as an :class:`EngineOutput`.

    Attributes:
        request_ids: requests that each got one token. Steps of the same rows share this list: its identity may stand
            for its contents, and nobody may change it.
        token_ids: their tokens.
        others: first tokens, ends, log-probabilities, errors.
    """

    request_ids: list[str] = []
    token_ids: list[int] = []
    others: list[EngineOutput] = []

    def __bool__(self) -> bool:
        """Whether the step brought anything."""
        return bool(self.request_ids or self.others)

    def __iter__(self) -> Iterator[EngineOutput]:
        """Every request's part by itself: for those who look at one request, and for tests."""
        for request_id, token_id in zip(self.request_ids, self.token_ids, strict=True):
            yield EngineOutput(request_id, [token_id])
        yield from self.others


STEP_SIZES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds of the classes in which steps are counted; there is one more class for larger steps."""


class EngineStats(msgspec.Struct, omit_defaults=True):
    """Gauges and counters of an engine; counters only grow over the engine's life.

    Attributes:
        num_running, num_waiting: requests in each state.
        num_awaiting_grammar: of those that wait, the ones that no step can take in before their grammars are there.
        cache_usage: share of blocks in use, 0 to 1.
        num_blocks, num_free_blocks: size of the cache and what is free of it, in blocks.
        prefix_queries, prefix_hits: prompt tokens looked up, and found, in the prefix cache.
        num_preemptions: preemptions so far.
        prompt_tokens, generation_tokens: tokens of prompts that were answered, and tokens sampled, so far.
        cached_prompt_tokens: of those prompt tokens, the ones that the prefix cache served.
        num_corrupted: requests that ended because the model's output was not a number.
        num_steps: steps so far.
        num_step_tokens: tokens that those steps processed.
        step_sizes: steps so far by their number of tokens: up to 1, 8, 16, 32 and so on, see ``STEP_SIZES``.
        is_paused: nothing runs until somebody says so.
        sleep_level: 0 is awake; 1: weights lie in host memory, the cache is gone; 2: weights are gone, too.
        fault: why nothing runs until an owner acts, in a sentence; empty if nothing is wrong.
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

    @property
    def only_awaits_grammars(self) -> bool:
        """Whether there are requests, and none of them that a step could take in."""
        return self.num_running == 0 and self.num_waiting == self.num_awaiting_grammar > 0


class EngineInfo(msgspec.Struct):
    """What a frontend needs to know of a started engine.

    Attributes:
        max_model_len: longest sequence, in tokens.
        vocab_size: number of logits; valid token ids are below it.
        num_blocks, block_size: size of the cache.
        max_num_seqs: most requests in one step.
        supports_prefix_caching: whether prefix hits can happen.
        pooling: what the model answers with vectors; None if it writes text.
        decisions: resolved settings with their reasons, as name, value and reason.
        device: in words.
        decode_limit: tokens a second that reading the weights allows one request; 0 if unknown.
        embeds_size: size of the vectors that may be given as prompts; 0 if none may.
        cache_tokens: tokens that fit into the cache when every layer keeps all of them; 0 without a cache.
        phases: where the time of the engine's start went.
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
