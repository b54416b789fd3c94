"""Unknown fields of a request's body: reported in a response header and, once per name, in the log."""

import logging
import re
from collections.abc import Mapping
from contextvars import ContextVar
from itertools import islice
from typing import Any

logger = logging.getLogger(__name__)

HEADER = "x-octavo-ignored-fields"
MAX_NAMES = 16
"""Names reported in one response."""
MAX_NAME_LENGTH = 64
MAX_LOGGED = 256
"""Names logged in the lifetime of a process, limited because clients choose them."""
_MAX_LOOKED_AT = 1024
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_logged: set[str] = set()
_IGNORED: ContextVar[list[str] | None] = ContextVar("ignored_fields", default=None)


def watch() -> list[str]:
    """Start recording the ignored fields of one request; the list grows while its body is read."""
    names: list[str] = []
    _IGNORED.set(names)
    return names


def note_ignored(fields: Mapping[str, Any]) -> None:
    """Note fields that no code looks at; those that are null say nothing, and are not counted.

    Args:
        fields: unknown ones, by the names that the client gave them; there may be hundreds of thousands.
    """
    ignored = _IGNORED.get()
    if ignored is None:
        return
    for name, value in islice(fields.items(), _MAX_LOOKED_AT):
        cleaned = _UNSAFE.sub("", name[:MAX_NAME_LENGTH]) or "?"
        if value is None or cleaned in ignored:
            continue
        if len(ignored) == MAX_NAMES:
            return
        ignored.append(cleaned)
        _log_once(cleaned)


def _log_once(name: str) -> None:
    if name in _logged or len(_logged) == MAX_LOGGED:
        return
    _logged.add(name)
    logger.warning("Ignored the unknown request field %r; logged once per name", name)
    if len(_logged) == MAX_LOGGED:
        logger.warning("%d names of ignored fields were logged; further names are not logged", MAX_LOGGED)
