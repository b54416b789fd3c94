"""Validates prompts and sampling parameters and converts them to engine requests."""

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any

import msgspec

from octavo.errors import InvalidRequestError, PromptTooLongError
from octavo.inputs.prompts import ParsedPrompt, check_num_tokens, check_token_ids, parse_prompt
from octavo.inputs.reasoning import ReasoningBinder
from octavo.records import (
    MAX_BAD_WORD_TOKENS,
    EngineInfo,
    EngineRequest,
    PreparedRequest,
    PromptType,
    RequestOutputKind,
    SamplingParams,
    as_token_ids,
)
from octavo.tokenization.tokenizer import Tokenizer

MAX_SALT_LENGTH = 256
NOT_A_GENERATIVE_MODEL = (
    "This is a pooling model, which does not generate text; use /v1/embeddings, /pooling, /classify, /score or "
    "/rerank, or LLM.embed, LLM.classify and LLM.score."
)
_SEED_MASK = (1 << 64) - 1
_SEED_STRIDE = 0x9E3779B97F4A7C15
# Name in a generation config → name of the sampling parameter.
_DEFAULTS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


class InputProcessor:
    """Checks what users ask for and turns it into requests for the engine.

    Args:
        tokenizer: None if prompts are token ids and outputs have no text.
        default_params: sampling defaults, with the names of Hugging Face's generation config.
        max_logprobs: most log-probabilities per token that a request may ask for; −1 is no limit.
        seed: decides the random numbers of requests without a seed, together with their order.
        reasoning: lets structured output begin after the model's reasoning; None if the caller does that.
        validators: called with each request's parameters; an exception rejects the request.
    """

    def __init__(
        self,
        info: EngineInfo,
        tokenizer: Tokenizer | None,
        *,
        eos_token_ids: Sequence[int],
        default_params: Mapping[str, Any],
        max_logprobs: int,
        seed: int,
        validators: Sequence[Callable[[SamplingParams], None]] = (),
        reasoning: ReasoningBinder | None = None,
    ) -> None:
        self._info = info
        self._validators = validators
        self._reasoning = reasoning
        self._tokenizer = tokenizer
        self._eos_token_ids = sorted(set(eos_token_ids))
        self._defaults = {
            name: default_params[theirs] for theirs, name in _DEFAULTS.items() if default_params.get(theirs) is not None
        }
        self._max_logprobs = max_logprobs
        self._random = random.Random(seed)
        self._last_bad_words: tuple[tuple[str, ...], list[list[int]]] = ((), [])
        self.default_sampling_params()

    @property
    def max_logprobs(self) -> int:
        """Most log-probabilities per token that a request may ask for; −1 is no limit."""
        return self._max_logprobs

    def default_sampling_params(self) -> SamplingParams:
        """What applies where a request says nothing; a new object each time."""
        return SamplingParams(**self._defaults)

    def process(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams | None,
        *,
        priority: int = 0,
        arrival_time: float | None = None,
        cache_salt: str | None = None,
        client_index: int = 0,
        truncate_prompt_tokens: int | None = None,
        clip_max_tokens: bool = True,
        output_kind: RequestOutputKind | None = None,
    ) -> PreparedRequest:
        """Check and tokenise one request. May be called from any thread; ``params`` is left as it is.

        Args:
            request_id: unique among the requests in flight.
            prompt: text, token ids, or a dictionary with either.
            params: None takes the defaults.
            priority: lower runs first under the priority policy.
            arrival_time: seconds since the epoch; now if None.
            cache_salt: separates prefix-cache entries; wins over the prompt's own.
            client_index: which frontend gets the outputs.
            truncate_prompt_tokens: keep only that many tokens, the last ones; −1 is as many as the model takes.
            clip_max_tokens: lower ``max_tokens`` to what fits after the prompt, rather than refuse the request.
            output_kind: in place of what ``params`` say.

        Raises:
            PromptTooLongError: the prompt does not fit.
        """
        if self._info.pooling is not None:
            raise InvalidRequestError(NOT_A_GENERATIVE_MODEL)
        params = self._checked_params(params)
        if output_kind is not None:
            params.output_kind = output_kind
        parsed = parse_prompt(
            prompt,
            self._tokenizer,
            max_model_len=self._info.max_model_len,
            vocab_size=self._info.vocab_size,
            truncate_prompt_tokens=truncate_prompt_tokens,
            embeds_size=self._info.embeds_size,
        )
        if self._reasoning is not None:
            params = self._reasoning.bind(params, parsed)
        self._check_reasoning_tags(params)
        if parsed.embeds is not None and params.prompt_logprobs is not None:
            raise InvalidRequestError("prompt_logprobs cannot be combined with prompt_embeds.", "prompt_logprobs")
        room = self._room_behind(parsed)
        if params.max_tokens is not None and params.max_tokens > room and not clip_max_tokens:
            raise PromptTooLongError(len(parsed.token_ids), self._info.max_model_len, params.max_tokens)
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        if params.min_tokens > max_tokens:
            raise InvalidRequestError(
                f"min_tokens is {params.min_tokens}, but only {max_tokens} tokens can follow this prompt.", "min_tokens"
            )
        arrival_time = time.time() if arrival_time is None else arrival_time
        params_of_one = copy(params)
        params_of_one.n, params_of_one.max_tokens = 1, max_tokens
        template = EngineRequest(
            request_id=request_id,
            prompt_token_ids=as_token_ids(parsed.token_ids),
            params=params_of_one,
            seed=self._first_seed(params, client_index),
            eos_token_ids=self._eos_token_ids,
            bad_words_token_ids=self._tokenised_bad_words(params.bad_words or []),
            priority=priority,
            arrival_time=arrival_time,
            cache_salt=checked_salt(cache_salt if cache_salt is not None else parsed.cache_salt),
            client_index=client_index,
            prompt_embeds=parsed.embeds,
        )
        children = [template] if params.n == 1 else _fork(template, params.n)
        return PreparedRequest(request_id, parsed.text, parsed.token_ids, params, children, arrival_time)

    def _checked_params(self, params: SamplingParams | None) -> SamplingParams:
        """A copy of ``params`` (or the defaults) that this engine can honour."""
        if params is None:
            return self.default_sampling_params()
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(
                f"Sampling parameters must be SamplingParams, got {type(params).__name__}.", "sampling_params"
            )
        params = params.clone()
        params.verify()
        for name in ("logprobs", "prompt_logprobs"):
            self._check_logprobs(name, getattr(params, name))
        for name, ids in (
            ("stop_token_ids", params.stop_token_ids),
            ("allowed_token_ids", params.allowed_token_ids),
            ("logit_bias", params.logit_bias),
            ("logprob_token_ids", params.logprob_token_ids),
        ):
            if ids:
                check_token_ids(list(ids), self._info.vocab_size, name)
        if self._tokenizer is None and (params.stop or params.bad_words):
            name = "stop" if params.stop else "bad_words"
            raise InvalidRequestError(f"{name} needs a tokenizer, and the engine runs without one.", name)
        for validate in self._validators:
            try:
                validate(params)
            except Exception as error:
                raise InvalidRequestError(f"A logits processor rejects the request: {error}", "extra_args") from error
        return params

    def _check_reasoning_tags(self, params: SamplingParams) -> None:
        if params.thinking_token_budget is not None and params.reasoning_tags is None:
            raise InvalidRequestError(
                "thinking_token_budget: it is not known how the model marks its reasoning; set --reasoning-parser to a "
                "format with tags.",
                "thinking_token_budget",
            )
        if params.reasoning_tags is not None:
            tags = params.reasoning_tags
            for tag in (*tags.start, tags.end, tags.forced_end or tags.end):
                check_token_ids(tag, self._info.vocab_size, "reasoning_tags")

    def _check_logprobs(self, name: str, count: int | None) -> None:
        if count is None or self._max_logprobs == -1:
            return
        wanted = self._info.vocab_size if count == -1 else count
        if wanted > self._max_logprobs:
            raise InvalidRequestError(f"{name} must be at most {self._max_logprobs}, got {count}.", name)

    def _room_behind(self, prompt: ParsedPrompt) -> int:
        num_prompt, limit = len(prompt.token_ids), self._info.max_model_len
        check_num_tokens(num_prompt, limit)
        if num_prompt == limit:
            raise PromptTooLongError(num_prompt, limit)
        return limit - num_prompt

    def _first_seed(self, params: SamplingParams, client_index: int) -> int:
        if params.seed is not None:
            return params.seed & _SEED_MASK
        # Frontends that share an engine share the setting as well, but should not draw the same numbers.
        return (self._random.getrandbits(64) + client_index * _SEED_STRIDE) & _SEED_MASK

    def _tokenised_bad_words(self, words: Iterable[str]) -> list[list[int]]:
        """Each word as it is spelled at the start of a line and after a space."""
        wanted = tuple(words)
        if not wanted:
            return []
        # Thousands of prompts of one request share their words.
        known, sequences = self._last_bad_words
        if known != wanted:
            sequences = self._tokenise_bad_words(wanted)
            self._last_bad_words = (wanted, sequences)
        return sequences

    def _tokenise_bad_words(self, words: Sequence[str]) -> list[list[int]]:
        assert self._tokenizer is not None, "checked with the parameters"
        spellings = [spelling for word in words for spelling in (word, " " + word.lstrip())]
        sequences: dict[tuple[int, ...], list[int]] = {}
        for index, token_ids in enumerate(self._tokenizer.encode_batch(spellings, False)):
            if not token_ids:
                raise InvalidRequestError(f"The bad word {words[index // 2]!r} has no tokens.", "bad_words")
            if len(token_ids) > MAX_BAD_WORD_TOKENS:
                message = f"A bad word has {len(token_ids)} tokens; the most are {MAX_BAD_WORD_TOKENS}."
                raise InvalidRequestError(message, "bad_words")
            check_token_ids(token_ids, self._info.vocab_size, "bad_words")
            sequences.setdefault(tuple(token_ids), token_ids)
        return list(sequences.values())


def _fork(template: EngineRequest, count: int) -> list[EngineRequest]:
    """One engine request per completion. Only the first computes the prompt, so only it has its log-probabilities."""
    leader_id = f"0_{template.request_id}"
    params_of_others = msgspec.structs.replace(template.params, prompt_logprobs=None)
    children = [msgspec.structs.replace(template, request_id=leader_id, leader_id=leader_id)]
    for index in range(1, count):
        child = msgspec.structs.replace(
            template,
            request_id=f"{index}_{template.request_id}",
            params=params_of_others,
            seed=(template.seed + index) & _SEED_MASK,
            leader_id=leader_id,
        )
        children.append(child)
    return children


def checked_salt(cache_salt: str | None) -> str | None:
    """A salt of the prefix cache that is short enough."""
    if cache_salt is not None and (not isinstance(cache_salt, str) or not 0 < len(cache_salt) <= MAX_SALT_LENGTH):
        raise InvalidRequestError(f"cache_salt must be a string of 1 to {MAX_SALT_LENGTH} characters.", "cache_salt")
    return cache_salt
