"""Renders conversations as prompts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from octavo.errors import ChatTemplateError
from octavo.inputs.harmony import Preambles, harmony_effort, harmony_messages, harmony_tools, is_harmony_template
from octavo.inputs.tools_in_text import calls_as_text, contents_as_parts, with_description
from octavo.outputs.parsers.tools.call_text import HERMES, CallText, describe_tools
from octavo.records import TokensPrompt
from octavo.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:  # brings Jinja, which prompts that are no chats do without
    from octavo.tokenization.chat_template import CompiledTemplate

ContentFormat = Literal["auto", "string", "openai"]
MAX_MESSAGES = 1 << 14
MAX_TEMPLATE_KWARGS = 64
_PROBE = "octavo probe"
_OWN_NAMES = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "messages",
        "tokenize",
        "tools",
    }
)


class ChatRenderer:
    """Writes conversations as prompts, by the model's chat template or another. May be used from any thread.

    Args:
        tokenizer: has the model's template, and makes token ids of the text.
        template_override: a template to use instead, or the name of one of the model's.
    """

    def __init__(self, tokenizer: Tokenizer, template_override: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._template_override = template_override
        self._takes_system: dict[str, bool] = {}

    @property
    def takes_tools(self) -> bool:
        """Whether the chat template has a place for tools; else they are described in the system message."""
        template = self._tokenizer.select_chat_template(self._template_override, with_tools=True)
        return _compiled(template).takes_tools

    def with_template(self, template: str) -> "ChatRenderer":
        """A renderer that uses ``template``, the text itself or the name of one of the model's."""
        return ChatRenderer(self._tokenizer, template)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        add_special_tokens: bool = False,
        call_text: CallText | None = HERMES,
        content_format: ContentFormat = "auto",
    ) -> TokensPrompt:
        """Apply the chat template.

        Args:
            messages: each with ``role`` and ``content``: text, or a list of parts ``{"type": "text", "text": …}``.
            tools: descriptions of functions, for the template; in the system message if it has no place for them.
            documents: passages, for templates that take them.
            add_generation_prompt: end with the opening of the assistant's turn; not with ``continue_final_message``.
            continue_final_message: leave the last message open, to be continued.
            template_kwargs: further values for the template.
            add_special_tokens: let the tokenizer add its own, on top of what the template wrote.
            call_text: instruction on tool calls for a model whose template has no place for tools; None adds none.
            content_format: how the template gets messages' content: ``string`` is one text, ``openai`` a list of parts,
                ``auto`` what the template looks made for.

        Raises:
            ChatTemplateError: a message is malformed, or the template is missing or failed.
        """
        template = self._tokenizer.select_chat_template(self._template_override, with_tools=bool(tools))
        compiled = _compiled(template)
        if content_format != "auto":
            is_text = content_format == "string"
            compiled = replace(compiled, takes_content_text=is_text, takes_content_parts=not is_text)
        is_harmony = is_harmony_template(template)
        if is_harmony:
            compiled = replace(compiled, takes_content_parts=False, takes_content_text=True)
        known = _checked(messages)
        if "developer" not in template:
            # Only models that were trained with the role have a name for it.
            known = [{**message, "role": "system"} if _is_developer(message) else message for message in known]
        prepared = [_for_template(index, message, compiled) for index, message in enumerate(known)]
        kwargs = _checked_kwargs(template_kwargs)
        preambles = Preambles()
        if is_harmony:
            prepared, tools = preambles.set_aside(harmony_messages(prepared)), harmony_tools(tools or ())
            if "reasoning_effort" in kwargs:
                kwargs["reasoning_effort"] = harmony_effort(kwargs["reasoning_effort"])
        elif not compiled.takes_tools:
            prepared = self._with_tools_in_text(template, prepared, tools or (), call_text)
            prepared = prepared if compiled.takes_content_text else contents_as_parts(prepared)
        text = self._tokenizer.render_chat(
            prepared,
            tools=tools or None,
            documents=documents or None,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            chat_template=template,
            **kwargs,
        )
        text = preambles.restore(text)
        return TokensPrompt(prompt_token_ids=self._tokenizer.encode(text, add_special_tokens), prompt=text)

    def _with_tools_in_text(
        self,
        template: str,
        messages: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        call_text: CallText | None,
    ) -> list[dict[str, Any]]:
        """The conversation for a template that has no place for tools."""
        prepared = messages
        if "tool_calls" not in template:
            prepared = calls_as_text(prepared, call_text or HERMES)
        if tools:
            text = describe_tools(tools, call_text)
            prepared = with_description(prepared, text, takes_system=self._shows_system(template))
        return prepared

    def _shows_system(self, template: str) -> bool:
        """Whether system messages reach the model; seen once by a rendering of one."""
        known = self._takes_system.get(template)
        if known is None:
            probe = [{"role": "system", "content": _PROBE}, {"role": "user", "content": "?"}]
            compiled = _compiled(template)
            prepared = [_for_template(index, message, compiled) for index, message in enumerate(probe)]
            try:
                text = self._tokenizer.render_chat(prepared, chat_template=template)
            except ChatTemplateError:
                text = ""
            known = self._takes_system[template] = _PROBE in text
        return known


