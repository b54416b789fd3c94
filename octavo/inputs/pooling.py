"""Validates pooling requests and converts them to engine requests."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.errors import InvalidRequestError, PromptTooLongError
from octavo.inputs.processor import checked_salt
from octavo.inputs.prompts import ParsedPrompt, check_prompt_keys, check_token_ids, embeds_prompt, plain_ints
from octavo.inputs.texts import Side, cut, encode_text
from octavo.records import (
    EngineInfo,
    EngineRequest,
    PooledData,
    PoolingParams,
    PoolingRequest,
    PoolingSpec,
    PoolingTask,
    PreparedRequest,
    PromptEmbeds,
    PromptType,
    SamplingParams,
    as_token_ids,
)
from octavo.tokenization.tokenizer import Tokenizer

NOT_A_POOLING_MODEL = (
    "This is a generative model; to use it for pooling, start it with --runner pooling (and --convert embed or "
    "classify)."
)
NO_PLUGIN = "No IOProcessor plugin installed. Octavo has none; leave the task out, or name one of the model's."
TRUNCATION_TOO_LARGE = (
    "truncate_prompt_tokens value is greater than max_model_len. Please request a smaller truncation size."
)
"""vLLM's sentence, which clients compare."""


@dataclass(frozen=True, slots=True)
class PoolingOptions:
    """What is the same for all inputs of one call.

    Attributes:
        priority: lower runs first under the priority policy.
        cache_salt: separates prefix-cache entries.
        truncate_prompt_tokens: keep at most that many tokens of each input; −1 is as many as the model takes, None
            refuses inputs that are longer.
        truncation_side: where they are cut.
        add_special_tokens: let the tokenizer put its own around texts.
        pads_to_limit: fill inputs up with padding tokens, which the model reads like others: to
            ``truncate_prompt_tokens`` if given, else to the longest input that the model takes.
    """

    priority: int = 0
    cache_salt: str | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Side = "right"
    add_special_tokens: bool = True
    pads_to_limit: bool = False


