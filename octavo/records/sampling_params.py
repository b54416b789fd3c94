"""Sampling parameters of a request."""

import logging
import math
from copy import copy, deepcopy
from enum import IntEnum
from functools import cache
from typing import Any

import msgspec

from octavo.errors import InvalidRequestError
from octavo.records.generation import MAX_START_TAGS, MAX_TAG_TOKENS, ReasoningTags, RepetitionDetectionParams
from octavo.records.structured import StructuredOutputsParams

logger = logging.getLogger(__name__)

MAX_N = 1024
MAX_LOGPROBS = 1 << 20
MAX_STOP_STRINGS = 256
MAX_STOP_STRING_LENGTH = 4096
MAX_LISTED_TOKENS = 1 << 18
MAX_QUOTED_KEYS = 8
MAX_BAD_WORDS = 1024
MAX_TOKENS_LIMIT = 1 << 31
MAX_LOGPROB_TOKENS = 128
GREEDY_TEMPERATURE = 1e-5


class RequestOutputKind(IntEnum):
    """What each streamed :class:`RequestOutput` contains."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2

    def __str__(self) -> str:
        return f"RequestOutputKind.{self.name}"


class SamplingParams(msgspec.Struct, omit_defaults=True):
    """Sampling parameters of one request, with vLLM's names and defaults.

    Values are checked at construction (:meth:`verify`); a wrong one raises
    :class:`InvalidRequestError` that names the field and its range.

    Attributes:
        n: number of completions for the prompt.
        presence_penalty: subtracted once from the logit of every token already generated, −2 to 2.
        frequency_penalty: subtracted per occurrence of a generated token, −2 to 2.
        repetition_penalty: divides (positive) or multiplies (negative) logits of prompt and
            generated tokens, above 0; 1 is off (CTRL, arXiv:1909.05858).
        temperature: 0 is greedy.
        top_p: nucleus mass, above 0 up to 1 (arXiv:1904.09751).
        top_k: number of candidates; 0 or −1 is all.
        min_p: minimum probability relative to the most likely token, 0 to 1 (arXiv:2407.01082).
        seed: makes the request's text reproducible, independent of the rest of the batch.
        stop: strings that end the text; not part of it unless ``include_stop_str_in_output``.
        stop_token_ids: tokens that end the text.
        ignore_eos: do not stop at the model's end-of-sequence tokens.
        max_tokens: maximum number of tokens to generate; None is the rest of the context.
        min_tokens: tokens before which no end or stop token may be sampled.
        logprobs: number of top log-probabilities per generated token; −1 is the whole vocabulary.
        prompt_logprobs: the same for prompt tokens.
        detokenize: whether to produce text; without it, tokens of log-probabilities have none either.
        skip_special_tokens: leave special tokens out of the text.
        spaces_between_special_tokens: exists for compatibility; fast tokenizers do not use it.
        output_kind: cumulative, delta or only the final output.
        logit_bias: token id → value added to its logit, −100 to 100.
        allowed_token_ids: if given, only these can be sampled.
        bad_words: strings that must not be generated.
        extra_args: free-form values for custom logit processors.
        skip_reading_prefix_cache: compute the whole prompt, without the prefix cache.
        structured_outputs: a constraint on the text's form.
        thinking_token_budget: maximum number of reasoning tokens, after which the end tag is forced; −1 is no limit.
        reasoning_tags: the model's reasoning tags; set by callers that know its format.
        repetition_detection: ends a text that repeats itself, with the finish reason ``repetition``.
        logprob_token_ids: return log-probabilities of these tokens instead of the most likely ones.
        flat_logprobs: return log-probabilities as :class:`~octavo.records.FlatLogprobs`, cheap for many positions.
        routed_experts_prompt_start: number of first tokens of the prompt whose experts are left out of
            :attr:`CompletionOutput.routed_experts`; at most all of the prompt's.
        guided_decoding: what vLLM called ``structured_outputs`` before; moved there at construction, None afterwards.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    extra_args: dict[str, Any] | None = None
    skip_reading_prefix_cache: bool | None = None
    structured_outputs: StructuredOutputsParams | None = None
    thinking_token_budget: int | None = None
    reasoning_tags: ReasoningTags | None = None
    repetition_detection: RepetitionDetectionParams | None = None
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    routed_experts_prompt_start: int = 0
    guided_decoding: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        self.normalise()
        self.verify()

    @classmethod
    def from_optional(cls, **values: Any) -> "SamplingParams":
        """Build parameters from keywords where None means the default, as in protocols.

        Args:
            values: fields by name; ``logit_bias`` is cut to −100 to 100. A field of vLLM's that Octavo lacks may be
                given as None, False or 0.

        Raises:
            InvalidRequestError: a field is unknown or out of range.
        """
        given: dict[str, Any] = {}
        for name, value in values.items():
            if name not in _DEFAULTS:
                if value and name != "skip_clone":  # a promise about the object that nothing here depends on
                    raise InvalidRequestError(f"Sampling parameter {name!r} is not supported.", name)
            elif value is not None or name == "max_tokens":
                given[name] = value
        if isinstance(bias := given.get("logit_bias"), dict):
            given["logit_bias"] = {
                token: min(100.0, max(-100.0, value)) if isinstance(value, int | float) else value
                for token, value in bias.items()
            }
        return cls(**given)

    def normalise(self) -> None:
        """Normalise equivalent forms (a single stop string to a list, true to 1)."""
        if self.guided_decoding is not None:
            self._take_guided_decoding(self.guided_decoding)
        if isinstance(self.stop, str):
            self.stop = [self.stop]
        self.stop = _as_list("stop", self.stop)
        self.stop_token_ids = _as_list("stop_token_ids", self.stop_token_ids)
        self.bad_words = _as_list("bad_words", self.bad_words)
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = _as_list("allowed_token_ids", self.allowed_token_ids)
        if self.logprobs is True:
            self.logprobs = 1
        if self.prompt_logprobs is True:
            self.prompt_logprobs = 1
        if self.thinking_token_budget == -1:
            self.thinking_token_budget = None
        if self.logprob_token_ids is not None:
            self.logprob_token_ids = _as_list("logprob_token_ids", self.logprob_token_ids) or None
        if self.logprob_token_ids is not None and self.logprobs is None:
            self.logprobs = 0
        if self.seed == -1:
            self.seed = None
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, dict):
                raise InvalidRequestError("logit_bias must map token ids to numbers.", "logit_bias")
            self.logit_bias = _by_token_id("logit_bias", self.logit_bias)

    def _take_guided_decoding(self, given: StructuredOutputsParams) -> None:
        if not isinstance(given, StructuredOutputsParams):
            raise InvalidRequestError(
                f"guided_decoding must be GuidedDecodingParams, got {type(given).__name__}.", "guided_decoding"
            )
        if self.structured_outputs is not None:
            raise InvalidRequestError("Give either structured_outputs or guided_decoding.", "guided_decoding")
        _warn_of_guided_decoding()
        self.structured_outputs, self.guided_decoding = given, None

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def stop_strings(self) -> list[str]:
        """The stop strings as a list."""
        return self.stop if isinstance(self.stop, list) else []

    def clone(self) -> "SamplingParams":
        """A copy that shares no mutable field with this one, in normal form but not checked again."""
        twin = copy(self)
        for name in _RECORDS:
            if (value := getattr(self, name)) is not None:
                setattr(twin, name, deepcopy(value))
        twin.normalise()  # with lists and dictionaries of its own
        return twin

    def verify(self) -> None:
        """Check every field.

        Raises:
            InvalidRequestError: names the first field that is out of range.
        """
        _check_int("n", self.n, 1, MAX_N)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_float("repetition_penalty", self.repetition_penalty, 0.0, 1e6, above_low=True)
        _check_float("temperature", self.temperature, 0.0, 1e6)
        _check_float("top_p", self.top_p, 0.0, 1.0, above_low=True)
        _check_int("top_k", self.top_k, -1, MAX_TOKENS_LIMIT)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _check_int("seed", self.seed, -(1 << 63), (1 << 64) - 1)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, MAX_TOKENS_LIMIT)
        _check_int("min_tokens", self.min_tokens, 0, MAX_TOKENS_LIMIT)
        _check_int("routed_experts_prompt_start", self.routed_experts_prompt_start, 0, MAX_TOKENS_LIMIT)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens must not exceed max_tokens ({self.max_tokens}), got {self.min_tokens}.", "min_tokens"
            )
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None:
                _check_int(name, count, -1, MAX_LOGPROBS)
        self._verify_lists()
        if self.structured_outputs is not None and self.allowed_token_ids is not None:
            raise InvalidRequestError(
                "structured_outputs and allowed_token_ids exclude each other.", "structured_outputs"
            )
        self._verify_limits()
        if self.is_greedy and self.n > 1:
            raise InvalidRequestError(
                f"n must be 1 with greedy sampling (temperature 0), got {self.n}: all texts would be equal.", "n"
            )

    def _verify_lists(self) -> None:
        stop = self.stop_strings
        if len(stop) > MAX_STOP_STRINGS:
            raise InvalidRequestError(f"stop takes at most {MAX_STOP_STRINGS} strings, got {len(stop)}.", "stop")
        for text in stop:
            if not isinstance(text, str):
                raise InvalidRequestError("stop must be a string or a list of strings.", "stop")
            if not text:
                raise InvalidRequestError("stop strings must not be empty.", "stop")
            if len(text) > MAX_STOP_STRING_LENGTH:
                raise InvalidRequestError(
                    f"a stop string takes at most {MAX_STOP_STRING_LENGTH} characters, got {len(text)}.", "stop"
                )
        if stop and not self.detokenize:
            raise InvalidRequestError("stop strings need detokenize=True; use stop_token_ids instead.", "stop")
        for name, ids in (("stop_token_ids", self.stop_token_ids), ("allowed_token_ids", self.allowed_token_ids)):
            if ids is not None:
                if len(ids) > MAX_LISTED_TOKENS:
                    raise InvalidRequestError(f"{name} takes at most {MAX_LISTED_TOKENS} ids, got {len(ids)}.", name)
                for token_id in ids:
                    _check_int(name, token_id, 0, MAX_TOKENS_LIMIT)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidRequestError("allowed_token_ids must not be empty.", "allowed_token_ids")
        if self.bad_words and len(self.bad_words) > MAX_BAD_WORDS:
            raise InvalidRequestError(f"bad_words takes at most {MAX_BAD_WORDS} strings.", "bad_words")
        for word in self.bad_words or []:
            if not isinstance(word, str) or not word:
                raise InvalidRequestError("bad_words must be a list of non-empty strings.", "bad_words")
            if len(word) > MAX_STOP_STRING_LENGTH:
                raise InvalidRequestError(
                    f"a bad word takes at most {MAX_STOP_STRING_LENGTH} characters, got {len(word)}.", "bad_words"
                )
        if self.logit_bias is not None:
            if len(self.logit_bias) > MAX_LISTED_TOKENS:
                raise InvalidRequestError(f"logit_bias takes at most {MAX_LISTED_TOKENS} entries.", "logit_bias")
            for value in self.logit_bias.values():
                _check_float("logit_bias", value, -100.0, 100.0)

    def _verify_limits(self) -> None:
        if self.repetition_detection is not None:
            self.repetition_detection.verify()
        if self.logprob_token_ids is not None:
            if len(self.logprob_token_ids) > MAX_LOGPROB_TOKENS:
                raise InvalidRequestError(
                    f"logprob_token_ids takes at most {MAX_LOGPROB_TOKENS} ids, got {len(self.logprob_token_ids)}.",
                    "logprob_token_ids",
                )
            for token_id in self.logprob_token_ids:
                _check_int("logprob_token_ids", token_id, 0, MAX_TOKENS_LIMIT)
        if self.thinking_token_budget is None:
            return
        _check_int("thinking_token_budget", self.thinking_token_budget, 0, MAX_TOKENS_LIMIT)
        if self.allowed_token_ids is not None:
            raise InvalidRequestError(
                "thinking_token_budget and allowed_token_ids exclude each other.", "thinking_token_budget"
            )
        tags = self.reasoning_tags
        if tags is None:
            return
        lengths = [len(tag) for tag in (*tags.start, tags.end, tags.forced_end)]
        if not tags.end or len(tags.start) > MAX_START_TAGS or max(lengths) > MAX_TAG_TOKENS:
            raise InvalidRequestError("reasoning_tags need an end, and few tags of few tokens.", "reasoning_tags")

    def __repr__(self) -> str:
        changed = (
            f"{k}={str(v) if isinstance(v, RequestOutputKind) else repr(v)}"
            for k, v in msgspec.structs.asdict(self).items()
            if v not in (None, [], _DEFAULTS[k])
        )
        return f"SamplingParams({', '.join(changed)})"


