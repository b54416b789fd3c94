"""Parses command-line values: counts with suffixes, JSON, pairs and lists; raises ArgumentTypeError if that fails."""

import argparse
import json
import re
from collections.abc import Callable, Collection
from decimal import Decimal
from typing import Any, TypeVar

from octavo.errors import ConfigError

Number = TypeVar("Number", int, float)

_COUNT = re.compile(r"([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)")
_STRING_OR_COUNT = re.compile(r'"(?:\\.|[^"\\])*"|-?\d+(?:\.\d+)?[kKmMgGtT]\b')
_BINARY = {letter: 1024**power for power, letter in enumerate("KMGT", start=1)}
_DECIMAL = {letter: 1000**power for power, letter in enumerate("KMGT", start=1)}
_MULTIPLIERS: dict[str, int] = {
    "": 1,
    "B": 1,
    **{letter.lower(): factor for letter, factor in _DECIMAL.items()},
    **_BINARY,
    **{f"{letter}B": factor for letter, factor in _DECIMAL.items()},
    **{f"{letter}iB": factor for letter, factor in _BINARY.items()},
    "kB": 1000,
}


def parse_count(text: str) -> int:
    """A whole number, with vLLM's suffixes and those of sizes.

    ``8k`` is 8000 and ``8K`` 8192, likewise m/M, g/G, t/T; ``500MB`` counts thousands, ``4GiB`` counts 1024s;
    ``1e9`` and ``25.6k`` are read as well.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None or match[2] not in _MULTIPLIERS:
        raise argparse.ArgumentTypeError(f"takes a whole number such as 8192, 8k (8000) or 4GiB, not {text!r}")
    value = Decimal(match[1])
    if value.adjusted() > 30:
        raise argparse.ArgumentTypeError(f"takes a smaller number than {text!r}")
    value *= _MULTIPLIERS[match[2]]
    if value != int(value):
        raise argparse.ArgumentTypeError(f"takes a whole number, and {text!r} is not one")
    return int(value)


def parse_float(text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"takes a number, not {text!r}") from None


def parse_json(text: str) -> Any:
    """JSON, whose numbers may have the suffixes k, m, g, t (thousands) and K, M, G, T (1024s)."""
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(_STRING_OR_COUNT.sub(_without_suffix, text))


def _without_suffix(match: re.Match[str]) -> str:
    if match[0].startswith('"'):
        return match[0]
    try:
        return str(parse_count(match[0]))
    except argparse.ArgumentTypeError as error:
        raise ValueError(str(error)) from None


def parse_json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = parse_json(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f'takes JSON such as {{"key": 1}}, and this is not: {error}') from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'takes a JSON object such as {{"key": 1}}, not {text}')
    return value


def split_names(text: str, known: Collection[str], kind: str) -> list[str]:
    """Names separated by commas.

    Args:
        kind: what a name stands for, in the error.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ConfigError(f"There is no {kind} {name!r}; there are {', '.join(known)}.")
    return names


def split_numbers(
    flag: str, text: str, convert: Callable[[str], Number], is_valid: Callable[[Number], bool], expected: str
) -> list[Number]:
    """Numbers separated by commas.

    Args:
        expected: the valid range, in the error.
    """
    try:
        numbers = [convert(item) for item in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(map(is_valid, numbers)):
        raise ConfigError(f"{flag} takes numbers {expected} with commas, not {text!r}.")
    return numbers


def parse_pair(text: str) -> tuple[str, str]:
    """``KEY=VALUE``."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError(f"takes KEY=VALUE, not {text!r}")
    return key, value
