"""Texts and pairs of texts to token ids, cut where they are too long without losing the tokens that frame them."""

from dataclasses import dataclass
from typing import Literal

import tokenizers

from octavo.errors import InvalidRequestError
from octavo.tokenization.tokenizer import Tokenizer

Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """Two texts as one prompt.

    Attributes:
        segment_start: first token of the second text's segment, for models that tell them apart.
    """

    token_ids: list[int]
    segment_start: int | None


@dataclass(frozen=True, slots=True)
class BareText:
    """A text's tokens without a frame, to stand in several pairs.

    Attributes:
        encoding: as much as can stay.
        num_tokens: of the text, up to its own limit.
    """

    encoding: tokenizers.Encoding
    num_tokens: int


def encode_text(
    tokenizer: Tokenizer, text: str, *, limit: int | None, side: Side = "right", add_special_tokens: bool = True
) -> list[int]:
    """Token ids of a text.

    Args:
        limit: most tokens to keep; None is all.
        side: where tokens go that are too many; those that the tokenizer puts around a text stay.

    Raises:
        InvalidRequestError: the text is not Unicode.
    """
    token_ids = tokenizer.encode(text, add_special_tokens)
    if limit is None or len(token_ids) <= limit:
        return token_ids
    room = limit - tokenizer.backend.num_special_tokens_to_add(False)
    if not add_special_tokens or room <= 0:
        return cut(token_ids, limit, side)
    bare = _bare(tokenizer, text)
    _truncate(bare, room, side)
    ids: list[int] = tokenizer.backend.post_process(bare).ids
    return ids


def bare_text(tokenizer: Tokenizer, text: str, *, limit: int | None, most: int = 0) -> BareText:
    """A text for :func:`encode_pair`.

    Args:
        limit: most tokens of the pair; None is no limit.
        most: most tokens of this text; 0 is no limit.

    Raises:
        InvalidRequestError: the text is not Unicode.
    """
    encoding = _bare(tokenizer, text)
    num_tokens = min(len(encoding), most or len(encoding))
    _truncate(encoding, num_tokens if limit is None else min(num_tokens, limit), "right")
    return BareText(encoding, num_tokens)


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

    Raises:
        InvalidRequestError: a text is not Unicode, or the limit leaves no room for either.
    """
    one = first if isinstance(first, BareText) else bare_text(tokenizer, first, limit=limit, most=max_first)
    two = bare_text(tokenizer, second, limit=limit, most=max_second)
    num_one, num_two = one.num_tokens, two.num_tokens
    if limit is not None:
        room = limit - tokenizer.backend.num_special_tokens_to_add(True)
        if room < 2:
            raise InvalidRequestError(
                f"truncate_prompt_tokens is {limit}, which leaves no room for two texts.", "truncate_prompt_tokens"
            )
        num_one, num_two = _shares(num_one, num_two, room)
    copy = tokenizers.Encoding.merge([one.encoding], growing_offsets=False)
    _truncate(copy, num_one, "right")
    _truncate(two.encoding, num_two, "right")
    encoding = tokenizer.backend.post_process(copy, two.encoding)
    types = encoding.type_ids
    return EncodedPair(encoding.ids, types.index(1) if 1 in types else None)


def _shares(num_one: int, num_two: int, room: int) -> tuple[int, int]:
    """How many tokens of each text stay: the longer one is cut to the other's length, then both alike."""
    if num_one + num_two <= room:
        return num_one, num_two
    shorter = min(num_one, num_two, room // 2)
    return (shorter, room - shorter) if num_one <= num_two else (room - shorter, shorter)


def _bare(tokenizer: Tokenizer, text: str) -> tokenizers.Encoding:
    try:
        return tokenizer.backend.encode(text, add_special_tokens=False)
    except TypeError:
        raise InvalidRequestError("A text holds lone surrogates (half characters), which are not Unicode.") from None


def _truncate(encoding: tokenizers.Encoding, num_tokens: int, side: Side) -> None:
    """Cut in halves down to the last cut: of what goes, the library makes pieces as long as what stays."""
    while len(encoding) > 2 * num_tokens + 1:
        encoding.truncate(len(encoding) // 2, direction=side)
    encoding.truncate(num_tokens, direction=side)


def cut(token_ids: list[int], limit: int, side: Side) -> list[int]:
    """At most ``limit`` tokens; those that are too many go on that side."""
    return token_ids[:limit] if side == "right" else token_ids[-limit:]