_RECORDS = ("extra_args", "structured_outputs", "reasoning_tags", "repetition_detection")

_DEFAULTS: dict[str, Any] = {field.name: field.default for field in msgspec.structs.fields(SamplingParams)}


@cache
def _warn_of_guided_decoding() -> None:
    """Once per process: a script may make thousands of parameters."""
    logger.warning("guided_decoding is called structured_outputs now (StructuredOutputsParams); it was converted.")


def _as_list(name: str, value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise InvalidRequestError(f"{name} must be a list, got {value!r}.", name)
    return list(value)


def _by_token_id(name: str, given: dict[Any, Any]) -> dict[int, Any]:
    converted, invalid = {}, []
    for key, value in given.items():
        try:
            converted[int(key)] = value
        except (TypeError, ValueError, OverflowError):
            invalid.append(key)
    if invalid:
        keys = ", ".join(map(repr, invalid[:MAX_QUOTED_KEYS])) + (", …" if len(invalid) > MAX_QUOTED_KEYS else "")
        raise InvalidRequestError(f"{name} must map token ids to numbers, got the keys {keys}.", name)
    return converted


def _check_int(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequestError(f"{name} must be a whole number, got {value!r}.", name)
    if not low <= value <= high:
        raise InvalidRequestError(f"{name} must be between {low} and {high}, got {value}.", name)


def _check_float(name: str, value: Any, low: float, high: float, *, above_low: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_finite(value):
        raise InvalidRequestError(f"{name} must be a finite number, got {value!r}.", name)
    if value < low or value > high or (above_low and value == low):
        bound = "above" if above_low else "at least"
        raise InvalidRequestError(f"{name} must be {bound} {low:g} and at most {high:g}, got {value:g}.", name)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False
