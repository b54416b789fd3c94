"""Middleware supplied by the operator."""

import importlib
import inspect
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from starlette.middleware.base import BaseHTTPMiddleware

from octavo.errors import ConfigError


def add_plugins(app: FastAPI, names: Sequence[str]) -> None:
    """Put middleware around an app, each around those before.

    Args:
        names: as ``package.module.Name`` or ``package.module:Name``: an ASGI middleware class, or an async function of
            a request and ``call_next``.

    Raises:
        ConfigError: there is no such thing, or it is neither.
    """
    for name in names:
        found = _find(name)
        is_class: bool = inspect.isclass(found)
        if is_class:
            app.add_middleware(found)
        elif inspect.iscoroutinefunction(found):
            app.add_middleware(BaseHTTPMiddleware, dispatch=found)
        else:
            raise ConfigError(f"The middleware {name!r} is neither a class nor an async function.")


def _find(name: str) -> Any:
    module_name, _, attribute = name.rpartition(":" if ":" in name else ".")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"The middleware {name!r} cannot be imported: {error}.") from None
