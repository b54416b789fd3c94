"""An engine that replays given responses."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BeforeValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from octavo.api.engine import ServingEngine
from octavo.api.request_body import Int64, RequestPart, TokenIds
from octavo.api.usage import RequestMetrics
from octavo.errors import InvalidRequestError
from octavo.inputs.prompts import parse_prompt
from octavo.outputs.detokenizer import make_detokenizer
from octavo.outputs.pooling import Pooled
from octavo.outputs.stop_strings import StopStringMatcher
from octavo.outputs.stream import TextTaker
from octavo.records import (
    CompletionOutput,
    EngineInfo,
    Logprob,
    PreparedRequest,
    PromptLogprobs,
    PromptType,
    RequestOutput,
    SampleLogprobs,
    SamplingParams,
)
from octavo.tokenization.tokenizer import Tokenizer

MAX_RESPONSES = 4096


def at_most_max_responses(name: str) -> BeforeValidator:
    """Rejects lists of more than :data:`MAX_RESPONSES` entries before their entries are validated."""

    def check(value: object) -> object:
        if isinstance(value, list) and len(value) > MAX_RESPONSES:
            known = {"name": name, "count": len(value), "limit": MAX_RESPONSES}
            raise PydanticCustomError("too_many", "the {name} count is {count}; the maximum is {limit}", known)
        return value

    return BeforeValidator(check)


class GivenLogprob(RequestPart):
    """One candidate at one position."""

    token_id: Int64
    logprob: float
    rank: Int64 | None = None


class GivenPosition(GivenLogprob):
    """The chosen token at one position, with candidates."""

    top_logprobs: list[GivenLogprob] = Field(default_factory=list)


class GivenLogprobs(RequestPart):
    """One entry per token."""

    content: Annotated[list[GivenPosition], Field(fail_fast=True)] | None = None


class GivenChoice(RequestPart):
    """One completion as tokens."""

    index: Annotated[int, Field(ge=0, lt=MAX_RESPONSES)]
    token_ids: Annotated[TokenIds, Field(min_length=1)]
    finish_reason: Literal["stop", "length", "repetition", "abort", "error", "tool_calls"] | None = "stop"
    stop_reason: Int64 | str | None = None
    logprobs: GivenLogprobs | None = None


class GivenPromptLogprob(RequestPart):
    """One candidate at one position of a prompt."""

    logprob: float
    rank: Int64 | None = None
    decoded_token: str | None = None


def _metrics(value: object) -> RequestMetrics | None:
    try:
        return msgspec.convert(value, RequestMetrics | None)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


_TokenIdKey = Annotated[str, Field(pattern=r"^[0-9]{1,18}$")]


class GivenResponse(RequestPart):
    """An answer of ``/inference/v1/generate``."""

    choices: Annotated[list[GivenChoice], Field(min_length=1, fail_fast=True), at_most_max_responses("choices")]
    request_id: str | None = None
    output_mode: Literal["tokens"] = "tokens"
    prompt_token_ids: TokenIds | None = None
    prompt_logprobs: Annotated[list[dict[_TokenIdKey, GivenPromptLogprob] | None], Field(fail_fast=True)] | None = None
    metrics: Annotated[
        RequestMetrics | None, PlainValidator(_metrics, json_schema_input_type=dict[str, Any] | None)
    ] = None

    @property
    def num_top_logprobs(self) -> int | None:
        """Most candidates at a position; None if there are no log-probabilities."""
        positions = [choice.logprobs.content or [] for choice in self.choices if choice.logprobs is not None]
        return max(
            (len(entry.top_logprobs) for entries in positions for entry in entries), default=0 if positions else None
        )


class ReplayEngine:
    """Answers requests with given responses, in order, in place of a real engine.

    Args:
        responses: what to say to the first request, the second and so on.
        prompts: the prompts' tokens, where they are known.
        prompt_counts: how many there are, where only that is known.
        is_parsed: whether reasoning is parsed.
    """

    def __init__(
        self,
        engine: ServingEngine,
        responses: list[GivenResponse],
        prompts: Sequence[list[int] | None],
        prompt_counts: Sequence[int | None],
        *,
        is_parsed: bool = True,
    ) -> None:
        self._engine = engine
        self.model_name, self.info, self.metrics = engine.model_name, engine.info, engine.metrics
        self.tokenizer, self.chat_renderer = engine.tokenizer, engine.chat_renderer
        self.input_processor, self.pooling_processor = engine.input_processor, engine.pooling_processor
        self.is_healthy, self.fault = engine.is_healthy, engine.fault
        self.model_settings = engine.model_settings
        if not is_parsed:
            self.model_settings = msgspec.structs.replace(
                self.model_settings, reasoning_parser="", reasoning_config=None
            )
        limit, max_logprobs = engine.info.max_model_len, engine.input_processor.max_logprobs
        for response, prompt, count in zip(responses, prompts, prompt_counts, strict=True):
            if max_logprobs >= 0 and (response.num_top_logprobs or 0) > max(1, max_logprobs):
                sentence = f"top_logprobs count {response.num_top_logprobs} exceeds max_logprobs, {max_logprobs}."
                raise InvalidRequestError(sentence, "logprobs")
            _check_ids("prompt_token_ids", prompt or response.prompt_token_ids or [], engine.info)
            for choice in response.choices:
                _check_ids("token_ids", choice.token_ids, engine.info)
                for position in choice.logprobs.content or [] if choice.logprobs else []:
                    entries = [position, *position.top_logprobs]
                    _check_ids("logprobs", [entry.token_id for entry in entries], engine.info)
            if len(response.prompt_logprobs or ()) > limit:
                sentence = f"prompt_logprobs has {len(response.prompt_logprobs or ())} entries, more than {limit}."
                raise InvalidRequestError(sentence, "prompt_logprobs")
            if count is not None and count > limit:
                raise InvalidRequestError(f"prompt_tokens must be at most {limit}, got {count}.", "prompt_tokens")
        self._waiting = list(zip(responses, prompts, prompt_counts, strict=True))

    async def pool(self, prepared: Sequence[PreparedRequest]) -> list[Pooled]:
        return await self._engine.pool(prepared)

    async def abort(self, request_id: str) -> None:
        """See :class:`ServingEngine`; replayed responses have already ended."""

    def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams | None,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        clip_max_tokens: bool = True,
        take_text: TextTaker | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The next response as the final output of a request."""
        response, known, count = self._waiting.pop(0)
        params = sampling_params or SamplingParams()
        return self._outputs(response, known or response.prompt_token_ids, count, prompt, params, request_id)

    async def _outputs(
        self,
        response: GivenResponse,
        known: list[int] | None,
        count: int | None,
        prompt: PromptType,
        params: SamplingParams,
        request_id: str,
    ) -> AsyncGenerator[RequestOutput, None]:
        assert self.tokenizer is not None
        prompt_ids = known
        if prompt_ids is None:
            # If the tokens are unknown, only their number is used.
            prompt_ids = [0] * count if count is not None else await asyncio.to_thread(self._prompt_ids, prompt)
        outputs = [
            CompletionOutput(
                choice.index,
                await asyncio.to_thread(spell, self.tokenizer, known or [], choice, params),
                choice.token_ids,
                None,
                _logprobs(self.tokenizer, choice),
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
            )
            for choice in response.choices
        ]
        yield RequestOutput(request_id, None, prompt_ids, _prompt_logprobs(response), outputs, True)

    def _prompt_ids(self, prompt: PromptType) -> list[int]:
        info = self.info
        return parse_prompt(
            prompt, self.tokenizer, max_model_len=info.max_model_len, vocab_size=info.vocab_size
        ).token_ids


