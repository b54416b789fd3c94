"""An engine without a model: it answers every prompt with a text it was given, a byte at a time."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import tokenizers

from octavo.config import ModelSettings
from octavo.errors import EngineDeadError, OverloadedError, RequestFailedError
from octavo.inputs.chat import ChatRenderer
from octavo.inputs.pooling import PoolingProcessor
from octavo.inputs.processor import InputProcessor
from octavo.outputs.stream import TextTaker
from octavo.records import (
    CompletionOutput,
    EngineInfo,
    Logprob,
    PromptType,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
)
from octavo.telemetry.metrics import Metrics
from octavo.tokenization.tokenizer import SpecialTokens, Tokenizer

TEMPLATE = """
{%- if messages[0].content == "raise" %}{{ raise_exception("no such talk.") }}{% endif -%}
{%- if messages[0].content == "loop" %}{% for a in range(50000) %}{% for b in range(50000) %}{{ b }}{% endfor %}
{%- endfor %}{% endif -%}
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor -%}
{%- if tools %}tools: {{ tools | length }}
{% endif -%}
{%- if documents %}documents: {{ documents | length }}
{% endif -%}
{%- if mood is defined %}mood: {{ mood }}
{% endif -%}
{%- if add_generation_prompt %}assistant: {% endif -%}
"""
REPLY = "Grüße, 世界! 😀 bye"
FAILURES = {
    "overload": OverloadedError("The queue is full."),
    "dead": EngineDeadError("The engine stopped."),
    "bug": RuntimeError("secret detail"),
}


def byte_tokenizer() -> Tokenizer:
    """One token a byte, plus an end token."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken("<|end|>", special=True)])
    return Tokenizer(backend, SpecialTokens({"eos_token": "<|end|>"}), {"default": TEMPLATE})


class FakeEngine:
    """Attributes tests look at: ``calls`` (what was asked), ``num_aborted``, ``num_running``."""

    def __init__(self, reply: str = REPLY, step_seconds: float = 0.0) -> None:
        self.reply = reply
        self.step_seconds = step_seconds
        self.model_name = "fake/model"
        self.model_settings = ModelSettings(model=self.model_name)
        self.info = EngineInfo(1 << 17, 257, 100, 16, 8, True)
        self.metrics = Metrics(self.model_name)
        self.tokenizer: Tokenizer | None = byte_tokenizer()
        self.input_processor = InputProcessor(
            self.info, self.tokenizer, eos_token_ids=[256], default_params={}, max_logprobs=20, seed=0
        )
        self.pooling_processor = PoolingProcessor(self.info, self.tokenizer)
        self.chat_renderer: ChatRenderer | None = ChatRenderer(self.tokenizer)
        self.is_healthy = True
        self.fault: str | None = None
        self.calls: list[dict[str, Any]] = []
        self.num_running = 0
        self.num_aborted = 0
        self.ended_early: list[str] = []

    async def abort(self, request_id: str) -> None:
        self.ended_early.append(request_id)

    async def generate(
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
        prepared = self.input_processor.process(
            request_id, prompt, sampling_params, cache_salt=cache_salt, clip_max_tokens=clip_max_tokens
        )
        params, text, prompt_ids = prepared.params, prepared.prompt_text or "", prepared.prompt_token_ids
        call = {"prompt": text, "prompt_token_ids": prompt_ids, "params": params, "request_id": request_id}
        self.calls.append({**call, "priority": priority, "cache_salt": cache_salt})
        if text in FAILURES:
            raise FAILURES[text]
        self.num_running += 1
        is_done = False
        try:
            async for output in self._outputs(text, prompt_ids, params, request_id):
                # Whoever asks for the next output has done with the earlier ones.
                if take_text is None or output.finished or params.output_kind != RequestOutputKind.DELTA:
                    yield output
                    continue
                output.outputs = [
                    completion
                    for completion in output.outputs
                    if not take_text(completion.index, completion.token_ids[0], completion.text)
                ]
                if output.outputs:
                    yield output
            is_done = True
        finally:
            # In this order: a test in another thread may look in between.
            self.num_aborted += not is_done
            self.num_running -= 1

    async def _outputs(
        self, text: str, prompt_ids: list[int], params: SamplingParams, request_id: str
    ) -> AsyncGenerator[RequestOutput, None]:
        assert self.tokenizer is not None
        stop = next((text for text in params.stop_strings if text in self.reply), None)
        reply_ids = self.tokenizer.encode(self.reply if stop is None else self.reply[: self.reply.index(stop)])
        limit = params.max_tokens or self.info.max_model_len
        if params.ignore_eos:
            reply_ids = (reply_ids * (limit // len(reply_ids) + 1))[:limit]
        num_tokens = min(limit, len(reply_ids))
        reason = "length" if num_tokens == limit else "stop"
        sent_chars, sent_tokens = 0, 0
        is_delta = params.output_kind == RequestOutputKind.DELTA
        prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        if params.prompt_logprobs is not None:
            prompt_logprobs = [None, *[self._candidates(token, params.prompt_logprobs) for token in prompt_ids[1:]]]
        for count in range(1, num_tokens + 1):
            await asyncio.sleep(self.step_seconds)
            if text == "fail late" and count == 4:
                raise RequestFailedError("The step produced NaN.")
            is_cut = request_id in self.ended_early
            is_last = count == num_tokens or is_cut
            reason = "abort" if is_cut else reason
            if not (is_delta or is_last):
                continue
            if params.ignore_eos:
                new_text = "tick"  # long replies are about volume
            else:
                whole = self.tokenizer.decode(reply_ids[:count])
                new_text = "" if whole.endswith("\ufffd") and not is_last else whole[sent_chars:]
                sent_chars += len(new_text)
            new_ids = reply_ids[sent_tokens:count]
            sent_tokens = count
            logprobs = None
            if params.logprobs is not None:
                logprobs = [self._candidates(token, params.logprobs) for token in new_ids]
            completions = [
                CompletionOutput(
                    i,
                    new_text,
                    new_ids,
                    0.0,
                    logprobs,
                    finish_reason=reason if is_last else None,
                    stop_reason=stop if is_last else None,
                )
                for i in range(params.n)
            ]
            yield RequestOutput(
                request_id, text, prompt_ids, prompt_logprobs, completions, is_last, num_cached_tokens=3
            )
            prompt_logprobs = None
            if is_cut:
                return

    def _candidates(self, token_id: int, num_top: int) -> dict[int, Logprob]:
        assert self.tokenizer is not None
        ids = [token_id, *[i for i in range(num_top + 1) if i != token_id]][: num_top + 1]
        found = {i: Logprob(-0.5 - 0.25 * k, k + 1, self.tokenizer.token_text(i)) for k, i in enumerate(ids)}
        if len(ids) > 2:
            found[ids[-1]].logprob = float("-inf")
        return found
