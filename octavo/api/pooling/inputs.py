"""Renders, tokenises and runs the inputs of pooling requests."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.api.answer_size import PromptBudget
from octavo.api.frontend import Frontend, engine_id
from octavo.api.pooling.protocol import MAX_INPUTS, InputBody, PoolingBody
from octavo.api.usage import PromptTokensDetails, Usage
from octavo.errors import ChatTemplateError, InvalidRequestError
from octavo.inputs.pooling import PoolingOptions, PoolingProcessor
from octavo.outputs.pooling import Pooled
from octavo.records import PoolingParams, PoolingSpec, PoolingTask, PreparedRequest, PromptType, TokensPrompt

LONG_TEXT = 4096
MAX_NUMBERS = 1 << 23
"""Numbers in one answer: as JSON these are some 170 MB."""

Conversation = Sequence[Mapping[str, Any]]


def processor_of(frontend: Frontend) -> PoolingProcessor:
    """The processor of a pooling model."""
    processor = frontend.engine.pooling_processor
    _ = processor.spec
    return processor


def options_of(body: PoolingBody, *, add_special_tokens: bool = True) -> PoolingOptions:
    """What is the same for all inputs."""
    return PoolingOptions(
        body.priority,
        body.cache_salt,
        body.truncate_prompt_tokens,
        body.truncation_side or "right",
        add_special_tokens,
        body.padding == "max_length",
    )


async def pool_inputs(
    frontend: Frontend, body: InputBody, answer: str, params: PoolingParams, task: PoolingTask | None
) -> list[Pooled]:
    """The vectors of a request's inputs, in order; they run side by side.

    Args:
        task: what the route is for; None leaves it to the model.
    """
    processor = processor_of(frontend)
    processor.resolve(params, task)
    prompts, is_chat = await _prompts(frontend, body)
    has_frame = not is_chat if body.add_special_tokens is None else body.add_special_tokens
    options = options_of(body, add_special_tokens=has_frame)
    return await pool_prompts(frontend, prompts, answer, params, task, options)


async def pool_prompts(
    frontend: Frontend,
    prompts: Sequence[PromptType],
    answer: str,
    params: PoolingParams,
    task: PoolingTask | None,
    options: PoolingOptions,
) -> list[Pooled]:
    """The same for prompts that are there; many or long ones are tokenised in a thread."""
    check_count(len(prompts))
    processor = processor_of(frontend)

    def prepare() -> list[PreparedRequest]:
        return [
            processor.process(engine_id(answer, index), prompt, params, task, options)
            for index, prompt in enumerate(prompts)
        ]

    is_long = sum(len(prompt) for prompt in prompts if isinstance(prompt, str | list)) > LONG_TEXT
    prepared = await asyncio.to_thread(prepare) if is_long else prepare()
    _check_size(processor.spec, prepared)
    return await frontend.engine.pool(prepared)


def _check_size(spec: PoolingSpec, prepared: Sequence[PreparedRequest]) -> None:
    """Reject requests whose answer would be gigabytes."""
    num_vectors = 0
    for request in prepared:
        pooling = request.children[0].pooling
        assert pooling is not None, "made by a pooling processor"
        num_vectors += len(request.prompt_token_ids) if pooling.task.startswith("token_") else 1
    num_numbers = num_vectors * spec.output_size
    if num_numbers > MAX_NUMBERS:
        raise InvalidRequestError(
            f"The answer would hold {num_numbers} numbers; at most {MAX_NUMBERS} go into one. Send fewer or shorter "
            "inputs.",
            "input",
        )


def check_count(num_inputs: int) -> None:
    """Refuse too many inputs, or none."""
    if not 1 <= num_inputs <= MAX_INPUTS:
        raise InvalidRequestError(f"One request takes 1 to {MAX_INPUTS} inputs, got {num_inputs}.", "input")


def usage_of(frontend: Frontend, outputs: Sequence[Pooled]) -> Usage:
    """Prompt tokens of pooling requests."""
    num_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    return prompt_usage(frontend, num_tokens, sum(output.num_cached_tokens for output in outputs))


def prompt_usage(frontend: Frontend, num_tokens: int, num_cached: int) -> Usage:
    """The usage of a request that generates nothing."""
    details = PromptTokensDetails(num_cached) if frontend.settings.enable_prompt_tokens_details else None
    return Usage(num_tokens, num_tokens, 0, details)


async def _prompts(frontend: Frontend, body: InputBody) -> tuple[list[PromptType], bool]:
    """The inputs one by one, and whether they are conversations."""
    if (body.input is None) == (body.messages is None):
        raise InvalidRequestError("Give either input or messages.", "input")
    given: Any = body.input if body.input is not None else body.messages
    if isinstance(given, str):
        return [given], False
    if not given:
        raise InvalidRequestError("There is no input: the list is empty.", "input")
    first = given[0]
    if isinstance(first, int):
        return [given], False
    if isinstance(first, dict):
        return [await _render(frontend, body, given)], True
    check_count(len(given))
    if body.messages is None:
        return list(given), False
    prompts: list[PromptType] = []
    budget = PromptBudget()
    for conversation in given:
        prompt = await _render(frontend, body, conversation)
        budget.add_prompt(len(prompt["prompt_token_ids"]))
        prompts.append(prompt)
    return prompts, True


async def _render(frontend: Frontend, body: InputBody, conversation: Conversation) -> TokensPrompt:
    """A conversation as the model reads it; templates run in a thread, since they may be slow."""
    renderer = frontend.engine.chat_renderer
    if renderer is None:
        raise ChatTemplateError("The server runs without a tokenizer; send token ids.", "messages")
    return await asyncio.to_thread(
        renderer.render,
        conversation,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        template_kwargs=body.chat_template_kwargs,
        add_special_tokens=bool(body.add_special_tokens),
    )
