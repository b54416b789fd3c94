"""Converts content blocks of earlier turns to chat-template messages."""

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import InvalidRequestError

Content = str | Sequence[Mapping[str, Any]]

# Claude Code puts a line for its bills in front of the system text, new with every request: it says nothing to the
# model, and would make every prompt miss the prefix cache.
BILLING_LINE = "x-anthropic-billing-header:"

TOOL_CHANGES = ("tool_addition", "tool_removal")
"""Blocks that say nothing to the model; see :func:`octavo.api.anthropic.tools.offered_tools`."""

_NO_IMAGES = "images are not supported; this server reads text only"
_NO_FILES = "documents are taken as text only; send the text of files and of PDFs"


def system_text(where: str, content: Content) -> str:
    """The system's text, blocks on lines of their own."""
    if isinstance(content, str):
        return content
    texts = [
        _block_text(f"{where}.{index}", block, ("text", *TOOL_CHANGES))
        for index, block in enumerate(content)
        if block.get("type") not in TOOL_CHANGES
    ]
    return "\n".join(text for text in texts if not text.startswith(BILLING_LINE))


def user_messages(where: str, content: Content) -> list[dict[str, Any]]:
    """A user's turn: results of tools become messages of their own, in order with the text around them."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    messages: list[dict[str, Any]] = []
    texts: list[str] = []
    for index, block in enumerate(content):
        place = f"{where}.{index}"
        if block.get("type") == "tool_result":
            if texts:
                messages.append(_user_message(texts))
            texts = []
            messages.append(_tool_message(place, block))
        elif block.get("type") not in TOOL_CHANGES:
            texts.append(_block_text(place, block, ("text", "document", "search_result")))
    if texts or not messages:
        messages.append(_user_message(texts))
    return messages


def assistant_message(where: str, content: Content) -> dict[str, Any]:
    """A turn of the model's: text, reasoning and calls."""
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts, reasoning_texts, calls = [], [], []
    for index, block in enumerate(content):
        place = f"{where}.{index}"
        match block.get("type"):
            case "thinking":
                reasoning_texts.append(_field(place, block, "thinking"))
            case "redacted_thinking":
                pass  # encrypted by another server: nothing that a model could read
            case "tool_use":
                calls.append(_tool_call(place, block))
            case _:
                texts.append(_block_text(place, block, ("text",)))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    reasoning_text = "".join(reasoning_texts)
    if reasoning_text:
        # Templates know it by either name.
        message["reasoning_content"] = message["reasoning"] = reasoning_text
    if calls:
        message["tool_calls"] = calls
    return message


def _user_message(texts: list[str]) -> dict[str, Any]:
    if len(texts) <= 1:
        return {"role": "user", "content": "".join(texts)}
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


def _tool_message(where: str, block: Mapping[str, Any]) -> dict[str, Any]:
    content = block.get("content")
    text = ""
    if isinstance(content, str):
        text = content
    elif isinstance(content, list):
        kinds = ("text", "document", "search_result", "tool_reference")
        text = "\n".join(_block_text(f"{where}.content.{index}", part, kinds) for index, part in enumerate(content))
    elif content is not None:
        raise InvalidRequestError(f"{where}.content: must be a string or a list of blocks.", "messages")
    if block.get("is_error") is True and not text.lower().startswith("error"):
        text = f"Error: {text}" if text else "Error"
    return {"role": "tool", "tool_call_id": _field(where, block, "tool_use_id"), "content": text}


def _tool_call(where: str, block: Mapping[str, Any]) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise InvalidRequestError(f"{where}.input: must be an object.", "messages")
    function = {"name": _field(where, block, "name"), "arguments": arguments}
    return {"id": _field(where, block, "id"), "type": "function", "function": function}


def _block_text(where: str, block: object, kinds: tuple[str, ...]) -> str:
    """The text of one block, of one of the kinds that may appear there."""
    if not isinstance(block, Mapping):
        raise InvalidRequestError(f"{where}: must be an object with a type.", where.partition(".")[0])
    kind = block.get("type")
    if kind in kinds:
        match kind:
            case "text":
                return _field(where, block, "text")
            case "document":
                return _document_text(where, block)
            case "search_result":
                return _search_result_text(where, block)
            case "tool_reference":
                return f"The tool {_field(where, block, 'tool_name')} can be called now."
    reason = {"image": _NO_IMAGES, "document": _NO_FILES}.get(kind) if isinstance(kind, str) else None
    known = ", ".join(kinds)
    raise InvalidRequestError(
        f"{where}: {reason or f'a block of type {str(kind)[:40]!r} is not allowed here; allowed types: {known}'}.",
        where.partition(".")[0],
    )


def _document_text(where: str, block: Mapping[str, Any]) -> str:
    source = block.get("source")
    if not isinstance(source, Mapping):
        raise InvalidRequestError(f"{where}.source: must be an object with a type.", "messages")
    match source.get("type"):
        case "text":
            text = _field(f"{where}.source", source, "data")
        case "content":
            text = _joined(f"{where}.source.content", source.get("content"))
        case _:
            raise InvalidRequestError(f"{where}.source: {_NO_FILES}.", "messages")
    headings = [block[name] for name in ("title", "context") if isinstance(block.get(name), str)]
    return "\n".join([*headings, text])


def _search_result_text(where: str, block: Mapping[str, Any]) -> str:
    headings = [_field(where, block, "title"), _field(where, block, "source")]
    return "\n".join([*headings, _joined(f"{where}.content", block.get("content"))])


def _joined(where: str, content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequestError(f"{where}: must be a string or a list of blocks.", "messages")
    return "\n".join(_block_text(f"{where}.{index}", part, ("text",)) for index, part in enumerate(content))


def _field(where: str, block: Mapping[str, Any], name: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise InvalidRequestError(f"{where}.{name}: must be a string.", where.partition(".")[0])
    return value