def spell(tokenizer: Tokenizer, prompt_ids: list[int], choice: GivenChoice, params: SamplingParams) -> str:
    """The text of a completion, without the stop token or string that ended it unless that is requested."""
    token_ids = choice.token_ids
    if choice.finish_reason == "stop" and token_ids and not params.include_stop_str_in_output:
        last = token_ids[-1]
        is_end = (
            last == choice.stop_reason or last in (params.stop_token_ids or ()) or last in tokenizer.all_special_ids
        )
        if is_end and not isinstance(choice.stop_reason, str):
            token_ids = token_ids[:-1]
    detokenizer = make_detokenizer(tokenizer, prompt_ids, params.skip_special_tokens)
    text = detokenizer.decode_delta(token_ids) + detokenizer.flush()
    if isinstance(choice.stop_reason, str) and choice.stop_reason:
        matcher = StopStringMatcher([choice.stop_reason], params.include_stop_str_in_output)
        return matcher.match_delta(text) + matcher.flush()
    return text


def _logprobs(tokenizer: Tokenizer, choice: GivenChoice) -> SampleLogprobs | None:
    if choice.logprobs is None or choice.logprobs.content is None:
        return None
    positions: SampleLogprobs = []
    for position in choice.logprobs.content:
        candidates = {
            entry.token_id: Logprob(entry.logprob, entry.rank, tokenizer.token_text(entry.token_id))
            for entry in (position, *position.top_logprobs)
        }
        positions.append(candidates)
    return positions


def _prompt_logprobs(response: GivenResponse) -> PromptLogprobs | None:
    if response.prompt_logprobs is None:
        return None
    return [
        None
        if candidates is None
        else {
            int(token_id): Logprob(entry.logprob, entry.rank, entry.decoded_token)
            for token_id, entry in candidates.items()
        }
        for candidates in response.prompt_logprobs
    ]


def _check_ids(name: str, token_ids: list[int], info: EngineInfo) -> None:
    if len(token_ids) > info.max_model_len:
        raise InvalidRequestError(
            f"{name} has {len(token_ids)} tokens, more than max_model_len, {info.max_model_len}.", name
        )
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < info.vocab_size:
        raise InvalidRequestError(f"{name}: token ids must be between 0 and {info.vocab_size - 1}.", name)
