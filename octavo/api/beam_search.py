"""Starts generation, by sampling or by beam search, for the text-generation routes."""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

from octavo.api.engine import ServingEngine
from octavo.api.watched import last_items
from octavo.errors import InvalidRequestError
from octavo.outputs.beam_search import PromptSearch
from octavo.outputs.stream import TextTaker
from octavo.records import BeamSearchParams, PromptType, RequestOutput, SamplingParams


def text_outputs(
    engine: ServingEngine,
    prompt: PromptType,
    params: SamplingParams,
    length_penalty: float | None,
    request_id: str,
    *,
    priority: int,
    cache_salt: str | None,
    take_text: TextTaker | None,
) -> AsyncGenerator[RequestOutput, None]:
    """Outputs of one request; nothing runs before they are iterated, and closing the generator aborts the request.

    Args:
        length_penalty: of a beam search; None samples.
        take_text: may be offered sampled tokens with their text; those that it takes are in no output.
    """
    if length_penalty is not None:
        return _beam_outputs(engine, prompt, params, length_penalty, request_id, priority, cache_salt)
    return engine.generate(
        prompt,
        params,
        request_id,
        priority=priority,
        cache_salt=cache_salt,
        clip_max_tokens=False,
        take_text=take_text,
    )


async def _beam_outputs(
    engine: ServingEngine,
    prompt: PromptType,
    params: SamplingParams,
    length_penalty: float,
    request_id: str,
    priority: int,
    cache_salt: str | None,
) -> AsyncGenerator[RequestOutput, None]:
    """The ``params.n`` best texts of a search, as the one output of a request; closing the generator aborts it.

    Args:
        params: of these ``n``, ``max_tokens``, ``logprobs``, ``ignore_eos`` and what concerns the text count.
    """
    if params.structured_outputs is not None:
        raise InvalidRequestError("Beam search cannot be combined with tool calls or structured output.")
    processor = engine.input_processor
    process = partial(processor.process, request_id, prompt, params, cache_salt=cache_salt, clip_max_tokens=False)
    prepared = await asyncio.to_thread(process)
    num_logprobs = params.logprobs
    beam_params = BeamSearchParams(
        params.n,
        prepared.children[0].params.max_tokens or 1,
        ignore_eos=params.ignore_eos,
        length_penalty=length_penalty,
        include_stop_str_in_output=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
    )
    search = PromptSearch.of(prepared, beam_params, processor.max_logprobs, num_logprobs or 0)
    num_steps, num_cached = 0, None
    while not search.is_over:
        sources = [
            engine.generate(
                step_prompt,
                search.step_params,
                f"{request_id}-{num_steps}-{index}",
                priority=priority,
                cache_salt=cache_salt,
            )
            for index, step_prompt in enumerate(search.prompts)
        ]
        outputs = await last_items(sources)
        if not num_steps:
            num_cached = outputs[0].num_cached_tokens
        search.advance(outputs)
        num_steps += 1
    yield RequestOutput(
        request_id,
        prepared.prompt_text,
        prepared.prompt_token_ids,
        None,
        search.completions(engine.tokenizer, num_logprobs),
        True,
        num_cached_tokens=num_cached,
    )
