"""What a tokenizer puts around texts: where tokens of its own stand, whatever the texts are."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import tokenizers

_SAMPLES = ("a", "A", "0", ".", " ", "\u2581")


@dataclass(frozen=True, slots=True)
class Frame:
    """The order in which a tokenizer's own tokens and those of one or two texts stand.

    A frame put around tokens is what the ``tokenizers`` library makes of the text, but needs none of its records of
    every token, which take seconds for millions.

    Attributes:
        parts: a token of the tokenizer's own, or the index of a text in brackets.
        types: the segment to which each part belongs.
    """

    parts: tuple[int | tuple[int], ...]
    types: tuple[int, ...]

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer, num_texts: int) -> "Frame":
        """The frame around so many texts, one or two."""
        text = _sample(backend)
        framed = backend.encode(text, text if num_texts > 1 else None)
        parts: list[int | tuple[int]] = []
        types: list[int] = []
        for token_id, place, kind in zip(framed.ids, framed.sequence_ids, framed.type_ids, strict=True):
            part: int | tuple[int] = token_id if place is None else (place,)
            # Of a text's tokens, one stands for all.
            if place is None or part not in parts:
                parts.append(part)
                types.append(kind)
        return cls(tuple(parts), tuple(types))

    @property
    def num_own(self) -> int:
        """How many tokens are the tokenizer's own."""
        return sum(isinstance(part, int) for part in self.parts)

    def around(self, *texts: Sequence[int]) -> list[int]:
        """The texts' tokens with the tokenizer's own."""
        return list(chain.from_iterable((part,) if isinstance(part, int) else texts[part[0]] for part in self.parts))

    def segment_start(self, *texts: Sequence[int]) -> int | None:
        """The first token of the second segment; None if all are of one."""
        place = 0
        for part, kind in zip(self.parts, self.types, strict=True):
            num_tokens = 1 if isinstance(part, int) else len(texts[part[0]])
            if kind == 1 and num_tokens:
                return place
            place += num_tokens
        return None

    def inside(self, token_ids: Sequence[int]) -> Sequence[int]:
        """The tokens of the one text that the frame is around."""
        num_before = self.parts.index((0,))
        return token_ids[num_before : len(token_ids) - (len(self.parts) - num_before - 1)]


def _sample(backend: tokenizers.Tokenizer) -> str:
    """Some text that comes to tokens."""
    for text in (*_SAMPLES, *backend.get_vocab(with_added_tokens=False)):
        if backend.encode(text, add_special_tokens=False).ids:
            return text
    raise AssertionError("a tokenizer knows some text")
