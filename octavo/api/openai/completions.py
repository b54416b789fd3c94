"""``/v1/completions``."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from itertools import chain

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.types import Send

from octavo.api import pieces
from octavo.api.answer_size import check_prompt_entries, check_repeated_text
from octavo.api.beam_search import text_outputs
from octavo.api.frontend import SHORT_TEXT, Frontend, answer_id, engine_id
from octavo.api.json_body import in_thread_if_large
from octavo.api.logprobs import finite_prompt_logprobs
from octavo.api.openai.answers import CompletionChoice, CompletionLogprobs, CompletionResponse, TextEvents
from octavo.api.openai.logprobs import completion_logprobs
from octavo.api.openai.protocol import CompletionRequest
from octavo.api.openai.sampling import (
    beam_length_penalty,
    completion_params,
    completion_prompts,
    embeds_prompts,
    engine_prompts,
    refuse_unsupported,
    returns_prompt_only,
)
from octavo.api.pieces import ListWriter, encode_event
from octavo.api.routed_experts import num_entries as num_expert_entries
from octavo.api.routed_experts import routed_experts
from octavo.api.usage import RequestMetrics, StreamedMetrics, UsageCounter, UsageMode, request_metrics
from octavo.api.watched import WatchedResponse, direct_writer, last_items, merge, send_json
from octavo.inputs.embeds import decode_embeds
from octavo.inputs.reasoning import PROMPT_END_CHARACTERS
from octavo.outputs.parsers.base import PromptEnd
from octavo.outputs.stream import TextTaker
from octavo.records import (
    CompletionOutput,
    EmbedsPrompt,
    Logprob,
    PromptLogprobs,
    RequestOutput,
    SamplingParams,
    TokensPrompt,
)
from octavo.tokenization.tokenizer import Tokenizer

Prompt = str | list[int] | TokensPrompt | EmbedsPrompt


def completions_router(frontend: Frontend) -> APIRouter:
    """The route that completes prompts."""
    router = frontend.json_router("completions", "/v1/completions")

    @router.post("", summary="Complete one or several prompts.")
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        model = frontend.check_model(body.model)
        refuse_unsupported(body)
        name = answer_id("cmpl", request, body.request_id)
        answer = await in_thread_if_large(request, partial(CompletionAnswer, frontend, body, name, model))
        prompts = await answer.start()

        async def work(send: Send) -> None:
            if body.stream:
                await frontend.send_events(send, answer.events(prompts, send))
            else:
                await send_json(send, await answer.whole(await last_items(answer.outputs(prompts))))

        return WatchedResponse(work, frontend.drain)

    return router


class CompletionAnswer:
    """Builds the answer, whole or in events; completion ``i`` of prompt ``p`` is choice ``p · n + i``.

    Args:
        metrics: what the server measured that generated the answer; None if it is this one.
    """

    def __init__(
        self,
        frontend: Frontend,
        body: CompletionRequest,
        answer: str,
        model: str,
        *,
        metrics: RequestMetrics | None = None,
    ) -> None:
        self._frontend = frontend
        self._body = body
        self._id = answer
        self._params = completion_params(body, frontend.engine.input_processor.default_sampling_params())
        self._embeds = embeds_prompts(body)
        self._prompts = [] if self._embeds else completion_prompts(body)
        self._echoes: list[str] = []
        self._is_prompt_only = returns_prompt_only(body)
        self._prompt_logprobs: dict[int, PromptLogprobs] = {}
        self._text_offsets: dict[int, int] = {}
        self._usage = UsageCounter(len(self._embeds or self._prompts), frontend.settings.enable_prompt_tokens_details)
        self._usage_mode = UsageMode.of(body.stream_options, frontend.settings)
        self._has_details = self._params.logprobs is not None or bool(body.return_token_ids)
        self._text_events: dict[int, TextEvents] = {}
        self._given_metrics = metrics
        # With several prompts there would be one set of metrics per prompt.
        self._has_metrics = frontend.settings.enable_per_request_metrics and self._usage.num_prompts == 1
        self._new_completion = partial(
            CompletionResponse, answer, int(time.time()), model, system_fingerprint=frontend.fingerprint
        )

    async def start(self) -> list[Prompt]:
        """The prompts as the engine takes them."""
        body = self._body
        if self._embeds:
            return [EmbedsPrompt(prompt_embeds=await asyncio.to_thread(decode_embeds, text)) for text in self._embeds]
        needs_prompts = self._params.prompt_logprobs is not None or bool(body.return_token_ids)
        inputs = await engine_prompts(
            self._frontend, body, self._prompts, body.add_special_tokens, are_counted=needs_prompts
        )
        if needs_prompts:
            num_tokens = sum(len(token_ids_of(prompt)) for prompt in inputs)
            check_prompt_entries(
                self._params,
                num_tokens,
                self._frontend.engine.info.vocab_size,
                num_copies=self._params.n,
                has_token_ids=bool(body.return_token_ids),
            )
        if body.echo:
            num_tokens = sum(0 if isinstance(prompt, str) else len(token_ids_of(prompt)) for prompt in inputs)
            if num_tokens < SHORT_TEXT:
                self._echoes = list(map(self._text_of, inputs))
            else:
                self._echoes = await asyncio.to_thread(lambda: list(map(self._text_of, inputs)))
            check_repeated_text(sum(map(len, self._echoes)), self._params.n, "echo")
        return [*inputs]

    def outputs(
        self, prompts: Sequence[Prompt], take_text: TextTaker | None = None
    ) -> list[AsyncGenerator[RequestOutput, None]]:
        """One generator of outputs per prompt; nothing runs before they are iterated.

        Args:
            take_text: may be offered tokens with their text; those that it takes are in no output.
        """
        length_penalty = beam_length_penalty(self._body)
        return [
            text_outputs(
                self._frontend.engine,
                prompt,
                self._params if length_penalty is not None else self._params_for(prompt),
                length_penalty,
                engine_id(self._id, index),
                priority=self._body.priority,
                cache_salt=self._body.cache_salt,
                take_text=take_text,
            )
            for index, prompt in enumerate(prompts)
        ]

    def _params_for(self, prompt: Prompt) -> SamplingParams:
        """The parameters; with a limit on reasoning, they include whether the prompt leaves reasoning open."""
        tokenizer = self._frontend.engine.tokenizer
        if self._params.thinking_token_budget is None or tokenizer is None:
            return self._params
        end = PromptEnd(_end_of(prompt, tokenizer)[-PROMPT_END_CHARACTERS:])
        tags = self._frontend.formats().reasoning_tags(end, tokenizer)
        return msgspec.structs.replace(self._params, reasoning_tags=tags)

    def _text_of(self, prompt: str | list[int] | TokensPrompt) -> str:
        if isinstance(prompt, str):
            return prompt
        if isinstance(prompt, dict) and self._body.truncate_prompt_tokens is None and "prompt" in prompt:
            return prompt["prompt"]
        # Without a tokenizer answers have no text either; who wants the prompt's tokens asks for return_token_ids.
        return self._frontend.text_of(token_ids_of(prompt)) if self._frontend.engine.tokenizer is not None else ""

    async def whole(self, outputs: Sequence[RequestOutput]) -> list[bytes]:
        """The answer as JSON, in pieces, from the final output of every prompt."""
        num_entries = 0
        for output in outputs:
            num_prompt = pieces.num_entries(output.prompt_logprobs)
            if self._body.return_token_ids:
                num_prompt += len(output.prompt_token_ids or ())
            for completion in output.outputs:
                num_entries += 1 + num_prompt + pieces.num_entries(completion.logprobs)
                num_entries += num_expert_entries(completion)
        return await pieces.write(num_entries, partial(self._whole, outputs))

    def _whole(self, outputs: Sequence[RequestOutput], write: ListWriter) -> CompletionResponse:
        choices = []
        for prompt_index, output in enumerate(outputs):
            self._account(prompt_index, output)
            for completion in output.outputs:
                choice = self._choice(prompt_index, output, completion, write)
                _tell_absent(choice)
                choice.routed_experts = routed_experts(completion)
                if self._body.prompt_logprobs is not None and output.prompt_logprobs is not None:
                    choice.prompt_logprobs = write(finite_prompt_logprobs(output.prompt_logprobs))
                choices.append(choice)
        answer = self._new_completion(choices, usage=self._usage.usage(), kv_transfer_params=None)
        if self._given_metrics is not None:
            answer.metrics = self._given_metrics
        elif self._has_metrics:
            answer.metrics = request_metrics(outputs[0], self._params.n)
        return answer

    async def events(self, prompts: Sequence[Prompt], send: Send) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events; those that say only a token's text go out by ``send`` on the spot."""
        # With several prompts, earlier outputs of one may wait for their turn in the merge.
        is_plain = len(prompts) == 1 and not self._has_details and not self._is_prompt_only
        take_text = direct_writer(send, self._text_event) if is_plain else None
        async with aclosing(merge(self.outputs(prompts, take_text))) as outputs:
            last: RequestOutput | None = None
            async for prompt_index, last in outputs:
                if data := self._events(prompt_index, last):
                    yield data
        if self._usage_mode.is_sent or self._has_metrics:
            closing = self._new_completion([])
            if self._usage_mode.is_sent:
                closing.usage = self._usage.usage()
            if self._has_metrics and last is not None:
                closing.metrics = request_metrics(last, self._params.n, StreamedMetrics)
            yield encode_event(closing)

    def _text_event(self, index: int, token_id: int, text: str) -> bytes:
        """The event with the text that a token adds to a completion of the only prompt."""
        self._usage.add_token(index)
        if not text:
            return b""
        if self._usage_mode.is_continuous:
            return self._event(CompletionChoice(index, text))
        events = self._text_events.get(index)
        if events is None:
            events = self._text_events[index] = TextEvents(self._event(CompletionChoice(index, TextEvents.MARK)))
        return events.event(text)

    def _event(self, choice: CompletionChoice) -> bytes:
        usage = self._usage_mode.within(self._usage, *divmod(choice.index, self._params.n))
        return encode_event(self._new_completion([choice], usage=usage))

    def _events(self, prompt_index: int, output: RequestOutput) -> bytes:
        """Events with what is new of a prompt's completions."""
        self._account(prompt_index, output)
        events = []
        for completion in output.outputs:
            choice = self._choice(prompt_index, output, completion)
            if choice.text or choice.finish_reason is not None or self._has_details:
                events.append(self._event(choice))
        return b"".join(events)

    def _account(self, prompt_index: int, output: RequestOutput) -> None:
        self._usage.add_output(prompt_index, output, counts_output=not self._is_prompt_only)
        if output.prompt_logprobs is not None:
            self._prompt_logprobs[prompt_index] = output.prompt_logprobs

    def _choice(
        self, prompt_index: int, output: RequestOutput, completion: CompletionOutput, write: ListWriter = list
    ) -> CompletionChoice:
        body = self._body
        choice = CompletionChoice(prompt_index * self._params.n + completion.index, completion.text)
        token_ids: Sequence[int] = completion.token_ids
        positions: Iterable[dict[int, Logprob] | None] = completion.logprobs or ()
        choice.finish_reason, choice.stop_reason = completion.finish_reason, completion.stop_reason
        if self._is_prompt_only:
            choice.text, token_ids, positions = "", [], ()
        if body.return_token_ids:
            choice.token_ids = list(token_ids)
        is_first = choice.index not in self._text_offsets
        if is_first:
            self._text_offsets[choice.index] = 0
            if body.return_token_ids:
                choice.prompt_token_ids = output.prompt_token_ids or []
            if body.echo:
                choice.text = self._echoes[prompt_index] + choice.text
                token_ids = [*(output.prompt_token_ids or []), *token_ids]
                positions = chain(self._prompt_logprobs.get(prompt_index, ()), positions)
        if body.logprobs is not None:
            choice.logprobs = self._logprobs(choice.index, token_ids, positions, write)
        return choice

    def _logprobs(
        self,
        choice: int,
        token_ids: Sequence[int],
        positions: Iterable[dict[int, Logprob] | None],
        write: ListWriter,
    ) -> CompletionLogprobs:
        as_ids = bool(self._body.return_tokens_as_token_ids or self._frontend.settings.return_tokens_as_token_ids)
        tokenizer = self._frontend.engine.tokenizer
        logprobs, self._text_offsets[choice] = completion_logprobs(
            token_ids, positions, tokenizer, self._text_offsets[choice], as_ids, write
        )
        return logprobs


def _tell_absent(choice: CompletionChoice) -> None:
    """Set fields that were not requested to null, as vLLM does in whole answers; stream events omit them."""
    for name in ("token_ids", "prompt_token_ids", "prompt_logprobs"):
        if getattr(choice, name) is msgspec.UNSET:
            setattr(choice, name, None)


def token_ids_of(prompt: str | list[int] | TokensPrompt) -> list[int]:
    """The tokens of a prompt that was tokenised."""
    assert not isinstance(prompt, str)
    return prompt if isinstance(prompt, list) else prompt["prompt_token_ids"]


def _end_of(prompt: Prompt, tokenizer: Tokenizer) -> str:
    """The text of a prompt's end at least."""
    if isinstance(prompt, str):
        return prompt
    token_ids = prompt if isinstance(prompt, list) else prompt.get("prompt_token_ids")
    if not isinstance(token_ids, list):
        return ""  # vectors
    return tokenizer.decode(token_ids[-PROMPT_END_CHARACTERS:], skip_special_tokens=False)
