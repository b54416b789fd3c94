"""The special tokens that a tokenizer adds around one text or a pair of texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import tokenizers

_SAMPLES = ("a", "A", "0", ".", " ", "\u2581")


@dataclass(frozen=True, slots=True)
class SpecialTokenFrame:
    """The order of a tokenizer's special tokens and the tokens of one or two texts.

    The result equals that of the ``tokenizers`` library, without its per-token records, which take seconds for millions
    of tokens.

    Attributes:
        parts: a special token's id, or a one-element tuple with the index of a text.
        types: the segment of each part.
    """

    parts: tuple[int | tuple[int], ...]
    types: tuple[int, ...]

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer, num_texts: int) -> "SpecialTokenFrame":
        """The frame around one or two texts."""
        text = _sample(backend)
        framed = backend.encode(text, text if num_texts > 1 else None)
        parts: list[int | tuple[int]] = []
        types: list[int] = []
        for token_id, place, kind in zip(framed.ids, framed.sequence_ids, framed.type_ids, strict=True):
            part: int | tuple[int] = token_id if place is None else (place,)
            # One placeholder for all of a text's tokens.
            if place is None or part not in parts:
                parts.append(part)
                types.append(kind)
        return cls(tuple(parts), tuple(types))

    @property
    def num_special_tokens(self) -> int:
        """Number of special tokens."""
        return sum(isinstance(part, int) for part in self.parts)

    def add_special_tokens(self, *texts: Sequence[int]) -> list[int]:
        """The texts' tokens with the special tokens."""
        return list(chain.from_iterable((part,) if isinstance(part, int) else texts[part[0]] for part in self.parts))

    def segment_start(self, *texts: Sequence[int]) -> int | None:
        """Index of the second segment's first token; None if there is only one segment."""
        place = 0
        for part, kind in zip(self.parts, self.types, strict=True):
            num_tokens = 1 if isinstance(part, int) else len(texts[part[0]])
            if kind == 1 and num_tokens:
                return place
            place += num_tokens
        return None

    def strip_special_tokens(self, token_ids: Sequence[int]) -> Sequence[int]:
        """The tokens of the only text, without the special tokens."""
        num_before = self.parts.index((0,))
        return token_ids[num_before : len(token_ids) - (len(self.parts) - num_before - 1)]


def _sample(backend: tokenizers.Tokenizer) -> str:
    """A short text that has at least one token."""
    for text in (*_SAMPLES, *backend.get_vocab(with_added_tokens=False)):
        if backend.encode(text, add_special_tokens=False).ids:
            return text
    raise AssertionError("every tokenizer has a token for some text")
