"""Limits on generation other than length: repetitions and reasoning."""

import msgspec

from octavo.errors import InvalidRequestError

MAX_PATTERN_SIZE = 512
MAX_PATTERN_COUNT = 1 << 16
MAX_TAG_TOKENS = 64
MAX_START_TAGS = 8


class RepetitionDetectionParams(msgspec.Struct, omit_defaults=True):
    """When to end a text that repeats itself, with vLLM's names.

    Attributes:
        max_pattern_size: maximum number of tokens in the repeated pattern; 0 turns detection off.
        min_pattern_size: minimum number of tokens in the pattern; 0 is 1.
        min_count: number of consecutive repetitions at the text's end, at least 2.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    @property
    def is_on(self) -> bool:
        """Whether detection is on."""
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
                raise _invalid(f"{name} must be a whole number between 0 and {limit}, got {value!r}.")
        if self.is_on and self.min_pattern_size > self.max_pattern_size:
            raise _invalid(f"min_pattern_size must not exceed max_pattern_size ({self.max_pattern_size}).")
        if self.is_on and self.min_count < 2:
            raise _invalid(f"min_count must be at least 2, got {self.min_count}.")


class ReasoningTags(msgspec.Struct, omit_defaults=True):
    """A model's reasoning tags, as token ids.

    Attributes:
        end: the tag that ends it.
        is_open: whether the prompt ends inside reasoning.
        forced_end: tokens forced when the budget is spent, ending in ``end``; empty for ``end`` alone.
    """

    start: list[list[int]]
    end: list[int]
    is_open: bool = False
    forced_end: list[int] = []


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(f"repetition_detection: {message}", "repetition_detection")
