"""How Triton keeps compiled kernels, so that a folder of them may be copied to another place or machine.

Triton hashes its files in every process, before it looks for the first kernel in its cache; one library among them has
400 MB. An installer has written the hashes of all files down, so here that part of a kernel's key is the hash of the
installer's list. Kernels that were compiled on one machine are found on another one with the same versions.
"""

import csv
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import triton
from triton.runtime import cache as triton_cache
from triton.runtime.cache import FileCacheManager
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
    """Let Triton keep compiled kernels in ``folder``, under keys with :func:`compiler_key`."""
    triton.knobs.cache.dir = str(folder)
    triton_cache.triton_key = compiler_key
    if triton.knobs.cache.manager_class is None:
        triton.knobs.cache.manager_class = KeptFiles


class KeptFiles(FileCacheManager):
    """Finds the files of a kernel beside each other; Triton notes their absolute paths."""

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Paths by name of the files that were kept together with ``filename``; None if there are none."""
        group = self.get_file(f"__grp__{filename}")
        if group is None:
            return None
        names = json.loads(Path(group).read_text(encoding="utf-8"))["child_paths"]
        return {name: path for name in names if (path := self.get_file(name)) is not None}


@cache
def compiler_key() -> str:
    """The key of the files that this process has of Triton."""
    return _recorded_key(Path(triton.__file__).parent) or _compute_key()


def _recorded_key(package: Path) -> str | None:
    """The key by the list of an installed package's files; None without a list, or if files have other sizes.

    Source: https://packaging.python.org/en/latest/specifications/recording-installed-packages/
    """
    for record in sorted(package.parent.glob("*.dist-info/RECORD")):
        if package.name not in record.parent.name:
            continue
        text = record.read_text(encoding="utf-8")
        rows = sorted(csv.reader(text.splitlines()))
        files = [row for row in rows if row[0].startswith(f"{package.name}/") and row[1]]
        if files and all(_has_size(package.parent / path, int(size)) for path, _, size in files):
            return f"{triton.__version__}-{hashlib.sha256(repr(files).encode()).hexdigest()}"
    return None


def _has_size(file: Path, size: int) -> bool:
    try:
        return file.stat().st_size == size
    except OSError:
        return False
