"""``/inference/v1/generate``: tokens in, tokens out."""

import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.types import Send

from octavo.api import pieces
from octavo.api.answer_size import check_prompt_entries
from octavo.api.frontend import Frontend, engine_id
from octavo.api.json_body import in_thread_if_large
from octavo.api.logprobs import ChatLogprobs, chat_logprobs, finite, finite_prompt_logprobs
from octavo.api.middleware import clean_request_id, owner_of
from octavo.api.pieces import ListWriter, encode_event
from octavo.api.request_body import AbortRequest, reject_unsupported
from octavo.api.routed_experts import num_entries as num_expert_entries
from octavo.api.routed_experts import routed_experts
from octavo.api.scale_out.message import DerenderedAnswer
from octavo.api.scale_out.protocol import (
    UNSUPPORTED,
    GenerateAnswer,
    GenerateChoice,
    GenerateChunk,
    GenerateRequest,
    PositionLogprobs,
    TokenLogprob,
    TokensLogprobs,
)
from octavo.api.usage import UsageCounter
from octavo.api.watched import WatchedResponse, last_items, send_json
from octavo.errors import InvalidRequestError
from octavo.records import (
    CompletionOutput,
    RequestOutput,
    RequestOutputKind,
    SampleLogprobs,
    SamplingParams,
    StructuredOutputsParams,
)

_FIELDS = frozenset(SamplingParams.__struct_fields__)
# How the answer is sent is the request's business, not the parameters'.
_IGNORED_FIELDS = frozenset({"output_kind", "detokenize"})
_EMPTY: tuple[object, ...] = (None, False, "", 0, [], {})


def generate_router(frontend: Frontend) -> APIRouter:
    """The route that generates from token ids."""
    router = frontend.json_router("tokens")
    running = RunningRequests()

    @router.post("/inference/v1/generate", summary="Generate from token ids.")
    async def generate(body: GenerateRequest, request: Request) -> Response:
        model = frontend.check_model(body.model)
        reject_unsupported(body, UNSUPPORTED)
        if body.stream_options is not None and not body.stream:
            raise InvalidRequestError("stream_options are for streams; set stream to true.", "stream_options")
        name = request_name(request, body.request_id)
        if body.output_mode == "derender":
            return await derendered(body, request, name, model)
        answer = await in_thread_if_large(request, partial(TokensAnswer, frontend, body, name, model))
        source = answer.start()

        async def work(send: Send) -> None:
            with running.entered(owner_of(request.scope), name, answer.engine_id):
                if body.stream:
                    await frontend.send_events(send, answer.events(source))
                else:
                    await send_json(send, await answer.whole((await last_items([source]))[0]))

        return WatchedResponse(work, frontend.drain)

    async def derendered(body: GenerateRequest, request: Request, name: str, model: str) -> Response:
        if body.stream:
            raise InvalidRequestError("output_mode derender has no stream; set stream to false.", "stream")
        params = generation_params(frontend, body)
        answer = await in_thread_if_large(request, partial(DerenderedAnswer, frontend, body, params, name, model))

        async def work(send: Send) -> None:
            with running.entered(owner_of(request.scope), name, answer.turn.engine_id):
                await send_json(send, await answer.whole())

        return WatchedResponse(work, frontend.drain)

    @router.post("/inference/v1/abort_requests", summary="End answers of /inference/v1/generate with what there is.")
    async def abort_requests(body: AbortRequest, request: Request) -> Response:
        for engine_request in running.found(owner_of(request.scope), body.request_ids):
            await frontend.engine.abort(engine_request)
        return Response()

    return router


