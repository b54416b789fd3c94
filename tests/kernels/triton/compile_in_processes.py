"""Compiles some of a model's kernels in other processes, without a GPU.

    python compile_in_processes.py FOLDER

prints their names if this process finds them in FOLDER, under the keys that it computes itself, and if they are as
this process compiles them.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import compile_for_gpu
import triton
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.runtime.cache import get_cache_key
from triton.runtime.jit import JITFunction

from octavo.kernels.triton import compile_workers
from octavo.kernels.triton.compile import _is_kept
from octavo.kernels.triton.compile_workers import CompileWorkers
from octavo.kernels.triton.compiler_key import keep_kernels
from octavo.kernels.triton.kernel_description import describe

# The quantize and filter kernels have constants that are made of Octavo's and torch's.
NAMES = {
    "_gather_rows_kernel",
    "_quantize_normed_kernel",
    "filter_kernel",
    "specialised_linear_kernel",
    "stream_kernel",
}

found: dict[str, tuple[Any, ...]] = {}
"""One kernel per name: key, description, source, target, options."""


def note(
    self: Any, key: Any, signature: Any, device: int, constants: Any, options: Any, attributes: Any, warmup: bool
) -> None:
    """Instead of compiling a kernel."""
    _, _, target, backend, _ = self.device_caches[device]
    description = describe(self, signature, constants, attributes, target, options.__dict__)
    assert description is not None, f"other processes cannot compile {self.__name__}"
    if self.__name__ in NAMES - found.keys():
        source = self.ASTSource(self, signature, constants, attributes)
        key = get_cache_key(source, backend, options, get_cache_invalidating_env_vars())
        found[self.__name__] = key, description, source, target, options.__dict__


def compile_elsewhere(workers: CompileWorkers, name: str) -> None:
    """Ask until it is there: until the processes have started, kernels are for this process."""
    key, description, *_ = found[name]
    for _ in range(600):
        if workers.compile(description, lambda: _is_kept(key, name)):
            return
        time.sleep(0.1)
    raise TimeoutError(name)


def assembly(name: str, folder: Path) -> str:
    """A kernel as it is kept in a folder, or as it is compiled into it."""
    triton.knobs.cache.dir = str(folder)
    return str(triton.compile(*found[name][2:]).asm["ptx"])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    keep_kernels(folder)
    JITFunction._do_compile = note
    compile_workers._number = lambda num_devices: 2
    compile_for_gpu.main("llama-bfloat16-float8")
    workers = CompileWorkers(folder, 1)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: compile_elsewhere(workers, name), sorted(NAMES)))
    workers.close()
    for name in NAMES:
        if assembly(name, folder) == assembly(name, folder / "here"):
            print(name)
