"""Find stop strings in text that comes in pieces."""

from collections.abc import Sequence


class StopStringMatcher:
    """Lets text through until a stop string is complete.

    The first stop string to be completed ends the text, the longest one if several are completed by one character;
    so the result does not depend on how the text is cut into pieces. Only text that may be the start of a stop
    string is held back.

    Args:
        stop_strings: at least one, none of them empty.
        include_in_output: let the stop string itself through as well.

    Attributes:
        matched: the stop string that ended the text, None before.
    """

    __slots__ = ("_first_characters", "_held", "_include_in_output", "_stop_strings", "matched")

    def __init__(self, stop_strings: Sequence[str], include_in_output: bool = False) -> None:
        self.matched: str | None = None
        self._stop_strings = tuple(stop_strings)
        self._first_characters = frozenset(stop_string[0] for stop_string in stop_strings)
        self._include_in_output = include_in_output
        self._held = ""

    def match_delta(self, text: str) -> str:
        """The text that may be shown now that ``text`` has come; once something matched, nothing more comes."""
        if not text:
            return ""
        num_held = len(self._held)
        text = self._held + text
        best: tuple[int, int, str] | None = None
        for stop_string in self._stop_strings:
            # A match that ended within the held text would have been found before.
            start = text.find(stop_string, max(0, num_held - len(stop_string) + 1))
            if start >= 0:
                found = (start + len(stop_string), start, stop_string)
                best = found if best is None else min(best, found)
        if best is not None:
            end, start, self.matched = best
            self._held = ""
            return text[: end if self._include_in_output else start]
        return self._hold_back(text)

    def flush(self) -> str:
        """The text held back, when no more will come."""
        held, self._held = self._held, ""
        return held

    def _hold_back(self, text: str) -> str:
        """Keep the longest end of ``text`` that begins a stop string and return what is before it."""
        longest = max(map(len, self._stop_strings)) - 1
        for start in range(max(0, len(text) - longest), len(text)):
            if text[start] in self._first_characters:
                end = text[start:]
                if any(stop_string.startswith(end) for stop_string in self._stop_strings):
                    self._held = end
                    return text[:start]
        self._held = ""
        return text
