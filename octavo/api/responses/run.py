"""Runs one response: generate, execute the server's tool calls, and repeat until there is an answer."""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec

from octavo.api.chat.conversation import Conversation, render
from octavo.api.chat.turn import ChatTurn, ChatUpdate
from octavo.api.drain import SHUTTING_DOWN
from octavo.api.errors import INTERNAL_ERROR, status_of
from octavo.api.logprobs import ChatTokenLogprob
from octavo.api.responses import events
from octavo.api.responses.events import ResponseStreamEvent
from octavo.api.responses.items import (
    BuiltinCallItem,
    Item,
    McpCallItem,
    McpListToolsItem,
    as_input,
    public_item,
    short,
)
from octavo.api.responses.logprobs import ContentLogprobs
from octavo.api.responses.mcp import McpError, as_http_error
from octavo.api.responses.messages import cut_points, failure_text, to_messages, without_beginning
from octavo.api.responses.objects import (
    IncompleteDetails,
    ResponseError,
    ResponseObject,
    ResponseUsage,
)
from octavo.api.responses.output import CallKind, OutputBuilder, OutputCall
from octavo.api.responses.prepare import PreparedResponse, Services
from octavo.api.responses.protocol import ENCRYPTED_REASONING
from octavo.api.responses.tools import CallOutcome, McpSource, failed_call
from octavo.errors import InvalidRequestError, OctavoError, OverloadedError, RequestFailedError
from octavo.outputs.parsers.base import ContentBreak, ContentText, ReasoningText, ToolCallArguments, ToolCallBegin
from octavo.records import SamplingParams, TokensPrompt

logger = logging.getLogger(__name__)

MAX_ROUNDS = 32
MAX_CALLS_AT_ONCE = 8
MANY_ITEMS = 1000
"""A conversation of more is written as messages in a thread."""
Emit = Callable[[Sequence[ResponseStreamEvent]], Awaitable[None]]
_BUILTIN_PROGRESS = {
    "web_search_call": "searching",
    "file_search_call": "searching",
    "code_interpreter_call": "interpreting",
}


