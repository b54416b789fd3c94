"""Triton's interpreter as tests need it: it goes with NumPy, rounds as devices do, and is five times as fast."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter

_ROUNDED_TYPES = {
    "fp8e4nv": (torch.float8_e4m3fn, torch.uint8),
    "fp8e5": (torch.float8_e5m2, torch.uint8),
    "bf16": (torch.bfloat16, torch.uint16),
}
"""Float types of which NumPy has none → torch's, and the integers that the interpreter keeps them as."""

_SCALAR_SHAPE = interpreter.tl.core.tuple([])
_SCALAR_NUMEL = interpreter.tl.core.constexpr(1)


def amend() -> None:
    """Replace the interpreter's functions, once per process."""
    interpreter._patch_lang_tensor = _patch_tensor_for_numpy(interpreter._patch_lang_tensor)
    interpreter._patch_lang = _patch_language_once(interpreter._patch_lang)
    interpreter._get_np_dtype = _types_by_name(interpreter._get_np_dtype)
    interpreter._convert_float = _convert_float_as_devices_do(interpreter._convert_float)
    builder = interpreter.InterpreterBuilder
    builder.create_splat = _splat_conditions(builder.create_splat)
    builder.create_dot = _multiply_bfloat16(builder.create_dot)
    block_type, semantic = interpreter.tl.block_type, type(interpreter.interpreter_semantic)
    block_type.__new__, block_type.__init__ = _share_types(block_type.__init__)
    for kind in (interpreter.tl.dtype, block_type):
        kind.__eq__ = _equal_if_shared(kind.__eq__)
    interpreter.tl.tensor.__init__ = _take_shape_of_type
    semantic.broadcast_impl_value = _broadcast_by_sizes(semantic.broadcast_impl_value)
    # A check of sums and products, a third of all time, whose result nothing reads without ``debug``.
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)