class RunningRequests:
    """Requests in flight, by the names that their clients know."""

    def __init__(self) -> None:
        self._engine_ids: dict[tuple[str, str], set[str]] = {}

    @contextmanager
    def entered(self, owner: str, name: str, engine_request: str) -> Iterator[None]:
        """Register a request for the duration of the context."""
        ids = self._engine_ids.setdefault((owner, name), set())
        ids.add(engine_request)
        try:
            yield
        finally:
            ids.discard(engine_request)
            if not ids:
                self._engine_ids.pop((owner, name), None)

    def found(self, owner: str, names: Iterable[str]) -> list[str]:
        """The engine's ids of an owner's requests of these names; unknown names are ignored."""
        return [engine_request for name in names for engine_request in self._engine_ids.get((owner, name), ())]


def request_name(request: Request, body_id: str | None) -> str:
    """What the client calls its request, by body or header, else something new."""
    given = clean_request_id(body_id) or clean_request_id(request.headers.get("x-request-id"))
    return given or uuid.uuid4().hex


def read_sampling_params(given: dict[str, Any], *, is_text_wanted: bool) -> SamplingParams:
    """Sampling parameters as a client writes them in JSON."""
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name in _IGNORED_FIELDS:
            continue
        if name in _FIELDS:
            values[name] = value
        elif not name.startswith("_") and value not in _EMPTY:
            raise InvalidRequestError(f"sampling_params has no field {name[:40]!r}.", "sampling_params")
    try:
        params = msgspec.convert(values, SamplingParams, str_keys=True)
        # Free-form values must be such that the engine's process can be sent them.
        msgspec.msgpack.encode(params)
    except (msgspec.ValidationError, OverflowError) as error:
        sentence = str(error)
        raise InvalidRequestError(f"sampling_params: {sentence.rstrip('.')}.", "sampling_params") from None
    if given.get("detokenize") is False and (is_text_wanted or params.stop_strings):
        what = "output_mode asks for text" if is_text_wanted else "stop strings are found in text"
        raise InvalidRequestError(f"sampling_params.detokenize is false, but {what}.", "sampling_params.detokenize")
    # Stop strings are found in text, and log-probabilities of a prompt show how its tokens read.
    shows_prompt = params.prompt_logprobs is not None and given.get("detokenize") is not False
    params.detokenize = is_text_wanted or bool(params.stop_strings) or shows_prompt
    return params


def generation_params(frontend: Frontend, body: GenerateRequest) -> SamplingParams:
    """The parameters of a request; without ``max_tokens`` an answer may fill the context."""
    is_text = body.output_mode != "tokens"
    if is_text:
        frontend.need_tokenizer()
    params = read_sampling_params({"max_tokens": None, **body.sampling_params}, is_text_wanted=is_text)
    params.output_kind = RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY
    if body.stream and params.prompt_logprobs is not None:
        raise InvalidRequestError(
            "prompt_logprobs are not sent in streams; set stream to false.", "sampling_params.prompt_logprobs"
        )
    check_prompt_entries(params, len(body.token_ids), frontend.engine.info.vocab_size)
    if params.structured_outputs is not None and body.reasoning_ended is not None:
        params.structured_outputs = _settle_reasoning(frontend, params.structured_outputs, body.reasoning_ended)
    return params


def _settle_reasoning(
    frontend: Frontend, constraint: StructuredOutputsParams, has_ended: bool
) -> StructuredOutputsParams:
    """The constraint, for an answer that begins after the model's reasoning or with it."""
    if has_ended:
        return msgspec.structs.replace(constraint, start_after=None, start_after_tail=None, openers=None)
    reasoning = frontend.formats().reasoning
    if constraint.start_after or reasoning is None:
        return constraint
    end = frontend.need_tokenizer().encode(reasoning.end_tags[0], False)
    return msgspec.structs.replace(constraint, start_after=end)


