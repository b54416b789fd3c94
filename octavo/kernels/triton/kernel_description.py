"""What Triton needs to compile a kernel, as bytes that another process turns back into it.

A description names the kernel's function; all other values are scalars, tuples and lists. A kernel with other ones
(layouts, types or functions as constants) has no description: it is compiled where it is launched. Constants of modules
come along, since the process that compiles may have none of the host code that they are made of.
"""

from importlib import import_module
from typing import Any

import msgspec
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

_PACKAGE = "octavo."

Place = tuple[int, ...]
"""A parameter's number, and those of places in tuples within it."""


class _Description(msgspec.Struct, array_like=True):
    """A kernel; values as :func:`_plain` makes them."""

    module: str
    name: str
    globals: list[tuple[str, str, Any]]
    signature: dict[str, Any]
    constants: list[tuple[Place, Any]]
    attributes: list[tuple[Place, Any]]
    target: tuple[str, int | str, int]
    options: dict[str, Any]


def describe(
    function: Any,
    signature: dict[str, Any],
    constants: dict[Place, Any],
    attributes: dict[Place, Any],
    target: GPUTarget,
    options: dict[str, Any],
) -> bytes | None:
    """The description of a kernel, or None if it has none.

    Args:
        function: the kernel's function; the others as Triton's ``ASTSource`` and ``compile`` take them.
    """
    module, name = function.__module__, function.__name__
    if not module.startswith(_PACKAGE) or getattr(import_module(module), name, None) is not function:
        return None
    try:
        description = _Description(
            module,
            name,
            _globals_of(function),
            {key: _plain(value) for key, value in signature.items()},
            [(place, _plain(value)) for place, value in constants.items()],
            [(place, _plain(value)) for place, value in attributes.items()],
            (target.backend, target.arch, target.warp_size),
            {key: _plain(value) for key, value in options.items()},
        )
        return msgspec.msgpack.encode(description)
    except (TypeError, OverflowError):
        return None


def read_description(data: bytes) -> tuple[ASTSource, GPUTarget, dict[str, Any]]:
    """The arguments of ``triton.compile``: source, target and options.

    Raises:
        ImportError, AttributeError: there is no such function.
    """
    found = msgspec.msgpack.decode(data, type=_Description)
    for module, name, plain in found.globals:
        setattr(import_module(module), name, tl.constexpr(_value(plain)))
    function = getattr(import_module(found.module), found.name)
    source = (GluonASTSource if function.is_gluon() else ASTSource)(
        function,
        {name: _value(plain) for name, plain in found.signature.items()},
        {place: _value(plain) for place, plain in found.constants},
        {place: _value(plain) for place, plain in found.attributes},
    )
    return source, GPUTarget(*found.target), {name: _value(plain) for name, plain in found.options.items()}


def _globals_of(function: Any) -> list[tuple[str, str, Any]]:
    """Module, name and value of each constant that a kernel and the functions that it calls find in their modules."""
    _ = function.cache_key  # looks for them
    used = function.used_global_vals.items()
    return [
        (scope["__name__"], name, _plain(value.value))
        for (name, _), (value, scope) in used
        if isinstance(value, tl.constexpr)
    ]


def _plain(value: Any) -> Any:
    """A scalar stays itself; a tuple or list becomes a list that begins with whether it is a tuple.

    Raises:
        TypeError: it is none of them.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (tuple, list):
        return [type(value) is tuple, *map(_plain, value)]
    raise TypeError(f"{type(value)} has no description")


def _value(plain: Any) -> Any:
    if not isinstance(plain, list):
        return plain
    is_tuple, *items = plain
    return (tuple if is_tuple else list)(map(_value, items))
