"""Names of layers in configurations: patterns of checkpoints' authors, and modules around layers."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Any, Protocol

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import invalid

_MAX_PATTERN = 1000
_REGEX = "re:"
_WILDCARDS = frozenset("*?[")


class Matcher(Protocol):
    """Says which layers a configuration means: a regular expression, or :class:`ModuleNames`."""

    def match(self, name: str, /) -> object:
        """Something true if a layer of this full name is one of them."""
        ...


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """Names of layers, or of modules around them, in full or from any dot on; see :func:`module_names`.

    Configurations of models with many experts have hundreds of names, which are looked up for tens of thousands of
    layers.

    Attributes:
        plain: names without wildcards.
        starts: what stands before the only wildcard of a name, at its end.
        patterns: the others.
    """

    plain: frozenset[str] = frozenset()
    starts: tuple[str, ...] = ()
    patterns: tuple[re.Pattern[str], ...] = ()

    def match(self, name: str, /) -> bool:
        """See :class:`Matcher`."""
        is_named = bool(self.plain) and any(module in self.plain for module in _spans(name))
        if is_named or (self.starts and any(end.startswith(self.starts) for end in _ends(name))):
            return True
        return any(pattern.match(name) for pattern in self.patterns)


def module_names(names: Iterable[str]) -> ModuleNames:
    """The layers that are meant by names, names with wildcards, and regular expressions after ``re:``.

    Raises:
        UnsupportedModelError: one is no such pattern.
    """
    plain, starts, patterns = [], [], []
    for name in names:
        start = name.removesuffix("*")
        if name.startswith(_REGEX) or not _WILDCARDS.isdisjoint(start) or len(name) > _MAX_PATTERN:
            patterns.append(compile_name(name))
        elif start != name:
            starts.append(start)
        else:
            plain.append(name)
    return ModuleNames(frozenset(plain), tuple(starts), tuple(patterns))


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


def compile_name(name: str) -> re.Pattern[str]:
    """The pattern of a name with wildcards, or of a regular expression after ``re:``.

    Raises:
        UnsupportedModelError: it is neither.
    """
    return compile_pattern(name.removeprefix(_REGEX)) if name.startswith(_REGEX) else compile_wildcards(name)


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


def _ends(name: str) -> Iterator[str]:
    """A name, and what is behind each of its dots."""
    while name:
        yield name
        name = name.partition(".")[2]


def _spans(name: str) -> Iterator[str]:
    """All runs of a name's parts between dots."""
    parts = name.split(".")
    for start in range(len(parts)):
        for stop in range(start + 1, len(parts) + 1):
            yield ".".join(parts[start:stop])


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        raise UnsupportedModelError(
            "The checkpoint's quantization_config has a target that is no regular expression."
        ) from None