class TokensAnswer:
    """Builds the answer to one request, whole or in events."""

    def __init__(self, frontend: Frontend, body: GenerateRequest, name: str, model: str) -> None:
        self._frontend = frontend
        self._body = body
        self._name = name
        self._model = model
        self._is_text = body.output_mode == "text"
        self._params = generation_params(frontend, body)
        self.engine_id = engine_id(name, 0)
        self._usage = UsageCounter(1, frontend.settings.enable_prompt_tokens_details)

    def start(self) -> AsyncGenerator[RequestOutput, None]:
        """The generator of outputs; nothing runs before it is iterated."""
        return self._frontend.engine.generate(
            self._body.token_ids,
            self._params,
            self.engine_id,
            priority=self._body.priority,
            cache_salt=self._body.cache_salt,
            clip_max_tokens=False,
        )

    async def whole(self, output: RequestOutput) -> list[bytes]:
        """The answer as JSON, in pieces, from the final output."""
        self._usage.add_output(0, output)
        num_entries = pieces.num_entries(output.prompt_logprobs)
        for completion in output.outputs:
            num_entries += len(completion.token_ids) + pieces.num_entries(completion.logprobs)
            num_entries += num_expert_entries(completion)
        return await pieces.write(num_entries, partial(self._whole, output))

    def _whole(self, output: RequestOutput, write: ListWriter) -> GenerateAnswer:
        answer = GenerateAnswer(
            request_id=self._name,
            output_mode=self._body.output_mode,
            model=self._model,
            created=int(time.time()),
            choices=[self._choice(completion, write) for completion in output.outputs],
            usage=self._usage.usage(),
        )
        if self._body.return_token_ids:
            answer.prompt_token_ids = self._body.token_ids
        if output.prompt_logprobs is not None:
            answer.prompt_logprobs = write(finite_prompt_logprobs(output.prompt_logprobs))
        return answer

    async def events(self, source: AsyncGenerator[RequestOutput, None]) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events, as outputs come."""
        options = self._body.stream_options
        is_first = True
        async with aclosing(source) as outputs:
            async for output in outputs:
                self._usage.add_output(0, output)
                chunk = self._chunk([self._choice(completion) for completion in output.outputs])
                if options and options.continuous_usage_stats:
                    chunk.usage = self._usage.usage()
                if is_first and self._body.return_token_ids:
                    chunk.prompt_token_ids = self._body.token_ids
                is_first = False
                yield encode_event(chunk)
        if options and options.include_usage:
            chunk = self._chunk([])
            chunk.usage = self._usage.usage()
            yield encode_event(chunk)

    def _chunk(self, choices: list[GenerateChoice]) -> GenerateChunk:
        return GenerateChunk(request_id=self._name, output_mode=self._body.output_mode, choices=choices)

    def _choice(self, completion: CompletionOutput, write: ListWriter = list) -> GenerateChoice:
        choice = GenerateChoice(
            completion.index,
            list(completion.token_ids),
            completion.finish_reason,
            completion.stop_reason,
            self._logprobs(completion, write),
            routed_experts=routed_experts(completion),
        )
        if self._is_text:
            choice.text = completion.text
        return choice

    def _logprobs(self, completion: CompletionOutput, write: ListWriter) -> TokensLogprobs | ChatLogprobs | None:
        if completion.logprobs is None or self._params.logprobs is None:
            return None
        if self._is_text:
            tokenizer = self._frontend.engine.tokenizer
            positions = chat_logprobs(completion.token_ids, completion.logprobs, self._params.logprobs, tokenizer)
            return ChatLogprobs(write(positions))
        return TokensLogprobs(write(tokens_logprobs(completion.token_ids, completion.logprobs)))


def tokens_logprobs(token_ids: Sequence[int], positions: SampleLogprobs) -> Iterator[PositionLogprobs]:
    """Log-probabilities by token id: per position the chosen token, then the candidates by rank."""
    for token_id, candidates in zip(token_ids, positions, strict=False):
        entries = [TokenLogprob(other, finite(entry.logprob), entry.rank) for other, entry in candidates.items()]
        entries.sort(key=lambda entry: (entry.token_id != token_id, -entry.logprob))
        chosen = candidates.get(token_id)
        logprob, rank = (finite(chosen.logprob), chosen.rank) if chosen else (finite(float("-inf")), None)
        yield PositionLogprobs(token_id, logprob, rank, entries)