def _patch_tensor_for_numpy(patch: Callable[..., None]) -> Callable[..., None]:
    """Let scalars, arrays of one element there, bound loops: NumPy 2.4 refuses Triton 3.6's way of it."""

    def patch_tensor(tensor: type, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patch_tensor


def _patch_language_once(patch: Callable[..., Any]) -> Callable[..., Any]:
    """Patch the language for a kernel, and not again for each function that it calls, a quarter of all time."""
    whole = SimpleNamespace(__globals__={"tl": interpreter.tl, "core": interpreter.tl.core})
    scopes: list[Any] = []

    def patch_language(_function: Any) -> Any:
        if scopes:
            return SimpleNamespace(restore=lambda: None)
        scopes.append(patch(whole))
        return SimpleNamespace(restore=lambda: scopes.pop().restore())

    return patch_language


def _types_by_name(get_type: Callable[..., Any]) -> Callable[..., Any]:
    """Look NumPy's types up, rather than in a new table each time."""
    known: dict[str, Any] = {}

    def get(kind: Any) -> Any:
        kind = kind.scalar
        if kind.is_ptr():
            return get_type(kind)
        if kind.name not in known:
            known[kind.name] = get_type(kind)
        return known[kind.name]

    return get


def _splat_conditions(splat: Callable[..., Any]) -> Callable[..., Any]:
    """Keep conditions conditions: Triton 3.9 makes integers of a scalar one and then takes none for a mask."""

    def create_splat(builder: Any, result_type: Any, scalar: Any) -> Any:
        block = splat(builder, result_type, scalar)
        if scalar.data.dtype == np.bool_:
            block.data = block.data.astype(np.bool_)
        return block

    return create_splat


def _multiply_bfloat16(multiply: Callable[..., Any]) -> Callable[..., Any]:
    """Multiply what bfloat16 values are: the interpreter keeps them as integers, and would multiply those."""

    def widen(block: Any) -> Any:
        if block.dtype.scalar.name != "bf16":
            return block
        values = (block.data.astype(np.uint32) << 16).view(np.float32)
        return interpreter.TensorHandle(values, interpreter.tl.float32)

    def create_dot(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        return multiply(builder, widen(a), widen(b), *rest)

    return create_dot


def _convert_float_as_devices_do(convert: Callable[..., Any]) -> Callable[..., Any]:
    """Round to the nearest value as devices do: Triton's way loses what carries over into the exponent, or cuts."""

    def convert_float(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if target.name not in _ROUNDED_TYPES or source.name != "fp32":
            return convert(values, source, target, rounding)
        wide = torch.from_numpy(np.array(values)).view(torch.float32)
        kind, kept_as = _ROUNDED_TYPES[target.name]
        return wide.to(kind).view(kept_as).numpy()

    return convert_float


def _share_types(initialize: Callable[..., None]) -> tuple[Callable[..., Any], Callable[..., None]]:
    """Make one object of each type of blocks, not one for each block, a third of all time: nothing changes them.

    A shared type knows its shape as integers, and as the compile-time values that its blocks show.
    """
    known: dict[Any, Any] = {}
    core = interpreter.tl.core

    def new(cls: type, element_ty: Any, shape: Iterable[Any], *_: Any, **__: Any) -> Any:
        sizes = tuple(size.value if isinstance(size, core.constexpr) else size for size in shape)
        # Pointers of two address spaces have one name.
        key = cls, element_ty.name, getattr(element_ty, "address_space", None), sizes
        if key in known:
            return known[key]
        made = object.__new__(cls)
        if cls is interpreter.tl.block_type:
            initialize(made, element_ty, list(sizes))
            made.sizes = sizes
            made.shown_shape = core.tuple([core.constexpr(size) for size in sizes])
            made.shown_numel = core.constexpr(made.numel)
            known[key] = made
        return made

    def initialize_once(block_type: Any, element_ty: Any, shape: Any) -> None:
        if not hasattr(block_type, "sizes"):
            initialize(block_type, element_ty, shape)

    return new, initialize_once


def _equal_if_shared(are_equal: Callable[..., bool]) -> Callable[..., bool]:
    """Compare names, element types and shapes only of types that are not the same object."""
    return lambda one, other: one is other or are_equal(one, other)


def _take_shape_of_type(tensor: Any, handle: Any, type: Any) -> None:
    """What a tensor's ``__init__`` does, with the shape that all tensors of a type share."""
    tensor.handle, tensor.type, tensor.dtype = handle, type, type.scalar
    if type.is_block():
        tensor.shape, tensor.numel = type.shown_shape, type.shown_numel
    else:
        tensor.shape, tensor.numel = _SCALAR_SHAPE, _SCALAR_NUMEL


def _broadcast_by_sizes(broadcast: Callable[..., Any]) -> Callable[..., Any]:
    """Bring scalars and blocks of one rank to one shape without Triton's comparisons, a quarter of all time."""

    def expand(semantic: Any, value: Any, sizes: tuple[int, ...]) -> Any:
        if not value.type.is_block():
            kind = interpreter.tl.block_type(value.type, sizes)
            return interpreter.tl.tensor(semantic.builder.create_splat(kind, value.handle), kind)
        if value.type.sizes == sizes:
            return value
        kind = interpreter.tl.block_type(value.type.scalar, sizes)
        return interpreter.tl.tensor(semantic.builder.create_broadcast(value.handle, sizes), kind)

    def broadcast_impl_value(semantic: Any, lhs: Any, rhs: Any) -> Any:
        left, right = getattr(lhs.type, "sizes", ()), getattr(rhs.type, "sizes", ())
        if left == right:
            return lhs, rhs
        sizes = left or right
        if left and right:
            sizes = tuple(map(max, left, right))
            pairs = zip(left + right, sizes + sizes, strict=True)
            if len(left) != len(right) or any(size not in (1, most) for size, most in pairs):
                return broadcast(semantic, lhs, rhs)  # adds dimensions, or says why the shapes do not go together
        return expand(semantic, lhs, sizes), expand(semantic, rhs, sizes)

    return broadcast_impl_value
