"""Limits on how a text goes on, beyond its length."""

import msgspec

from octavo.errors import InvalidRequestError

MAX_PATTERN_SIZE = 512
MAX_PATTERN_COUNT = 1 << 16
MAX_TAG_TOKENS = 64
MAX_START_TAGS = 8


class RepetitionDetectionParams(msgspec.Struct, omit_defaults=True):
    """When a text that repeats itself is ended, with vLLM's names.

    Attributes:
        max_pattern_size: most tokens of what is repeated; 0 looks for nothing.
        min_pattern_size: fewest tokens of it; 0 is 1.
        min_count: how often it must stand in a row at the text's end, at least 2.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    @property
    def is_on(self) -> bool:
        """Whether there is anything to look for."""
        return self.max_pattern_size > 0

    def verify(self) -> None:
        """Check every field.

        Raises:
            InvalidRequestError: a field is out of range, or they contradict each other.
        """
        for name, value, limit in (
            ("max_pattern_size", self.max_pattern_size, MAX_PATTERN_SIZE),
            ("min_pattern_size", self.min_pattern_size, MAX_PATTERN_SIZE),
            ("min_count", self.min_count, MAX_PATTERN_COUNT),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
                raise _wrong(f"{name} must be a whole number between 0 and {limit}, got {value!r}.")
        if self.is_on and self.min_pattern_size > self.max_pattern_size:
            raise _wrong(f"min_pattern_size must not exceed max_pattern_size ({self.max_pattern_size}).")
        if self.is_on and self.min_count < 2:
            raise _wrong(f"min_count must be at least 2, got {self.min_count}.")


class ThoughtTags(msgspec.Struct, omit_defaults=True):
    """How a model marks its thoughts, in tokens.

    Attributes:
        start: tags that begin a thought.
        end: the tag that ends it.
        is_open: whether the prompt ends in a thought.
        forced_end: what ends it when its budget is spent: ``end``, perhaps after some words; empty for ``end`` alone.
    """

    start: list[list[int]]
    end: list[int]
    is_open: bool = False
    forced_end: list[int] = []


def _wrong(message: str) -> InvalidRequestError:
    return InvalidRequestError(f"repetition_detection: {message}", "repetition_detection")
