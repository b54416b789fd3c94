"""What ``import vllm`` finds while vLLM's tests run: Octavo's compatibility package, completed by stand-ins.

A test of the server imports a handful of helpers (:mod:`.helpers`). Everything else of vLLM's package that Octavo does
not mirror is a :class:`Missing`: importing it is harmless, but a test that *uses* it drives vLLM's own classes rather
than an interface that users see, and is deselected at that moment with the name as its reason.
"""

import importlib
import importlib.abc
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest

from benchmarks.vllm_tests import helpers
from benchmarks.vllm_tests.outcomes import INTERNAL

_TESTS_NOT_IMPORTED = ("tests.conftest", "tests.models", "tests.v1", "tests.reasoning", "tests.tool_parsers")
"""Helpers of vLLM's tests that need its engine, a GPU or the hub."""


class Missing:
    """A name of vLLM that is not mirrored: permissive while test files are imported, then deselects its user."""

    is_strict = False

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def _use(self) -> "Missing":
        if Missing.is_strict:
            pytest.skip(f"{INTERNAL}: {self.__name__}")
        return self

    def __getattr__(self, name: str) -> "Missing":
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        self._use()
        return Missing(f"{self.__name__}.{name}")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self._use()
        # As a decorator of a test's own function, it leaves the function as it is.
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) and not named else self

    def __getitem__(self, key: object) -> "Missing":
        return self._use()

    def __or__(self, other: object) -> "Missing":
        return self._use()

    __ror__ = __add__ = __radd__ = __sub__ = __mul__ = __truediv__ = __lt__ = __gt__ = __or__

    def __iter__(self) -> Iterator[Any]:
        return iter((self._use(),))

    def __bool__(self) -> bool:
        self._use()
        return False

    def __instancecheck__(self, instance: object) -> bool:
        self._use()
        return False

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (_DerivesFromMissing,)


class _DerivesFromMissing:
    """The base of a test's classes that derive from a name that is not mirrored."""

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        if Missing.is_strict:
            pytest.skip(f"{INTERNAL}: {cls.__name__} derives from it")
        return super().__new__(cls)


class _Completing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands before the other finders and completes what they find under ``vllm``."""

    def __init__(self) -> None:
        self._mirrored: dict[str, ModuleSpec] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.startswith(_TESTS_NOT_IMPORTED):
            return ModuleSpec(fullname, self, is_package=True)
        if fullname.partition(".")[0] != "vllm":
            return None
        found = self._find_elsewhere(fullname, path, target)
        if found is not None:
            self._mirrored[fullname] = found
        return ModuleSpec(fullname, self, is_package=True)

    def _find_elsewhere(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            try:
                found = None if finder is self else finder.find_spec(fullname, path, target)
            except ImportError:  # the compatibility package says so of what it does not mirror
                continue
            if found is not None:
                return found
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        mirrored = self._mirrored.get(spec.name)
        return mirrored.loader.create_module(mirrored) if mirrored and mirrored.loader else None

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        name = module.__spec__.name
        mirrored = self._mirrored.get(name)
        if mirrored and mirrored.loader:
            mirrored.loader.exec_module(module)
        for key, value in helpers.PROVIDED.get(name, {}).items():
            setattr(module, key, value)  # knows the models that stand in, which what is mirrored does not
        known = getattr(module, "__getattr__", None)
        module.__getattr__ = lambda key: _attribute(name, key, known)  # type: ignore[method-assign]


def _attribute(module: str, key: str, known: Any) -> Any:
    if known is not None:
        try:
            return known(key)
        except AttributeError:
            pass
    if key.startswith("__"):
        raise AttributeError(key)
    return Missing(f"{module}.{key}")


def install() -> None:
    """Make ``import vllm`` find the compatibility package where it has the module, and stand-ins for the rest."""
    importlib.import_module("octavo.compat.vllm")
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Completing())
