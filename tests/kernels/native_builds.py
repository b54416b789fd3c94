"""The builds of the compiled CPU kernels that this processor runs."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

from octavo.kernels.dispatch import Operation
from octavo.platforms.native import NativeKernels, instruction_sets

EMULATED = {"amx_emulated": "avx512_bf16"}
"""Builds for tests only (``OCTAVO_TEST_BUILDS``), and the instruction set that they need."""


def built() -> list[str]:
    """Instruction sets that this processor has and whose kernels were built, and builds for tests that it runs."""
    names = []
    present = instruction_sets()
    for name in [*present, *(emulated for emulated, needed in EMULATED.items() if needed in present)]:
        try:
            load(name)
        except ImportError:
            continue
        names.append(name)
    return names


def load(name: str) -> NativeKernels:
    """The build for an instruction set, whether or not Octavo would choose it."""
    return cast(NativeKernels, importlib.import_module(f"octavo.platforms._native_{name}"))


def operations_of(
    native: NativeKernels, register: Callable[[NativeKernels], None], operations: Mapping[str, Operation[Any]]
) -> SimpleNamespace:
    """A build's implementations of operations by name, as ``register`` makes them; they stay until a test's end."""
    register(native)
    found = {name: operation.implementations["cpu"] for name, operation in operations.items()}
    return SimpleNamespace(**found, native=native)


@contextmanager
def threads(native: NativeKernels, count: int) -> Iterator[None]:
    """A team of another size for a while."""
    before = native.num_threads()
    native.set_num_threads(count)
    try:
        yield
    finally:
        native.set_num_threads(before)
