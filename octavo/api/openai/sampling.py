"""Converts request fields to :class:`SamplingParams`, and validates combinations of fields."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.api.frontend import SHORT_TEXT, Frontend
from octavo.api.openai.protocol import UNSUPPORTED, ChatCompletionRequest, CompletionRequest, GenerationRequest
from octavo.api.request_body import BARE_PROMPT_LIMIT, SAMPLING_FIELDS, parse_structured_outputs, reject_unsupported
from octavo.errors import InvalidRequestError
from octavo.records import (
    BeamSearchParams,
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
    TokensPrompt,
)
from octavo.records.beam_search import MAX_BEAM_WIDTH

# Fields that mean the same here and in SamplingParams.
_SHARED_FIELDS = (
    *SAMPLING_FIELDS,
    *("n", "min_tokens", "logprob_token_ids", "thinking_token_budget", "allowed_token_ids", "bad_words"),
    "routed_experts_prompt_start",
)
MAX_SEQUENCES = 4096
# What beam search takes no notice of.
_NOT_WITH_BEAMS = (
    *("structured_outputs", "logit_bias", "allowed_token_ids", "bad_words", "stop", "stop_token_ids", "min_tokens"),
    *("logprob_token_ids", "prompt_logprobs", "thinking_token_budget", "repetition_detection", "vllm_xargs"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "min_p"),
)
_NEUTRAL = {"repetition_penalty": 1.0, "thinking_token_budget": -1}


def refuse_unsupported(body: GenerationRequest) -> None:
    """Reject unsupported fields that would change the result."""
    reject_unsupported(body, UNSUPPORTED, best_of=(1, body.n))
    if body.use_beam_search:
        _check_beam_search(body)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError("stream_options are for streams; set stream to true.", "stream_options")
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidRequestError("prompt_logprobs are not sent in streams; set stream to false.", "prompt_logprobs")


def beam_length_penalty(body: GenerationRequest) -> float | None:
    """The length penalty of a beam search; None if none is requested."""
    if not body.use_beam_search:
        return None
    return 1.0 if body.length_penalty is None else body.length_penalty


def _check_beam_search(body: GenerationRequest) -> None:
    """Refuse what a search cannot honour: it compares texts by the model's own log-probabilities."""
    for name in _NOT_WITH_BEAMS:
        if getattr(body, name) not in (None, 0, [], {}, _NEUTRAL.get(name)):
            raise InvalidRequestError(f"{name} cannot be combined with beam search.", name)
    if body.response_format is not None and body.response_format.type != "text":
        raise InvalidRequestError("response_format cannot be combined with beam search.", "response_format")
    if (body.n or 1) > MAX_BEAM_WIDTH:
        raise InvalidRequestError(f"n must be at most {MAX_BEAM_WIDTH} with beam search, got {body.n}.", "n")
    # Checks the ranges of what is checked nowhere else.
    BeamSearchParams(body.n or 1, 1, length_penalty=beam_length_penalty(body) or 0.0)


def completion_params(body: CompletionRequest, defaults: SamplingParams) -> SamplingParams:
    """Sampling parameters of a completion."""
    values: dict[str, object] = {"logprobs": body.logprobs, "prompt_logprobs": body.prompt_logprobs}
    if body.echo and body.logprobs is not None:
        values["prompt_logprobs"] = body.logprobs
        if body.use_beam_search:
            raise InvalidRequestError("echo with logprobs cannot be combined with beam search.", "echo")
    if body.logprob_token_ids and body.logprobs is None:
        raise InvalidRequestError("logprob_token_ids need logprobs, as a number.", "logprob_token_ids")
    if body.max_tokens is not None or "max_tokens" in body.model_fields_set:
        values["max_tokens"] = 1 if returns_prompt_only(body) else body.max_tokens
    return _build(body, defaults, values)


def returns_prompt_only(body: CompletionRequest) -> bool:
    """Whether the client wants its own prompt back, usually for the log-probabilities."""
    return bool(body.echo) and body.max_tokens == 0


def chat_params(body: ChatCompletionRequest, defaults: SamplingParams) -> SamplingParams:
    """Sampling parameters of a chat's answer."""
    values: dict[str, object] = {"prompt_logprobs": body.prompt_logprobs}
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequestError("top_logprobs need logprobs to be true.", "top_logprobs")
    if body.logprob_token_ids and not body.logprobs:
        raise InvalidRequestError("logprob_token_ids need logprobs to be true.", "logprob_token_ids")
    if body.modalities not in (None, [], ["text"]):
        raise InvalidRequestError('modalities: answers are text; send ["text"] or leave it out.', "modalities")
    if body.logprobs:
        values["logprobs"] = body.top_logprobs or 0
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if limit is not None or defaults.max_tokens == BARE_PROMPT_LIMIT:
        values["max_tokens"] = limit
    return _build(body, defaults, values)


def _build(body: GenerationRequest, defaults: SamplingParams, values: dict[str, object]) -> SamplingParams:
    for name in _SHARED_FIELDS:
        value = getattr(body, name)
        if value is not None:
            values[name] = value
    values["structured_outputs"] = parse_format(body)
    if body.repetition_detection is not None:
        values["repetition_detection"] = RepetitionDetectionParams(**body.repetition_detection.model_dump())
    if body.vllm_xargs is not None:
        values["extra_args"] = body.vllm_xargs
    if body.use_beam_search:
        # It decides nothing here, and as many texts as there are beams would not go with greedy sampling.
        values["temperature"] = 1.0
    values["output_kind"] = RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY
    return msgspec.structs.replace(defaults, **values)


