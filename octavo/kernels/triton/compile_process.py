"""Entry point of the processes that compile kernels.

Started as ``python compile_process.py FOLDER FD …`` by ``compile_workers.py``, with the folder of kept kernels, empty
for that of Triton's variable, and one end of a socket pair per process. It imports kernels and forks: the first half of
the processes once it has those that most models have, among them the longest, the others when it has all. Each process
reads descriptions from its socket, compiles them into Triton's cache on disk, and replies whether it did. It
ends when its socket closes, or when nobody has asked for a long time. It never uses a device.

To import torch takes seconds, and kernels do not use it: only the host code around them does, which is not called here.
So torch, NumPy and the rest of Octavo are imported as stand-ins. Constants that host code makes for kernels come with
descriptions. Should a kernel depend on something else, it is kept under another key, and compiled again where it is
launched.
"""

import gc
import os
import socket
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

KERNELS = "octavo.kernels.triton"
COMMON = ("attention", "gather", "linear", "mask", "norm", "rotary", "sampling", "step")
"""Modules with the kernels of most models. Other processes import theirs when they first compile one."""

_IDLE_SECONDS = 600.0


class _Anything(type):
    """The type of :class:`_StandIn`: whatever is done with that gives it again."""

    def __getattr__(cls, name: str) -> Any:
        return _stand_in(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls if cls is _StandIn else super().__call__(*args, **kwargs)

    def __getitem__(cls, item: Any) -> Any:
        return cls


class _StandIn(metaclass=_Anything):
    """Stands for functions, types, decorators and base classes."""


class _StandInModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return _stand_in(name)


def _stand_in(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _StandIn


class _Finder(MetaPathFinder, Loader):
    """Finds stand-ins for what host code imports."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        is_octavos = name.startswith("octavo.") and not f"{name}.".startswith(f"{KERNELS}.")
        if not is_octavos and name.partition(".")[0] not in ("torch", "numpy"):
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if KERNELS.startswith(f"{module.__name__}."):
            module.__path__ = [str(Path(__file__).parents[1])]


def main() -> None:
    """Become as many processes as there are sockets, and serve."""
    folder, *numbers = sys.argv[1:]
    sockets = [socket.socket(fileno=int(number)) for number in numbers]
    sys.meta_path.insert(0, _Finder())
    from triton.runtime import cache

    from octavo.kernels.triton.compiler_key import keep_kernels

    if folder:
        keep_kernels(Path(folder))
    cache.triton_key()
    num_late = len(sockets) // 2
    for names, num_left in ((COMMON, num_late), (_all_names(), 1)):
        for name in names:
            import_module(f"{KERNELS}.{name}")
        gc.freeze()
        while len(sockets) > max(num_left, 1):
            own = sockets.pop(0)
            if os.fork() == 0:
                for other in sockets:
                    other.close()
                _serve(own)
                return
            own.close()
    _serve(sockets[0])


def _all_names() -> Iterator[str]:
    for file in sorted(Path(__file__).parent.glob("*.py")):
        if file.name not in ("__init__.py", Path(__file__).name):
            yield file.stem


def _serve(channel: socket.socket) -> None:
    from octavo.kernels.triton.compile_workers import COMPILED, FAILED, LONGEST_MESSAGE, READY

    channel.settimeout(_IDLE_SECONDS)
    try:
        channel.send(READY)
        while data := channel.recv(LONGEST_MESSAGE):
            channel.send(COMPILED if _compile(data) else FAILED)
    except OSError:
        pass


def _compile(description: bytes) -> bool:
    import triton

    from octavo.kernels.triton.kernel_description import read_description

    try:
        source, target, options = read_description(description)
        # Kernels ask the driver for the target while they are compiled; Triton's own would use the device.
        triton.runtime.driver.set_active(SimpleNamespace(get_current_target=lambda: target))
        triton.compile(source, target, options)
    except Exception:
        # The engine compiles it too, and reports the error.
        return False
    return True


if __name__ == "__main__":
    main()
