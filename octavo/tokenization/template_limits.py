"""Limits the time and memory of chat templates, which may be malicious.

Jinja's sandbox protects Python's internals, but does not prevent a template from looping for hours or building a
string of a terabyte. Here every loop iteration, call, filter and operator checks the clock, and the size of every
value that could grow is checked before it is computed. What counts is the processor time of the thread that renders:
a busy machine, on which a good template waits long for its turn, fails no request.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any

from jinja2.exceptions import SecurityError

MAX_SECONDS = 2.0
MAX_TEXT_LENGTH = 1 << 23
MAX_TOTAL_LENGTH = 1 << 28
MAX_INT_BITS = 1 << 12
MAX_COUNT = 100_000
_WIDE_PERCENT_FORMAT = re.compile(r"%[^A-Za-z%]*(\*|\d{6,})")
_WIDE_BRACE_FORMAT = re.compile(r"\{[^{}]*:[^{}]*(\{|\d{6,})")

# Filters that iterate over or count their value's elements; all others convert the whole value to text.
_STRUCTURAL_FILTERS = frozenset(
    {
        *("abs", "attr", "batch", "count", "d", "default", "dictsort", "first", "float", "groupby", "int"),
        *("items", "last", "length", "list", "map", "max", "min", "random", "reject", "rejectattr", "reverse"),
        *("round", "select", "selectattr", "slice", "sort", "sum", "unique"),
    }
)


@dataclass(slots=True)
class _Budget:
    """The remaining budget of a rendering.

    ``num_characters`` of new text in total, and processor time of this thread until its clock (``time.thread_time``)
    shows ``end``. It cannot show that before the wall clock (``time.monotonic``, far cheaper to read) is at
    ``next_check``.
    """

    end: float
    next_check: float
    num_characters: int


_budget: ContextVar[_Budget] = ContextVar("chat_template_budget")


class TemplateLimitError(SecurityError):
    """A template exceeded a limit, which the message names."""


@contextmanager
def budget(seconds: float) -> Iterator[None]:
    """A context in which the functions here raise once ``seconds`` of processor time or too much text are used."""
    token = _budget.set(_Budget(time.thread_time() + seconds, time.monotonic() + seconds, MAX_TOTAL_LENGTH))
    try:
        yield
    finally:
        _budget.reset(token)


def check_deadline(value: Any = None) -> Any:
    """Return ``value``; raise if the time is up."""
    budget = _budget.get()
    now = time.monotonic()
    if now > budget.next_check:
        remaining = budget.end - time.thread_time()
        if remaining <= 0:
            raise TemplateLimitError("it took too long")
        budget.next_check = now + remaining
    return value


def check_length(length: int) -> None:
    """Raise if a text or list of ``length`` elements is too long, by itself or together with all before it."""
    budget = _budget.get()
    if length > MAX_TEXT_LENGTH or length > budget.num_characters:
        raise TemplateLimitError("it made a text or list that is too long")
    budget.num_characters -= length


def check_printable(value: Any) -> Any:
    """Return ``value``, which is about to be converted to text; raise if the text would be too long."""
    check_deadline()
    if isinstance(value, (list, tuple, dict, set)):
        check_length(_measure(value, 0))
    elif isinstance(value, str):
        check_length(len(value))
    return value


def checked_concat(parts: Iterable[str]) -> str:
    """Join ``parts``; raise if the result would be too long."""
    kept: list[str] = []
    length = 0
    for part in parts:
        kept.append(part)
        length += len(part)
        if length > MAX_TEXT_LENGTH:
            break
    check_length(length)
    return "".join(kept)


def concat_values(values: Iterable[Any]) -> str:
    """Join ``values`` as text: the template operator ``~``."""
    return checked_concat(str(check_printable(value)) for value in values)


def check_binary_operation(operator: str, left: Any, right: Any) -> None:
    """Raise if the result of ``left operator right`` would be too large."""
    check_deadline()
    if operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
        check_length(len(left) + len(right))
    elif operator == "*":
        _check_product(left, right)
    elif operator == "**":
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > MAX_INT_BITS:
            raise TemplateLimitError("it made a number that is too large")
    elif operator == "%" and isinstance(left, str):
        check_format(left)
        check_printable(right)


def check_format(text: str) -> None:
    """Raise for a format string (either of Python's kinds) with a large width, or one taken from a value."""
    if _WIDE_PERCENT_FORMAT.search(text) or _WIDE_BRACE_FORMAT.search(text):
        raise TemplateLimitError("it used a format of unlimited width")


def guarded_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """``method`` of a template's value; string methods are wrapped to check the length of the result."""
    owner = getattr(method, "__self__", None)
    if not isinstance(owner, str):
        return method
    estimate = _ESTIMATES.get(method.__name__)

    def call(*args: Any, **kwargs: Any) -> Any:
        _check_counts((*args, *kwargs.values()))
        if estimate is not None:
            check_length(estimate(owner, *args))
        return method(*args, **kwargs)

    return call


def guarded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the filter ``function`` to check the clock and its arguments before it runs."""
    num_leading = 1 if hasattr(function, "jinja_pass_arg") else 0
    estimate = _ESTIMATES.get(name)
    makes_text = name not in _STRUCTURAL_FILTERS

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        check_deadline()
        value, *rest = args[num_leading:] if len(args) > num_leading else (None,)
        _check_counts((*rest, *kwargs.values()))
        if makes_text:
            check_printable(value)
        if estimate is not None and isinstance(value, str):
            check_length(estimate(value, *rest, *kwargs.values()))
        elif name == "join" and isinstance(value, Sized):
            check_length(len(value) * max((len(arg) for arg in rest if isinstance(arg, str)), default=0))
        elif name == "format":
            check_format(str(value))
        elif name == "sum" and not all(isinstance(arg, (int, float, str)) for arg in (*rest, *kwargs.values())):
            raise TemplateLimitError("it summed up something other than numbers")
        elif isinstance(value, Iterator):
            args = (*args[:num_leading], _measured(value), *rest)
        return function(*args, **kwargs)

    return call


def _check_product(left: Any, right: Any) -> None:
    for value, count in ((left, right), (right, left)):
        if isinstance(value, (str, list, tuple)) and isinstance(count, int):
            check_length(len(value) * count)
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > MAX_INT_BITS:
        raise TemplateLimitError("it made a number that is too large")


def _check_counts(args: Iterable[Any]) -> None:
    for arg in args:
        if isinstance(arg, int) and abs(arg) > MAX_COUNT:
            raise TemplateLimitError(f"it used a number above {MAX_COUNT} as a width or count")


def _measured(values: Iterator[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, str):
            check_length(len(value))
        yield check_deadline(value)


def _measure(value: Any, total: int) -> int:
    """``total`` plus a lower bound of the length of ``str(value)``; raises as soon as it is too long."""
    if isinstance(value, str):
        total += len(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            total = _measure(item, _measure(key, total + 4))
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            total = _measure(item, total + 2)
    else:
        total += 1
    if total > MAX_TEXT_LENGTH:
        raise TemplateLimitError("it made a text or list that is too long")
    return total


def _length_of_replace(text: str, *args: Any) -> int:
    old, new = [arg for arg in args if isinstance(arg, str)][:2] or ("", "")
    return len(text) + text.count(old) * len(new)


def _length_of_padding(text: str, *args: Any) -> int:
    return len(text) + sum(arg for arg in args if isinstance(arg, int))


def _length_per_line(text: str, *args: Any) -> int:
    added = sum(arg if isinstance(arg, int) else len(arg) for arg in args if isinstance(arg, (int, str)))
    return len(text) + (text.count("\n") + 1) * added


def _length_per_character(text: str, *args: Any) -> int:
    added = sum(arg if isinstance(arg, int) else len(arg) for arg in args if isinstance(arg, (int, str)))
    return len(text) * max(1, added)


def _length_of_join(text: str, *args: Any) -> int:
    values = args[0] if args and isinstance(args[0], (list, tuple, str)) else ()
    return len(text) * len(values) + _measure(list(values), 0)


_ESTIMATES: dict[str, Callable[..., int]] = {
    "replace": _length_of_replace,
    "center": _length_of_padding,
    "ljust": _length_of_padding,
    "rjust": _length_of_padding,
    "zfill": _length_of_padding,
    "indent": _length_per_line,
    "expandtabs": _length_per_character,
    "wordwrap": _length_per_character,
    "join": _length_of_join,
}