def completion_prompts(body: CompletionRequest) -> list[str | list[int]]:
    """The prompts of one request, each as text or token ids."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequestError("prompt is required and must not be empty.", "prompt")
    if isinstance(prompt[0], int):
        return [prompt]
    _check_num_sequences(body, len(prompt), "prompt")
    return [item for item in prompt if not isinstance(item, int)]


def embeds_prompts(body: CompletionRequest) -> list[str]:
    """The prompts that came as vectors, still as text; empty if none did."""
    given = body.prompt_embeds
    if given is None or given == []:
        return []
    if body.prompt is not None:
        raise InvalidRequestError("Give either prompt or prompt_embeds.", "prompt_embeds")
    for name in ("echo", "prompt_logprobs", "truncate_prompt_tokens"):
        if getattr(body, name) not in (None, False):
            raise InvalidRequestError(f"{name} cannot be combined with prompt_embeds.", name)
    embeds = [given] if isinstance(given, str) else given
    _check_num_sequences(body, len(embeds), "prompt_embeds")
    return embeds


def _check_num_sequences(body: GenerationRequest, num_prompts: int, param: str) -> None:
    if num_prompts * (body.n or 1) > MAX_SEQUENCES:
        raise InvalidRequestError(
            f"One request may generate at most {MAX_SEQUENCES} completions, got {num_prompts} prompts"
            + (f" with n = {body.n}." if body.n else "."),
            param,
        )


async def engine_prompt(
    frontend: Frontend, body: GenerationRequest, prompt: str | list[int], add_special_tokens: bool = True
) -> str | list[int] | TokensPrompt:
    """What to hand to the engine; text is tokenised here only if the request says how."""
    if body.truncate_prompt_tokens is None and (add_special_tokens or not isinstance(prompt, str)):
        return prompt
    if not isinstance(prompt, str):
        return truncate(frontend, body, prompt)
    token_ids = await frontend.encode(prompt, add_special_tokens)
    return TokensPrompt(prompt_token_ids=truncate(frontend, body, token_ids), prompt=prompt)


async def engine_prompts(
    frontend: Frontend,
    body: GenerationRequest,
    prompts: Sequence[str | list[int]],
    add_special_tokens: bool,
    *,
    are_counted: bool,
) -> list[str | list[int] | TokensPrompt]:
    """What to hand to the engine for each prompt; many texts are tokenised together, in a thread.

    Args:
        are_counted: whether the number of their tokens must be known.
    """
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    are_many = len(texts) > 1 and sum(map(len, texts)) >= SHORT_TEXT
    if not texts or not (are_many or are_counted):
        return [await engine_prompt(frontend, body, prompt, add_special_tokens) for prompt in prompts]
    tokenizer = frontend.need_tokenizer()

    def encode(prompt: str | list[int]) -> list[int] | TokensPrompt:
        if not isinstance(prompt, str):
            return truncate(frontend, body, prompt)
        token_ids = tokenizer.encode(prompt, add_special_tokens)
        return TokensPrompt(prompt_token_ids=truncate(frontend, body, token_ids), prompt=prompt)

    return await asyncio.to_thread(lambda: [encode(prompt) for prompt in prompts])


def truncate(frontend: Frontend, body: GenerationRequest, token_ids: list[int]) -> list[int]:
    """Keep as many tokens as ``truncate_prompt_tokens`` says: the last ones, unless the right side is to go."""
    limit = body.truncate_prompt_tokens
    max_len = frontend.engine.info.max_model_len
    if limit is None:
        return token_ids
    if limit == -1:
        limit = max_len
    if not 1 <= limit <= max_len:
        raise InvalidRequestError(
            f"truncate_prompt_tokens must be between 1 and {max_len}, or -1 for the latter, got {limit}.",
            "truncate_prompt_tokens",
        )
    return token_ids[:limit] if body.truncation_side == "right" else token_ids[-limit:]


def parse_format(body: GenerationRequest) -> StructuredOutputsParams | None:
    """The constraint that a request's fields describe; None for free text."""
    by_format = None if body.response_format is None else format_constraint(body.response_format.model_dump())
    if body.structured_outputs is None:
        return by_format
    if by_format is not None:
        raise InvalidRequestError("Give either response_format or structured_outputs.", "structured_outputs")
    return parse_structured_outputs(body.structured_outputs)


def format_constraint(given: dict[str, Any]) -> StructuredOutputsParams | None:
    """A ``response_format`` as a constraint; None for ``text``."""
    match given:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return StructuredOutputsParams(json_object=True)
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return StructuredOutputsParams(json=schema)
        case {"type": "json_schema"}:
            raise InvalidRequestError(
                "response_format.json_schema must have a schema, an object.", "response_format.json_schema"
            )
        case {"type": "structural_tag"}:
            return StructuredOutputsParams(structural_tag=msgspec.json.encode(given).decode())
        case _:
            raise InvalidRequestError(
                "response_format.type must be 'text', 'json_object', 'json_schema' or 'structural_tag', "
                f"got {str(given.get('type'))[:40]!r}.",
                "response_format.type",
            )
