"""Typed access to a configuration file; every error is an UnsupportedModelError that names the key."""

import math
from typing import Any

from octavo.errors import UnsupportedModelError

MAX_SIZE = 1 << 24
MAX_LAYERS = 4096
_MAX_SHOWN = 60


class ConfigValues:
    """A configuration with defaults for what is absent; a null is a value of its own.

    Args:
        raw: what config.json holds.
        defaults: values of absent keys.
        fixed: values that override both.
    """

    def __init__(self, raw: dict[str, Any], defaults: dict[str, Any], fixed: dict[str, Any]) -> None:
        self._values = {**defaults, **raw, **fixed}

    def get(self, key: str) -> Any:
        """The value as it is; None if there is none."""
        return self._values.get(key)

    def count(self, key: str, limit: int = MAX_SIZE, least: int = 1) -> int:
        """A whole number from ``least`` to ``limit``; an error if it is absent or something else, as in all below."""
        value = self.optional_count(key, limit, least)
        if value is None:
            raise UnsupportedModelError(f"The model's configuration lacks {key!r}.")
        return value

    def optional_count(self, key: str, limit: int = MAX_SIZE, least: int = 1) -> int | None:
        """The same, None if absent."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= limit:
            raise invalid(key, value, f"a whole number from {least} to {limit}")
        return value

    def number(self, key: str) -> float:
        """A finite number above 0."""
        value = self.optional_number(key)
        if value is None:
            raise UnsupportedModelError(f"The model's configuration lacks {key!r}.")
        return value

    def optional_number(self, key: str) -> float | None:
        """The same, None if absent."""
        value = self.get(key)
        return None if value is None else positive_number(key, value)

    def flag(self, key: str) -> bool:
        """True or false; absent is false."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise invalid(key, value, "true or false")
        return bool(value)

    def text(self, key: str) -> str:
        """A string."""
        value = self.get(key)
        if not isinstance(value, str):
            raise invalid(key, value, "a string")
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        """An object; absent is an empty one."""
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise invalid(key, value, "an object")
        return value or {}


def positive_number(key: str, value: Any) -> float:
    """A finite number above 0."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # Python's whole numbers have no largest; one beyond a float's range would overflow on the way.
    if not is_number or not 0 < value < 1e300 or not math.isfinite(value):
        raise invalid(key, value, "a positive number")
    return float(value)


def reject_flags(values: ConfigValues, *keys: str) -> None:
    """Reject flags that are true."""
    for key in keys:
        if values.flag(key):
            raise UnsupportedModelError(f"The model's configuration has {key} = true, which is not supported.")


def reject_values(values: ConfigValues, *keys: str) -> None:
    """Reject keys that have a value other than null, false or 0."""
    for key in keys:
        if value := values.get(key):
            raise UnsupportedModelError(
                f"The model's configuration has {key} = {quote(value)}, which is not supported."
            )


def require_values(values: ConfigValues, required: dict[str, Any]) -> None:
    """Check keys of which only one value is implemented.

    Args:
        required: key → that value; the key may also be absent or null.
    """
    for key, value in required.items():
        found = values.get(key)
        if found is not None and found != value:
            raise invalid(key, found, repr(value))


def invalid(key: str, value: Any, wanted: str) -> UnsupportedModelError:
    """The error that names a key, its value, and what it must be."""
    return UnsupportedModelError(f"The model's configuration has {key} = {quote(value)}; it must be {wanted}.")


def quote(value: Any) -> str:
    """A value's ``repr`` for an error message, cut short."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
