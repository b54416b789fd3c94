"""CUDA's forward-compatibility libraries: a newer CUDA on an older driver, on request only.

Data-centre GPUs can do it; consumer GPUs fail with error 803 if the libraries are found, so nothing looks for them
unless ``VLLM_ENABLE_CUDA_COMPATIBILITY`` (or ``OCTAVO_ENABLE_CUDA_COMPATIBILITY``) is 1. Must run before torch is
imported.
"""

import ctypes
import os
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path

_LIBRARY = "libcuda.so.1"
_DEFAULT_CUDA = "/usr/local/cuda"


def enable_cuda_compatibility(environment: MutableMapping[str, str] = os.environ) -> Path | None:
    """Let this process and those that it starts use the compatibility libraries, if that is asked for.

    Processes that are started find them by ``LD_LIBRARY_PATH``. A running process has read that already, so the
    library is loaded into it right away.

    Returns:
        The folder of the libraries; None if they were not asked for, or are not there.
    """
    if _value(environment, "ENABLE_CUDA_COMPATIBILITY").lower() not in ("1", "true"):
        return None
    folder = next((each for each in _candidates(environment) if (each / _LIBRARY).exists()), None)
    if folder is None:
        print("octavo: CUDA's compatibility libraries were asked for, but not found.", file=sys.stderr)
        return None
    paths = [path for path in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if path]
    if str(folder) not in paths[:1]:
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(
            [str(folder), *(path for path in paths if path != str(folder))]
        )
    try:
        ctypes.CDLL(str(folder / _LIBRARY), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        print(f"octavo: CUDA's compatibility libraries cannot be loaded: {error}", file=sys.stderr)
    return folder


def _candidates(environment: MutableMapping[str, str]) -> Iterator[Path]:
    """Where the libraries may lie: at the path that was given, else in Conda's environment, else with CUDA."""
    if given := _value(environment, "CUDA_COMPATIBILITY_PATH"):
        yield Path(given)
        return
    if prefix := environment.get("CONDA_PREFIX"):
        yield Path(prefix) / "cuda-compat"
    yield Path(environment.get("CUDA_HOME") or environment.get("CUDA_PATH") or _DEFAULT_CUDA) / "compat"


def _value(environment: MutableMapping[str, str], name: str) -> str:
    return (environment.get(f"OCTAVO_{name}") or environment.get(f"VLLM_{name}") or "").strip()
