"""A protocol-independent conversation, and its rendering as a prompt."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal

from octavo.api.chat.formats import TAUGHT_FORMAT
from octavo.api.frontend import Frontend
from octavo.config import ServerSettings
from octavo.errors import ChatTemplateError, ConfigError, InvalidRequestError
from octavo.inputs.chat import ChatRenderer
from octavo.outputs.parsers.base import Tool
from octavo.records import StructuredOutputsParams, TokensPrompt

ToolChoice = Literal["none", "auto", "required", "named"]


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request for an answer, independent of the protocol.

    Attributes:
        messages: in OpenAI's form, as templates take them.
        tool_choice: "named" makes it call ``named_tool``.
        is_parallel: whether one answer may hold several calls.
        documents: passages, for templates that take them.
        template_kwargs: further values for the template.
        response_format: what the answer must look like; not with a forced call.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = "auto"
    named_tool: str | None = None
    is_parallel: bool = True
    documents: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    response_format: StructuredOutputsParams | None = None

    @property
    def is_forced(self) -> bool:
        """Whether the answer must be tool calls."""
        return self.tool_choice in ("required", "named")

    @property
    def may_call(self) -> bool:
        """Whether the answer may hold tool calls."""
        return bool(self.tools) and self.tool_choice != "none"


async def render(frontend: Frontend, conversation: Conversation) -> TokensPrompt:
    """The conversation as the model reads it; templates run in a thread, since they may be slow.

    Raises:
        ChatTemplateError: there is no template, or it failed.
    """
    renderer = frontend.engine.chat_renderer
    if renderer is None:
        raise ChatTemplateError("This model has no chat template; use /v1/completions or give one to the server.")
    check_tool_choice(conversation)
    if conversation.tools:
        _check_tools_fit_template(frontend, conversation, renderer)
    shows_tools = conversation.may_call or not frontend.settings.exclude_tools_when_tool_choice_none
    return await asyncio.to_thread(
        renderer.render,
        conversation.messages,
        tools=[tool_description(tool) for tool in conversation.tools] if shows_tools else None,
        documents=conversation.documents,
        add_generation_prompt=conversation.add_generation_prompt,
        continue_final_message=conversation.continue_final_message,
        template_kwargs=merged_kwargs(frontend, conversation),
        add_special_tokens=conversation.add_special_tokens,
        call_text=frontend.formats().call_text,
        content_format=frontend.settings.chat_template_content_format,
    )


def check_tool_choice(conversation: Conversation) -> None:
    """Check that what must be called can be."""
    if conversation.is_forced and not conversation.tools:
        raise InvalidRequestError("tool_choice: there are no tools to choose from.", "tool_choice")
    if conversation.named_tool is not None and conversation.named_tool not in {t.name for t in conversation.tools}:
        raise InvalidRequestError(
            f"tool_choice names {conversation.named_tool!r}, which is not among the tools.", "tool_choice"
        )


def _check_tools_fit_template(frontend: Frontend, conversation: Conversation, renderer: ChatRenderer) -> None:
    """Reject tools that cannot be described to the model: neither by its template nor by the tool parser's format."""
    formats = frontend.formats()
    if not conversation.may_call or conversation.is_forced or formats.tools is None:
        return
    if formats.call_text is None and not renderer.takes_tools:
        raise InvalidRequestError(
            "tools: the model's chat template has no place for tools, and the model cannot be told how to write calls "
            f"for the parser {formats.tools!r}; start the server with --tool-call-parser {TAUGHT_FORMAT}, or force a "
            "call with tool_choice.",
            "tools",
        )


def merged_kwargs(frontend: Frontend, conversation: Conversation) -> dict[str, Any]:
    """The request's values for the template, over the server's."""
    own = dict(conversation.template_kwargs)
    effort = own.get("reasoning_effort")
    efforts = {str(requested): given for requested, given in (frontend.settings.reasoning_effort_map or {}).items()}
    if isinstance(effort, str):
        own["reasoning_effort"] = efforts.get(effort, effort)
    return {**pinned_date(frontend.settings), **(frontend.settings.default_chat_template_kwargs or {}), **own}


def tool_description(tool: Tool) -> dict[str, Any]:
    """A tool in the form that templates take."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    return {"type": "function", "function": function}


def pinned_date(settings: ServerSettings) -> dict[str, Any]:
    """Values for chat templates that pin the date which ``strftime_now`` writes, if the operator sets one."""
    if settings.chat_template_date is None:
        return {}
    try:
        day = date.fromisoformat(settings.chat_template_date)
    except ValueError:
        raise ConfigError(
            f"chat_template_date is a date such as 2025-06-28, got {settings.chat_template_date!r}."
        ) from None

    def strftime_now(pattern: str) -> str:
        return day.strftime(pattern)

    return {"strftime_now": strftime_now}
