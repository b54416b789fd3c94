"""From Anthropic's messages, tools and options to a :class:`Conversation`."""

from collections.abc import Mapping
from typing import Any

from octavo.api.anthropic.content import assistant_message, system_text, user_messages
from octavo.api.anthropic.protocol import UNSUPPORTED, CountTokensRequest, ToolChoice
from octavo.api.anthropic.tools import offered_tools
from octavo.api.chat.conversation import Conversation
from octavo.api.chat.conversation import ToolChoice as Choice
from octavo.api.request_body import reject_unsupported
from octavo.errors import InvalidRequestError
from octavo.records import StructuredOutputsParams

_CHOICES: dict[str, Choice] = {"auto": "auto", "any": "required", "tool": "named", "none": "none"}
# Templates know three efforts.
_EFFORTS = {"xhigh": "high", "max": "high"}
LOW_BUDGET = 2048
MEDIUM_BUDGET = 8192


def conversation_of(body: CountTokensRequest, disabled_thinking_effort: str = "auto") -> Conversation:
    """What is asked.

    Args:
        disabled_thinking_effort: ``reasoning_effort`` where thinking is switched off; "auto" sets none.
    """
    reject_unsupported(body, UNSUPPORTED)
    is_prefilled = body.messages[-1].role == "assistant"
    choice = body.tool_choice or ToolChoice(type="auto")
    if choice.type == "tool" and choice.name is None:
        raise InvalidRequestError("tool_choice: name the tool that must be called.", "tool_choice")
    kwargs = _template_kwargs(body, disabled_thinking_effort, is_prefilled=is_prefilled)
    return Conversation(
        _messages(body),
        tools=offered_tools(body),
        tool_choice=_CHOICES[choice.type],
        named_tool=choice.name if choice.type == "tool" else None,
        is_parallel=not choice.disable_parallel_tool_use,
        add_generation_prompt=not is_prefilled,
        continue_final_message=is_prefilled,
        template_kwargs=kwargs,
        response_format=_response_format(body),
    )


def _messages(body: CountTokensRequest) -> list[Mapping[str, Any]]:
    messages: list[Mapping[str, Any]] = []
    system = [system_text("system", body.system or "")]
    last_user = max((index for index, message in enumerate(body.messages) if message.role == "user"), default=-1)
    for index, message in enumerate(body.messages):
        where = f"messages.{index}.content"
        if message.lacks_content:
            raise InvalidRequestError(f"{where}: Field required.", "messages")
        match message.role:
            case "system":
                # Most templates take a system message at the beginning only.
                text = system_text(where, message.content)
                if message.clear_at != "next_user_message" or index > last_user:
                    system.append(text)
            case "user":
                messages += user_messages(where, message.content)
            case "assistant":
                messages.append(assistant_message(where, message.content))
    text_of_system = "\n".join(text for text in system if text)
    if text_of_system:
        messages.insert(0, {"role": "system", "content": text_of_system})
    if body.messages[-1].role == "assistant" and (messages[-1].get("tool_calls") or not messages[-1]["content"]):
        raise InvalidRequestError(
            "messages: the last one is the assistant's, to be continued, but does not end in text; "
            "add the results of its tools or a message of the user.",
            "messages",
        )
    return messages


def _template_kwargs(body: CountTokensRequest, disabled_effort: str, *, is_prefilled: bool) -> dict[str, Any]:
    """Values for the template: names that models of several families look for, then what the request sets itself."""
    kwargs: dict[str, Any] = {}
    thinking = body.thinking
    configs = [body.output_config, *(message.output_config for message in body.messages)]
    effort: str | None = next((config.effort for config in reversed(configs) if config and config.effort), None)
    if thinking is not None and thinking.type in ("enabled", "disabled"):
        kwargs["enable_thinking"] = kwargs["thinking"] = thinking.type == "enabled"
    if is_prefilled:
        # The answer has already begun, so no reasoning can precede it.
        kwargs["enable_thinking"] = kwargs["thinking"] = False
    if effort is None and thinking is not None and thinking.type == "enabled" and thinking.budget_tokens is not None:
        effort = _effort_of(thinking.budget_tokens)
    if effort is None and disabled_effort != "auto" and kwargs.get("enable_thinking") is False:
        effort = disabled_effort
    if effort is not None:
        kwargs["reasoning_effort"] = _EFFORTS.get(effort, effort)
    return {**kwargs, **(body.chat_template_kwargs or {})}


def _effort_of(budget_tokens: int) -> str:
    if budget_tokens <= LOW_BUDGET:
        return "low"
    return "medium" if budget_tokens <= MEDIUM_BUDGET else "high"


def _response_format(body: CountTokensRequest) -> StructuredOutputsParams | None:
    wanted = (body.output_config and body.output_config.format) or body.output_format
    return StructuredOutputsParams(json=wanted.schema_) if wanted else None
