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
    bare.truncate(room, direction=side)
    ids: list[int] = tokenizer.backend.post_process(bare).ids
    return ids


def encode_pair(
    tokenizer: Tokenizer, first: str, second: str, *, limit: int | None, max_first: int = 0, max_second: int = 0
) -> EncodedPair:
    """A query and a document as a cross-encoder reads them.

    Args:
        limit: most tokens of both together, framing included; the longer text loses its end first. None is no limit.
        max_first, max_second: most tokens of each; 0 is no limit.

    Raises:
        InvalidRequestError: a text is not Unicode, or the limit leaves no room for either.
    """
    one, two = _bare(tokenizer, first), _bare(tokenizer, second)
    num_one = min(len(one), max_first or len(one))
    num_two = min(len(two), max_second or len(two))
    if limit is not None:
        room = limit - tokenizer.backend.num_special_tokens_to_add(True)
        if room < 2:
            raise InvalidRequestError(
                f"truncate_prompt_tokens is {limit}, which leaves no room for two texts.", "truncate_prompt_tokens"
            )
        num_one, num_two = _shares(num_one, num_two, room)
    one.truncate(num_one, direction="right")
    two.truncate(num_two, direction="right")
    encoding = tokenizer.backend.post_process(one, two)
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


def cut(token_ids: list[int], limit: int, side: Side) -> list[int]:
    """At most ``limit`` tokens; those that are too many go on that side."""
    return token_ids[:limit] if side == "right" else token_ids[-limit:]