class ResponseRun:
    """The making of one response.

    Args:
        emit: takes the events; what it raises ends the run.
    """

    def __init__(self, services: Services, prepared: PreparedResponse, emit: Emit) -> None:
        self._services = services
        self._frontend = services.frontend
        self._prepared = prepared
        self._toolset = prepared.toolset
        self._emit_events = emit
        self._builder = OutputBuilder(
            prepared.id_tail, self._toolset.classify, seals_reasoning=prepared.body.includes(ENCRYPTED_REASONING)
        )
        self._response = prepared.response
        self._usage = ResponseUsage()
        self._reasoning_texts: list[str] = []
        self._num_events = 0
        self._num_calls = 0
        self._is_begun = False
        self._messages: list[dict[str, Any]] = []
        # What the model read first, and what it wrote in each round.
        self._read: list[int] = []
        self._written: list[list[int]] = []
        self._logprobs: ContentLogprobs | None = None

    def snapshot(self) -> ResponseObject:
        """The response as far as it is."""
        return self._response.with_output(self._builder.snapshot())

    async def check(self) -> None:
        """Render the first prompt if possible, so that errors in it are reported before the request is accepted."""
        if not self._toolset.sources:
            prompt = await self._prompt(await self._conversation(0))
            params = self._params_behind(prompt)
            self._frontend.engine.input_processor.process(self._response.id, prompt, params, clip_max_tokens=False)

    async def count_input(self) -> int:
        """Tokens that the model would read in the first round; tools of MCP servers count if they are known."""
        self._toolset.learn([*self._prepared.history, *self._prepared.items])
        prompt = await self._prompt(await self._conversation(0))
        return len(prompt["prompt_token_ids"])

    async def first_turn(self) -> ChatTurn:
        """The first question to the model, as it would be asked; with the tools of MCP servers if they are known."""
        self._toolset.learn([*self._prepared.history, *self._prepared.items])
        conversation = await self._conversation(0)
        return self._turn(conversation, await self._prompt(conversation), self._prepared.params)

    async def execute(self) -> ResponseObject:
        """Make the response.

        Raises:
            OctavoError: it failed before the first event. Later failures are reported in the response.
        """
        try:
            await self._work()
        except asyncio.CancelledError:
            await self._on_cancelled()
        except Exception as error:
            body = self._prepared.body
            if not body.background and not (self._is_begun and body.stream):
                raise
            if not isinstance(error, OctavoError):
                logger.exception("A response failed")
            await self._fail(error)
        finally:
            await self._toolset.close()
        return self._response

    async def _work(self) -> None:
        self._toolset.learn([*self._prepared.history, *self._prepared.items])
        if self._prepared.body.background:
            await self._emit(
                [events.ResponseCreated(self.snapshot()), events.ResponseQueued(self.snapshot())], begins=False
            )
        for source in self._toolset.unlisted():
            await self._list_tools(source)
        await self._carry_out_approved()
        reason: str | None = None
        for round_index in range(MAX_ROUNDS):
            reason = await self._round(round_index)
            if reason != "tools":
                break
        await self._finish(reason)

    def _turn(self, conversation: Conversation, prompt: TokensPrompt, params: SamplingParams) -> ChatTurn:
        body = self._prepared.body
        return ChatTurn(
            self._frontend,
            conversation,
            prompt,
            params,
            self._response.id,
            priority=body.priority,
            cache_salt=body.cache_salt,
        )

    async def _round(self, index: int) -> str | None:
        """Ask the model once and carry out its calls; why it ended, or ``tools`` if it must be asked again."""
        builder = self._builder
        conversation = await self._conversation(index)
        prompt = await self._prompt(conversation)
        params = self._params_behind(prompt)
        if params is None:
            return "length"
        turn = self._turn(conversation, prompt, params)
        if self._prepared.num_logprobs is not None:
            self._logprobs = ContentLogprobs(self._frontend.engine.tokenizer, self._prepared.num_logprobs)
        self._read = self._read or list(prompt["prompt_token_ids"])
        self._written.append([])
        builder.begin_round()
        reason: str | None = None
        num_prompt = num_cached = 0
        async with aclosing(turn.updates()) as updates:
            async for update in updates:
                await self._begin()
                if update.output.prompt_token_ids is not None:
                    num_prompt = len(update.output.prompt_token_ids)
                num_cached = update.output.num_cached_tokens or num_cached
                self._usage.output_tokens += len(update.completion.token_ids)
                self._written[-1] += update.completion.token_ids
                await self._emit(self._events_of(update))
                reason = update.finish_reason or reason
        self._usage.input_tokens += num_prompt
        self._usage.input_tokens_details.cached_tokens += num_cached
        if reason not in ("stop", "tool_calls", "length"):
            raise RequestFailedError("The request was aborted.")
        await self._emit(builder.end_round("incomplete" if reason == "length" else "completed"))
        if reason == "length":
            return reason
        return await self._carry_out_round()

    def _events_of(self, update: ChatUpdate) -> list[ResponseStreamEvent]:
        found: list[ResponseStreamEvent] = []
        if self._logprobs is not None:
            self._logprobs.add_tokens(update.completion)
        is_parallel = self._prepared.body.parallel_tool_calls is not False
        for part in update.parts:
            if isinstance(part, ToolCallBegin | ToolCallArguments) and part.index > 0 and not is_parallel:
                continue
            logprobs: list[ChatTokenLogprob] = []
            if isinstance(part, ContentBreak):
                pass  # no token of the model's
            elif self._logprobs is not None and isinstance(part, ContentText):
                logprobs = self._logprobs.take_content(part.text)
            elif self._logprobs is not None and isinstance(part, ReasoningText | ToolCallArguments):
                self._logprobs.skip_text(part.text)
            if isinstance(part, ReasoningText):
                self._reasoning_texts.append(part.text)
                if not self._prepared.body.include_reasoning:
                    continue
            found += self._builder.add_part(part, logprobs)
        return found

    async def _conversation(self, index: int) -> Conversation:
        body = self._prepared.body
        tools, choice, named = self._toolset.offered(is_first=index == 0, has_budget=self._has_budget(index))
        items: list[Item] = [*self._prepared.history, *self._prepared.items, *as_input(self._builder.items)]
        write = partial(
            to_messages,
            items,
            instructions=body.instructions,
            previous=body.previous_input_messages or (),
            visible_name=self._toolset.visible_names(),
        )
        self._messages = await asyncio.to_thread(write) if len(items) > MANY_ITEMS else write()
        return Conversation(
            self._messages,
            tools=tools,
            tool_choice=choice,
            named_tool=named,
            is_parallel=body.parallel_tool_calls is not False,
            template_kwargs=self._prepared.template_kwargs,
            response_format=self._prepared.response_format if choice not in ("required", "named") else None,
        )

    def _params_behind(self, prompt: TokensPrompt) -> SamplingParams | None:
        """Sampling parameters of a round: what is left of the answer's length, and fits; None if nothing is left."""
        params = self._prepared.params
        if params.max_tokens is None:
            return params
        left = params.max_tokens - self._usage.output_tokens
        if left < 1:
            return None
        room = self._frontend.engine.info.max_model_len - len(prompt["prompt_token_ids"])
        if room > 0:  # else the engine refuses the prompt
            left = min(left, room)
        return msgspec.structs.replace(params, max_tokens=left, min_tokens=min(params.min_tokens, left))

    def _has_budget(self, index: int) -> bool:
        limit = self._prepared.body.max_tool_calls
        return index < MAX_ROUNDS - 1 and (limit is None or self._num_calls < limit)

    async def _prompt(self, conversation: Conversation) -> TokensPrompt:
        """The rendered conversation; where the request allows it, without its beginning if it is too long."""
        prompt = await render(self._frontend, conversation)
        if self._prepared.body.truncation != "auto" or self._fits(prompt):
            return prompt
        # Bisect for the fewest turns to drop: the prompt gets shorter with every dropped turn.
        points = cut_points(self._messages)
        low, high, best = 0, len(points) - 1, prompt
        while low <= high:
            middle = (low + high) // 2
            shorter = without_beginning(self._messages, points[middle])
            tried = await render(self._frontend, dataclasses.replace(conversation, messages=shorter))
            if self._fits(tried):
                best, high = tried, middle - 1
            else:
                low = middle + 1
        return best

    def _fits(self, prompt: TokensPrompt) -> bool:
        # The answer may need room as well, up to a quarter of what there is.
        limit = self._frontend.engine.info.max_model_len
        room = min(self._prepared.params.max_tokens or limit, limit // 4)
        return len(prompt["prompt_token_ids"]) + room <= limit

    async def _list_tools(self, source: McpSource) -> None:
        label = source.requested.server_label
        await self._begin()
        item = McpListToolsItem(self._builder.new_id("mcpl"), label, [])
        index = len(self._builder.items)
        self._builder.items.append(item)
        await self._emit(
            [
                events.OutputItemAdded(index, McpListToolsItem(item.id, label, [])),
                events.ToolProgress("response.mcp_list_tools.in_progress", item.id, index),
            ]
        )
        failure: McpError | None = None
        try:
            item.tools = await self._toolset.list_tools(source)
        except McpError as error:
            failure, item.error = error, str(error)
        ending = "failed" if failure else "completed"
        await self._emit(
            [
                events.ToolProgress(f"response.mcp_list_tools.{ending}", item.id, index),
                events.OutputItemDone(index, item),
            ]
        )
        if failure is not None:
            raise as_http_error(failure)

    async def _carry_out_approved(self) -> None:
        """Carry out the calls that the client has now approved."""
        everything = [*self._prepared.history, *self._prepared.items]
        requests = {item["id"]: item for item in everything if item["type"] == "mcp_approval_request"}
        done = {item.get("approval_request_id") for item in everything if item["type"] == "mcp_call"}
        for answer in self._prepared.items:
            if answer["type"] != "mcp_approval_response" or not answer["approve"]:
                continue
            request = requests.get(answer["approval_request_id"])
            if request is None:
                raise InvalidRequestError(
                    f"input: there is no mcp_approval_request {short(answer['approval_request_id'])}.", "input"
                )
            if request["id"] in done:
                continue
            done.add(request["id"])
            await self._begin()
            item = McpCallItem(
                self._builder.new_id("mcp"),
                "in_progress",
                request["server_label"],
                request["name"],
                request["arguments"],
                approval_request_id=request["id"],
            )
            index = len(self._builder.items)
            self._builder.items.append(item)
            call = OutputCall(index, item, CallKind("mcp", item.name, item.server_label))
            self._builder.calls.append(call)
            await self._emit(
                [
                    events.OutputItemAdded(index, public_item(item)),
                    events.ToolProgress("response.mcp_call.in_progress", item.id, index),
                    events.McpCallArgumentsDone(item.id, index, item.arguments),
                ]
            )
            await self._carry_out([call])

    async def _carry_out_round(self) -> str | None:
        """Carry out the round's calls that are the server's to carry out."""
        calls = [call for call in self._builder.calls if call.kind.kind in ("mcp", "builtin")]
        await self._carry_out(calls)
        waits_for_client = any(call.kind.kind in ("function", "custom", "approval") for call in self._builder.calls)
        return "tools" if calls and not waits_for_client else "stop"

    async def _carry_out(self, calls: Sequence[OutputCall]) -> None:
        limit = self._prepared.body.max_tool_calls
        allowed = len(calls) if limit is None else max(0, limit - self._num_calls)
        self._num_calls += len(calls)
        gate = asyncio.Semaphore(MAX_CALLS_AT_ONCE)

        async def one(call: OutputCall) -> CallOutcome:
            async with gate:
                assert isinstance(call.item, McpCallItem | BuiltinCallItem)
                return await self._toolset.carry_out(call.kind, call.item.arguments)

        for call in calls:
            progress = _BUILTIN_PROGRESS.get(call.kind.item_type)
            if progress is not None:
                kind = f"response.{call.kind.item_type}.{progress}"
                await self._emit([events.ToolProgress(kind, call.item.id, call.output_index)])
        outcomes = await asyncio.gather(*(one(call) for call in calls[:allowed]))
        outcomes += [failed_call(f"max_tool_calls allows no more than {limit} calls.")] * (len(calls) - allowed)
        for call, outcome in zip(calls, outcomes, strict=True):
            await self._emit(self._settle(call, outcome))

    def _settle(self, call: OutputCall, outcome: CallOutcome) -> Iterable[ResponseStreamEvent]:
        item = call.item
        ending = "failed" if outcome.error else "completed"
        match item:
            case McpCallItem():
                item.output, item.error, item.status = outcome.text, outcome.error, ending
                return self._builder.finish_call(call, f"response.mcp_call.{ending}")
            case BuiltinCallItem():
                item.output = failure_text(outcome.error) if outcome.error else outcome.text
                item.status, item.fields = ending, dict(outcome.fields)
                return self._builder.finish_call(call, f"response.{item.type}.completed")
            case _:
                raise AssertionError("only tools of the server are carried out here")

    async def _finish(self, reason: str | None) -> None:
        await self._begin()
        changes: dict[str, Any] = {"status": "completed", "completed_at": int(time.time())}
        if reason == "length":
            changes = {"status": "incomplete", "incomplete_details": IncompleteDetails("max_output_tokens")}
        await self._end(changes, events.ResponseIncomplete if reason == "length" else events.ResponseCompleted)

    async def _fail(self, error: Exception) -> None:
        message = str(error) if isinstance(error, OctavoError) else INTERNAL_ERROR
        status = status_of(error)
        code = "rate_limit_exceeded" if status in (429, 503) else "invalid_prompt" if status == 400 else "server_error"
        await self._emit(self._builder.abandon())
        await self._end({"status": "failed", "error": ResponseError(code, message)}, events.ResponseFailed)

    async def _on_cancelled(self) -> None:
        """The client has left, or cancelled, or the server ends."""
        is_recorded = self._prepared.body.background or self._frontend.drain.is_aborting
        if not is_recorded or not (self._is_begun or self._prepared.body.background):
            raise asyncio.CancelledError
        if self._frontend.drain.is_aborting:
            await self._fail(OverloadedError(SHUTTING_DOWN))
            return
        await self._emit(self._builder.abandon())
        await self._end({"status": "cancelled"}, events.ResponseIncomplete)

    async def _end(self, changes: dict[str, Any], last: type[events.ResponseEvent]) -> None:
        usage = self._usage
        usage.output_tokens_details.reasoning_tokens = await self._count_reasoning()
        usage.total_tokens = usage.input_tokens + usage.output_tokens
        if self._prepared.body.enable_response_messages:
            changes["input_messages"] = [self._raw_message(self._read)] if self._read else []
            changes["output_messages"] = [self._raw_message(token_ids) for token_ids in self._written]
        self._response = self._response.with_output(self._builder.items, usage=usage, **changes)
        if self._response.store:
            # Store it before the last event is sent: the client may build on it as soon as it reads the event.
            outputs = as_input(self._builder.items)
            self._services.store.finish_response(
                self._prepared.owner, self._response, self._prepared.items, outputs, self._prepared.parent
            )
        await self._emit([last(self._response)])

    def _raw_message(self, token_ids: list[int]) -> dict[str, Any]:
        """Tokens as the model read or wrote them, and their text with all special tokens."""
        return {"type": "raw_message_tokens", "message": self._frontend.text_of(token_ids), "tokens": token_ids}

    async def _count_reasoning(self) -> int:
        """Tokens of the reasoning text; its tags count as answer tokens."""
        text = "".join(self._reasoning_texts)
        if not text or self._frontend.engine.tokenizer is None:
            return 0
        return min(len(await self._frontend.encode(text, False)), self._usage.output_tokens)

    async def _begin(self) -> None:
        if not self._is_begun:
            self._response.status = "in_progress"
            first: list[ResponseStreamEvent] = [
                events.ResponseCreated(self._response),
                events.ResponseInProgress(self._response),
            ]
            await self._emit(first[1:] if self._prepared.body.background else first)

    async def _emit(self, new: Iterable[ResponseStreamEvent], *, begins: bool = True) -> None:
        numbered = list(new)
        if not numbered:
            return
        self._is_begun = self._is_begun or begins
        for event in numbered:
            event.sequence_number = self._num_events
            self._num_events += 1
        await self._emit_events(numbered)