def _checked(messages: object) -> Sequence[Mapping[str, Any]]:
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise ChatTemplateError("messages must be a list of messages.", "messages")
    if not messages:
        raise ChatTemplateError("The conversation is empty.", "messages")
    if len(messages) > MAX_MESSAGES:
        raise ChatTemplateError(
            f"A conversation takes at most {MAX_MESSAGES} messages, got {len(messages)}.", "messages"
        )
    return messages


def _is_developer(message: object) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "developer"


def _checked_kwargs(template_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    kwargs = dict(template_kwargs or {})
    if len(kwargs) > MAX_TEMPLATE_KWARGS:
        raise ChatTemplateError(
            f"chat_template_kwargs takes at most {MAX_TEMPLATE_KWARGS} values, got {len(kwargs)}.",
            "chat_template_kwargs",
        )
    for name in kwargs:
        if not isinstance(name, str) or not name.isidentifier() or name in _OWN_NAMES:
            raise ChatTemplateError(f"chat_template_kwargs cannot set {name!r}.", "chat_template_kwargs")
    return kwargs


def _compiled(template: str) -> "CompiledTemplate":
    from octavo.tokenization.chat_template import compile_template

    return compile_template(template)


def _for_template(index: int, message: object, template: "CompiledTemplate") -> dict[str, Any]:
    """One message in the form that the template takes; the caller's is left as it is."""
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise ChatTemplateError(f"{where} must be an object with role and content.", where)
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise ChatTemplateError(f"{where} has no role; it must be a string such as 'user'.", f"{where}.role")
    prepared = dict(message)
    _count_reasoning(prepared)
    content = message.get("content")
    if isinstance(content, str):
        if not template.takes_content_text:
            prepared["content"] = [{"type": "text", "text": content}]
    elif isinstance(content, Sequence):
        texts = [_part_text(f"{where}.content[{place}]", part) for place, part in enumerate(content)]
        if template.takes_content_parts:
            prepared["content"] = [{"type": "text", "text": text} for text in texts]
        else:
            prepared["content"] = "\n".join(texts)
    elif content is not None:
        raise ChatTemplateError(f"{where}.content must be a string or a list of parts.", f"{where}.content")
    elif not message.get("tool_calls") and not prepared.get("reasoning"):
        raise ChatTemplateError(f"{where} has no content.", f"{where}.content")
    else:
        prepared["content"] = ""
    if message.get("tool_calls"):
        prepared["tool_calls"] = _parsed_tool_calls(f"{where}.tool_calls", message["tool_calls"])
    else:
        prepared.pop("tool_calls", None)  # clients send null, and templates ask whether there are any
    return prepared


def _count_reasoning(message: dict[str, Any]) -> None:
    """Reasoning of earlier turns comes back under the name used in answers; templates read either name."""
    reasoning_text = message.get("reasoning_content", message.get("reasoning"))
    if isinstance(reasoning_text, str):
        message["reasoning_content"] = message["reasoning"] = reasoning_text
    else:
        message.pop("reasoning_content", None)
        message.pop("reasoning", None)


def _part_text(where: str, part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise ChatTemplateError(f"{where} must be an object with a type.", where)
    kind = part.get("type", "text" if "text" in part else None)
    if kind not in ("text", "input_text", "output_text", "refusal"):
        raise ChatTemplateError(f"{where} is of type {kind!r}; this model takes text only.", where)
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise ChatTemplateError(f"{where} has no text.", where)
    return text


def _parsed_tool_calls(where: str, tool_calls: object) -> list[dict[str, Any]]:
    """Tool calls with their arguments as objects: clients send JSON text, templates write the JSON themselves."""
    if not isinstance(tool_calls, Sequence) or not all(isinstance(call, Mapping) for call in tool_calls):
        raise ChatTemplateError(f"{where} must be a list of objects.", where)
    parsed: list[dict[str, Any]] = []
    for call in tool_calls:
        function = call.get("function")
        if not isinstance(function, Mapping):
            raise ChatTemplateError(f"{where}: each call must have a function.", where)
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments) if arguments.strip() else {}
            except (ValueError, RecursionError) as error:
                raise ChatTemplateError(f"{where}: the arguments are not JSON: {error}.", where) from None
        parsed.append({**call, "function": {**function, "arguments": arguments}})
    return parsed
