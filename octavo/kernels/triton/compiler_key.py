"""Triton's key of its own files, kept from one start to the next.

Triton hashes all of its files once in every process, before it looks for the first kernel in its cache; one library
among them has 400 MB. Here the key is kept beside the kernels, and holds as long as all files have the same sizes and
times of change. A kernel's own key is made the same in every process.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import triton
from triton.runtime import cache as triton_cache
from triton.runtime.jit import DependenciesFinder

_compute_key = triton_cache.triton_key
_update_hash = DependenciesFinder._update_hash


def _update_complete_hash(finder: DependenciesFinder, function: Any) -> None:
    """Add a called function to the hash of its caller.

    Triton 3.6 takes the globals that a function uses before it has looked for them, so that a kernel's key depends on
    what was hashed earlier, and another process has another one.
    """
    _ = function.cache_key
    _update_hash(finder, function)


DependenciesFinder._update_hash = _update_complete_hash


def keep_kernels(folder: Path) -> None:
    """Let Triton keep compiled kernels, and its key, in ``folder``."""
    triton.knobs.cache.dir = str(folder)
    keep_compiler_key(folder)


def has_key(folder: Path) -> bool:
    """Whether a process has compiled or looked for kernels there."""
    return (folder / "compiler-key").exists()


def keep_compiler_key(folder: Path) -> None:
    """Let Triton take its key from a file in ``folder``, where one process leaves it for the next."""

    @cache
    def kept_key() -> str:
        state = _state_of_files()
        with suppress(OSError, ValueError):
            kept_state, key = (folder / "compiler-key").read_text().split("\n", 1)
            if kept_state == state:
                return key
        key = _compute_key()
        with suppress(OSError):  # a folder that cannot be written costs time, as Triton's cache in it does
            folder.mkdir(parents=True, exist_ok=True)
            unfinished = folder / f"compiler-key.{os.getpid()}"
            unfinished.write_text(f"{state}\n{key}")
            unfinished.replace(folder / "compiler-key")
        return key

    triton_cache.triton_key = kept_key


def _state_of_files() -> str:
    """A hash of the names, sizes and times of change of all of Triton's files."""
    state = hashlib.sha256()
    for file in sorted(_files(os.path.dirname(triton.__file__)), key=lambda file: file.path):
        status = file.stat()
        state.update(f"{file.path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return state.hexdigest()


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir():
                yield entry
            elif entry.name != "__pycache__":
                yield from _files(entry.path)
