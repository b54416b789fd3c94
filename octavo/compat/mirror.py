"""Makes the modules of :mod:`octavo.compat.table` importable as ``vllm``.

A folder after all others on ``sys.path`` holds a package ``vllm`` that only calls :func:`become_vllm`, so a vLLM that
is installed is always found first, and processes that inherit the path (``multiprocessing``) or the environment (the
engine's own) find the mirror as well. Its submodules come from a finder on ``sys.meta_path``, which also tells
:mod:`importlib.metadata` the version.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from octavo.compat.table import COMMAND_MODULES, LIVE_MODULES, MISSING_FEATURES, VERSION, mirrored_modules

_SITE = Path(__file__).parent / "site"
_METADATA = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\nSummary: vLLM's interface, mirrored by Octavo\n"
_MODULES = mirrored_modules()
_ANY_DISTRIBUTION = importlib.metadata.DistributionFinder.Context()


def install() -> None:
    """Let ``import vllm`` find the mirror, here and in processes started from here; may be called more than once.

    Raises:
        ImportError: vLLM itself is installed.
    """
    if "vllm" in sys.modules and not isinstance(sys.modules["vllm"], MirrorModule):
        raise ImportError("vLLM itself was imported before; octavo.compat.vllm does not replace it.", name="vllm")
    site = str(_SITE)
    if site not in sys.path:
        found = importlib.util.find_spec("vllm")
        if found is not None and "vllm" not in sys.modules:
            raise ImportError(
                f"vLLM itself is installed at {found.origin}, and Octavo does not hide it. Uninstall it to run this "
                "code with Octavo, or import Octavo's own names: from octavo import LLM, SamplingParams.",
                name="vllm",
            )
        sys.path.append(site)
        inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        os.environ["PYTHONPATH"] = os.pathsep.join([*inherited, site])
    if not any(isinstance(finder, MirrorFinder) for finder in sys.meta_path):
        sys.meta_path.append(MirrorFinder())


def become_vllm(module: ModuleType) -> None:
    """Turn the package of the folder on the path into the mirror's top module; called while it is imported."""
    module.__class__ = MirrorModule
    install()
    module.__path__ = []
    module.__doc__ = _document("vllm")


class MirrorModule(ModuleType):
    """A module whose names are looked up in Octavo when they are first used."""

    def __getattr__(self, name: str) -> Any:
        path = self.__name__
        if name == "__all__":
            return [*_MODULES[path]]
        target = _MODULES[path].get(name)
        if target is not None:
            home, ours = target
            value = getattr(importlib.import_module(home), ours)
            setattr(self, name, value)
            return value
        if path in LIVE_MODULES and not name.startswith("_"):
            return getattr(importlib.import_module(LIVE_MODULES[path]), name)
        if f"{path}.{name}" in _MODULES:
            return importlib.import_module(f"{path}.{name}")
        raise AttributeError(_missing(f"{path}.{name}"), name=name, obj=self)

    def __dir__(self) -> Iterable[str]:
        path = self.__name__
        below = (name.removeprefix(f"{path}.") for name in _MODULES if name.startswith(f"{path}."))
        live = dir(importlib.import_module(LIVE_MODULES[path])) if path in LIVE_MODULES else ()
        return sorted({*super().__dir__(), *_MODULES[path], *live, *(name for name in below if "." not in name)})


class MirrorFinder(importlib.metadata.DistributionFinder, MetaPathFinder, Loader):
    """Finds submodules of ``vllm``, and the distribution's metadata."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module, if it is in the table.

        Raises:
            ImportError: vLLM may have it, Octavo has not.
        """
        if not fullname.startswith("vllm.") or not isinstance(sys.modules.get("vllm"), MirrorModule):
            return None
        if fullname in _MODULES:
            return ModuleSpec(fullname, self, origin="octavo.compat", is_package=fullname not in COMMAND_MODULES)
        parent, _, name = fullname.rpartition(".")
        # "from vllm.outputs import X" asks for X as a module, too; an error of that name would be passed over.
        if parent in _MODULES and not name.islower():
            raise ImportError(_missing(fullname), name=parent)
        raise ModuleNotFoundError(_missing(fullname), name=parent)

    def get_code(self, fullname: str) -> CodeType | None:
        """What ``python -m`` runs: a command, or nothing."""
        command = COMMAND_MODULES.get(fullname)
        if command is None:
            return None
        source = f"import sys\nfrom octavo.compat.commands import {command}\nsys.exit({command}())\n"
        return compile(source, fullname, "exec")

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty mirror."""
        return MirrorModule(spec.name, _document(spec.name))

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: names come when they are used."""

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context = _ANY_DISTRIBUTION
    ) -> Iterable[importlib.metadata.Distribution]:
        """The mirror's metadata in place of vLLM's."""
        return [_Distribution()] if context.name == "vllm" else []


class _Distribution(importlib.metadata.Distribution):
    """What ``importlib.metadata.version("vllm")`` reads."""

    def read_text(self, filename: str) -> str | None:
        return _METADATA if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Path:
        return _SITE / path


def _document(path: str) -> str:
    return f"{path} of vLLM {VERSION}, as Octavo has it; see octavo.compat."


def _missing(path: str) -> str:
    for prefix, reason in MISSING_FEATURES.items():
        if path == prefix or path.startswith(f"{prefix}."):
            return f"Octavo has no {path}: {reason}."
    return f"Octavo has no {path}: it mirrors a part of vLLM {VERSION}, which docs/compat.md lists."