class PoolingProcessor:
    """Checks pooling requests and turns them into requests for the engine. May be used from any thread.

    Args:
        tokenizer: None if prompts are token ids.
        pair_template: see :attr:`PoolingSpec.pair_template`, which it replaces.
    """

    def __init__(self, info: EngineInfo, tokenizer: Tokenizer | None, pair_template: str | None = None) -> None:
        self._info = info
        self._tokenizer = tokenizer
        self._pair_template = pair_template

    @property
    def spec(self) -> PoolingSpec:
        """The pooling of the model."""
        if self._info.pooling is None:
            raise InvalidRequestError(NOT_A_POOLING_MODEL)
        return self._info.pooling

    @property
    def pair_template(self) -> str:
        """Template of a prompt with a query and a document; empty if they are framed as the tokenizer does."""
        return self._pair_template or self.spec.pair_template

    @property
    def max_model_len(self) -> int:
        """Longest prompt, in tokens."""
        return self._info.max_model_len

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        if self._tokenizer is None:
            raise InvalidRequestError("The engine runs without a tokenizer; give token ids.", "prompt")
        return self._tokenizer

    def process(
        self,
        request_id: str,
        prompt: PromptType,
        params: PoolingParams | None = None,
        task: PoolingTask | None = None,
        options: PoolingOptions = PoolingOptions(),
    ) -> PreparedRequest:
        """Check and tokenise one request; ``params`` is left as it is.

        Args:
            params: None takes the defaults.
            task: what is meant if ``params`` does not say; None is what the model is made for.

        Raises:
            PromptTooLongError: the prompt does not fit.
        """
        request = self.resolve(params, task)
        parsed = self._read(prompt, options)
        return self.prepare(
            request_id, parsed.text, parsed.token_ids, request, params, options, parsed.cache_salt, parsed.embeds
        )

    def resolve(self, params: PoolingParams | None, task: PoolingTask | None = None) -> PoolingRequest:
        """What the engine is to do; arguments and errors as of :meth:`process`."""
        spec = self.spec
        params = PoolingParams() if params is None else params
        if not isinstance(params, PoolingParams):
            raise InvalidRequestError(
                f"Pooling parameters must be PoolingParams, got {type(params).__name__}.", "pooling_params"
            )
        params.verify()
        wanted = params.task or task or spec.tasks[0]
        is_embedding = wanted in ("embed", "token_embed")
        if wanted not in spec.tasks:
            raise _unsupported_task(wanted, spec)
        if params.dimensions is not None:
            self._check_dimensions(spec, params.dimensions, is_embedding)
        use_activation = params.use_activation
        if use_activation is None:
            use_activation = spec.normalize if is_embedding else True
        return PoolingRequest(wanted, use_activation, params.dimensions)

    def prepare(
        self,
        request_id: str,
        text: str | None,
        token_ids: list[int],
        request: PoolingRequest,
        params: PoolingParams | None = None,
        options: PoolingOptions = PoolingOptions(),
        cache_salt: str | None = None,
        prompt_embeds: PromptEmbeds | None = None,
    ) -> PreparedRequest:
        """The request for tokens, or vectors, that are there already; errors as of :meth:`process`."""
        if not token_ids:
            raise InvalidRequestError("The prompt is empty: it has no tokens.", "prompt")
        if len(token_ids) > self._info.max_model_len:
            raise PromptTooLongError(
                len(token_ids),
                self._info.max_model_len,
                advice="Shorten it, or let it be cut with truncate_prompt_tokens = -1.",
            )
        check_token_ids(token_ids, self._info.vocab_size, "prompt")
        is_whole = params is not None and params.skip_reading_prefix_cache
        sampling = SamplingParams(
            max_tokens=None,
            detokenize=False,
            skip_reading_prefix_cache=bool(is_whole) or self.spec.needs_all_tokens(request.task),
        )
        arrival_time = time.time()
        child = EngineRequest(
            request_id=request_id,
            prompt_token_ids=as_token_ids(token_ids),
            params=sampling,
            priority=options.priority,
            arrival_time=arrival_time,
            cache_salt=checked_salt(options.cache_salt or cache_salt),
            pooling=request,
            prompt_embeds=prompt_embeds,
        )
        return PreparedRequest(request_id, text, token_ids, sampling, [child], arrival_time)

    def limit(self, options: PoolingOptions) -> int | None:
        """Most tokens to keep; None to refuse what is too long."""
        wanted, longest = options.truncate_prompt_tokens, self._info.max_model_len
        if wanted is None or wanted == -1:
            return None if wanted is None else longest
        if isinstance(wanted, int) and wanted > longest:
            raise InvalidRequestError(TRUNCATION_TOO_LARGE, "truncate_prompt_tokens")
        if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
            raise InvalidRequestError(
                f"truncate_prompt_tokens must be between 1 and {longest}, or -1 for the latter, got {wanted}.",
                "truncate_prompt_tokens",
            )
        return wanted

    def _read(self, prompt: object, options: PoolingOptions) -> ParsedPrompt:
        """A prompt in any of its shapes."""
        text: str | None = None
        given: object = prompt
        salt: str | None = None
        if isinstance(prompt, Mapping):
            check_prompt_keys(prompt)
            if prompt.get("prompt_embeds") is not None:
                return self._read_embeds(prompt, options)
            given, salt = prompt.get("prompt_token_ids"), prompt.get("cache_salt")
            text = prompt.get("prompt") if isinstance(prompt.get("prompt"), str) else None
            given = text if given is None else given
        salt = checked_salt(salt)
        limit = self.limit(options)
        if isinstance(given, str):
            side, has_frame = options.truncation_side, options.add_special_tokens
            ids = encode_text(self.tokenizer, given, limit=limit, side=side, add_special_tokens=has_frame)
            return ParsedPrompt(self._padded(ids, options), given, salt)
        if not isinstance(given, Sequence) or isinstance(given, bytes | bytearray):
            raise InvalidRequestError(
                "An input must be a string, a list of token ids, or a dictionary with prompt or prompt_token_ids.",
                "prompt",
            )
        ids = plain_ints(given, "prompt")
        if limit is not None:
            ids = cut(ids, limit, options.truncation_side)
        return ParsedPrompt(self._padded(ids, options), text, salt)

    def _padded(self, ids: list[int], options: PoolingOptions) -> list[int]:
        if not options.pads_to_limit:
            return ids
        pad = self.tokenizer.pad_token_id
        if pad is None:
            raise InvalidRequestError("padding: the model's tokenizer has no padding token.", "padding")
        return ids + [pad] * ((self.limit(options) or self._info.max_model_len) - len(ids))

    def _read_embeds(self, prompt: Mapping[str, Any], options: PoolingOptions) -> ParsedPrompt:
        if self.spec.is_encoder:
            raise InvalidRequestError("An encoder reads text or token ids, not prompt_embeds.", "prompt_embeds")
        return embeds_prompt(prompt, self._info.embeds_size, options.truncate_prompt_tokens)

    def _check_dimensions(self, spec: PoolingSpec, dimensions: int, is_embedding: bool) -> None:
        size = spec.output_size
        if not is_embedding:
            raise InvalidRequestError("dimensions are for embeddings; this request is for classes.", "dimensions")
        if dimensions == size:
            return
        if spec.dimensions == []:
            raise InvalidRequestError(
                f"The model's embeddings have {size} dimensions and were not trained to be cut (Matryoshka); leave "
                "dimensions out.",
                "dimensions",
            )
        if spec.dimensions is not None and dimensions not in spec.dimensions:
            known = ", ".join(map(str, spec.dimensions))
            raise InvalidRequestError(f"dimensions must be one of {known}, got {dimensions}.", "dimensions")
        if dimensions > size:
            raise InvalidRequestError(
                f"dimensions must be at most {size}, the model's own, got {dimensions}.", "dimensions"
            )


def with_query(request: PoolingRequest, query: PooledData) -> PoolingRequest:
    """The same request, but for how well its tokens match a query's."""
    return PoolingRequest(request.task, request.use_activation, request.dimensions, query=query)


def _unsupported_task(task: str, spec: PoolingSpec) -> InvalidRequestError:
    """Begins as vLLM's errors do, which clients compare."""
    if task == "plugin":
        return InvalidRequestError(NO_PLUGIN, "task")
    able = " or ".join(repr(name) for name in spec.tasks)
    api = "Embedding" if "embed" in task else "Classification"
    return InvalidRequestError(
        f"Unsupported task: {task!r}; {api} API is not supported by this model, which is made for the task {able}.",
        "task",
    )
