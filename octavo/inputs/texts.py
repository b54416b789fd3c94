"""Texts and pairs of texts to token ids, cut where they are too long without losing the tokens that frame them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from octavo.errors import InvalidRequestError
from octavo.tokenization.tokenizer import Tokenizer

Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """Two texts as one prompt.

    Attributes:
        segment_start: first token of the second text's segment, for models with segment ids.
    """

    token_ids: list[int]
    segment_start: int | None


@dataclass(frozen=True, slots=True)
class BareText:
    """A text's tokens without special tokens around them, for use in several pairs.

    Attributes:
        token_ids: as many as can stay.
        num_tokens: of the text, up to its own limit.
    """

    token_ids: list[int]
    num_tokens: int


def encode_text(
    tokenizer: Tokenizer, text: str, *, limit: int | None, side: Side = "right", add_special_tokens: bool = True
) -> list[int]:
    """Token ids of a text.

    Args:
        limit: most tokens to keep; None is all.
        side: where tokens go that are too many; those that the tokenizer puts around a text stay.
    """
    token_ids = tokenizer.encode(text, add_special_tokens)
    if limit is None or len(token_ids) <= limit:
        return token_ids
    room = limit - tokenizer.frame.num_special_tokens
    if not add_special_tokens or room <= 0:
        return cut(token_ids, limit, side)
    return tokenizer.frame.add_special_tokens(cut(tokenizer.frame.strip_special_tokens(token_ids), room, side))


def bare_text(tokenizer: Tokenizer, text: str, *, limit: int | None, most: int = 0) -> BareText:
    """A text for :func:`encode_pair`.

    Args:
        limit: most tokens of the pair; None is no limit.
        most: most tokens of this text; 0 is no limit.
    """
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    num_tokens = min(len(token_ids), most or len(token_ids))
    return BareText(token_ids[: num_tokens if limit is None else min(num_tokens, limit)], num_tokens)


def encode_pair(
    tokenizer: Tokenizer,
    first: str | BareText,
    second: str,
    *,
    limit: int | None,
    max_first: int = 0,
    max_second: int = 0,
) -> EncodedPair:
    """A query and a document as a cross-encoder reads them.

    Args:
        limit: most tokens of both together, framing included; the longer text loses its end first. None is no limit.
        max_first, max_second: most tokens of each; 0 is no limit. A first text that is encoded already has its own.
    """
    one = first if isinstance(first, BareText) else bare_text(tokenizer, first, limit=limit, most=max_first)
    two = bare_text(tokenizer, second, limit=limit, most=max_second)
    num_one, num_two = one.num_tokens, two.num_tokens
    if limit is not None:
        room = limit - tokenizer.pair_frame.num_special_tokens
        if room < 2:
            raise InvalidRequestError(
                f"truncate_prompt_tokens is {limit}, which leaves no room for two texts.", "truncate_prompt_tokens"
            )
        num_one, num_two = _shares(num_one, num_two, room)
    texts = one.token_ids[:num_one], two.token_ids[:num_two]
    return EncodedPair(tokenizer.pair_frame.add_special_tokens(*texts), tokenizer.pair_frame.segment_start(*texts))


def write_pair(
    tokenizer: Tokenizer,
    template: str,
    first: str,
    second: str,
    *,
    limit: int | None,
    max_first: int = 0,
    max_second: int = 0,
) -> EncodedPair:
    """A query and a document as a template writes them, for a model that was trained to read such a prompt.

    Args:
        template: in Jinja; sees messages with the roles ``query`` and ``document``.
        limit: most tokens of the prompt, which loses its end; None is no limit.
        max_first, max_second: most tokens of each text; 0 is no limit.

    Raises:
        ChatTemplateError: the template is malformed or failed.
    """
    messages = [
        {"role": "query", "content": _shortened(tokenizer, first, max_first)},
        {"role": "document", "content": _shortened(tokenizer, second, max_second)},
    ]
    text = tokenizer.render_chat(messages, chat_template=template)
    return EncodedPair(encode_text(tokenizer, text, limit=limit), None)


def _shortened(tokenizer: Tokenizer, text: str, most: int) -> str:
    """A text of at most ``most`` tokens; 0 is no limit."""
    if not most:
        return text
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    return text if len(token_ids) <= most else tokenizer.decode(token_ids[:most])


def _shares(num_one: int, num_two: int, room: int) -> tuple[int, int]:
    """How many tokens of each text stay: the longer one is cut to the other's length, then both alike."""
    if num_one + num_two <= room:
        return num_one, num_two
    shorter = min(num_one, num_two, room // 2)
    return (shorter, room - shorter) if num_one <= num_two else (room - shorter, shorter)


def cut(token_ids: Sequence[int], limit: int, side: Side) -> list[int]:
    """At most ``limit`` tokens; the rest is cut off at that side."""
    return list(token_ids[:limit] if side == "right" else token_ids[-limit:])
