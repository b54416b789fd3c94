"""Built-in tools: the operator defines what ``{"type": "web_search"}`` and similar types do.

There is none by default. The operator names a hook for a type with ``--builtin-tool TYPE=WHERE``, WHERE being
``package.module:NAME`` or ``FILE.py:NAME``; NAME is a function that makes a :class:`BuiltinTool` of a request's tool.
"""

import importlib
import importlib.util
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from octavo.errors import ConfigError

_TYPE = re.compile(r"[a-z][a-z_]{0,63}")
_VERSION = re.compile(r"(_preview)?(_\d{4}_\d{2}_\d{2})?$")


@dataclass(frozen=True, slots=True)
class BuiltinResult:
    """What came of a call.

    Attributes:
        fields: of the output item, as the protocol has them: ``action`` of a web search, ``code`` of an interpreter.
    """

    text: str
    fields: dict[str, Any] = field(default_factory=dict)


class BuiltinTool(Protocol):
    """A built-in tool, set up for one request."""

    @property
    def name(self) -> str:
        """What the model calls it."""

    @property
    def description(self) -> str:
        """The tool's description for the model."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON schema of the arguments, an object."""

    async def call(self, arguments: dict[str, Any]) -> BuiltinResult:
        """Call the tool. An exception becomes a general failure message for the model."""


Hook = Callable[[Mapping[str, Any]], BuiltinTool]
"""From the tool of a request, checked only for its type, to the tool; raises InvalidRequestError if it is wrong."""


def base_type(kind: str) -> str:
    """A tool's type without version: ``web_search`` for ``web_search_preview_2025_03_11``."""
    return _VERSION.sub("", kind)


def load_hooks(entries: Iterable[str]) -> dict[str, Hook]:
    """The operator's hooks by type."""
    hooks: dict[str, Hook] = {}
    for entry in entries:
        kind, _, where = entry.partition("=")
        place, _, name = where.rpartition(":")
        if not _TYPE.fullmatch(kind) or not place or not name:
            raise ConfigError(f"builtin_tool is TYPE=MODULE:NAME or TYPE=FILE.py:NAME, got {entry!r}.")
        if kind in ("function", "mcp"):
            raise ConfigError(f"builtin_tool: tools of type {kind} are not built-in tools.")
        hook = getattr(_import(place), name, None)
        if not callable(hook):
            raise ConfigError(f"builtin_tool: there is no function {name!r} in {place}.")
        hooks[base_type(kind)] = hook
    return hooks


def _import(place: str) -> object:
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        spec = importlib.util.spec_from_file_location(f"octavo_hook_{Path(place).stem}", place)
        if spec is None or spec.loader is None:
            raise ImportError("it is not a Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"builtin_tool: {place} cannot be imported: {error}.") from error
    return module
