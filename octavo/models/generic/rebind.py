"""Gives single modules of the transformers library another function in the place of one that their code calls."""

import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from torch import nn
from transformers.utils import deprecation


def calls(module: nn.Module, name: str) -> bool:
    """Whether a module's ``forward`` calls a function of its own file by this name."""
    forward = _forward(module)
    return isinstance(forward, FunctionType) and name in forward.__code__.co_names and name in forward.__globals__


def original(module: nn.Module, name: str) -> Callable[..., Any]:
    """The function that a module calls by this name; see :func:`calls`."""
    function: Callable[..., Any] = _forward(module).__globals__[name]
    return function


def rebind(module: nn.Module, name: str, function: Callable[..., Any]) -> None:
    """Let one module call another function; other modules, and other models of the class, are not affected."""
    forward = _forward(module)
    assert isinstance(forward, FunctionType), "checked by calls()"
    own = FunctionType(
        forward.__code__,
        forward.__globals__ | {name: function},
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    own.__kwdefaults__ = forward.__kwdefaults__
    vars(module)["forward"] = MethodType(own, module)


def _forward(module: nn.Module) -> Any:
    """The function behind the library's decorators for former names of arguments, which its own code does not use."""
    return inspect.unwrap(type(module).forward, stop=lambda function: not _renames(function))


def _renames(function: Any) -> bool:
    return isinstance(function, FunctionType) and function.__code__.co_filename == deprecation.__file__
