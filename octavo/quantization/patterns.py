"""Names of layers in configurations: patterns of checkpoints' authors, and modules around layers."""

import re
from collections.abc import Mapping, Sequence
from fnmatch import translate
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import invalid

_MAX_PATTERN = 1000


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """A pattern in a configuration.

    Raises:
        UnsupportedModelError: it is no regular expression.
    """
    return _compiled(pattern[:_MAX_PATTERN])


def compile_wildcards(name: str) -> re.Pattern[str]:
    """A name in which ``*`` stands for anything: of layers, or of modules around them, in full or from any dot on.

    Raises:
        UnsupportedModelError: it is too long, or no such pattern.
    """
    if len(name) > _MAX_PATTERN:
        raise invalid("a name of layers", name, f"of at most {_MAX_PATTERN} characters")
    forms = (name, f"*.{name}", f"{name}.*", f"*.{name}.*")
    return _compiled("|".join(translate(form) for form in forms))


def names_in(raw: Mapping[str, Any], keys: Sequence[str]) -> tuple[str, ...]:
    """The names under several keys of a configuration, each of which may be absent.

    Raises:
        UnsupportedModelError: one is no list of names.
    """
    found: list[str] = []
    for key in keys:
        names = raw.get(key) or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise invalid(key, names, "a list of names")
        found += names
    return tuple(found)


def is_within(name: str, module: str) -> bool:
    """Whether a layer is a module of this name or in one; the name may begin at any dot."""
    return f".{module}." in f".{name}."


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        raise UnsupportedModelError(
            "The checkpoint's quantization_config has a target that is no regular expression."
        ) from None
