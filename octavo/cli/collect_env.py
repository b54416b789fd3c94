"""``octavo collect-env``: this machine and installation, for a bug report. Holds no secrets."""

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from octavo import __version__
from octavo.cli.parser import Parser
from octavo.errors import OctavoError

_PACKAGES = (
    *("torch", "triton", "transformers", "tokenizers", "safetensors", "huggingface_hub", "gguf", "numpy", "msgspec"),
    *("pyzmq", "fastapi", "starlette", "uvicorn", "uvloop", "httptools", "pydantic", "jinja2"),
)
_CPU_FLAGS = (
    *("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("avx_vnni", "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)
_VARIABLE_PREFIXES = (
    "OCTAVO_",
    "VLLM_",
    "CUDA_",
    "NVIDIA_",
    "NCCL_",
    "TORCH",
    "PYTORCH_",
    "TRITON_",
    "OMP_",
    "MKL_",
    "KMP_",
)
_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH")
_SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIAL", "AUTH")


def run(arguments: Sequence[str]) -> int:
    """Print the description; returns the exit status."""
    parser = Parser("octavo collect-env", "Describe this machine and installation, for a bug report.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse(arguments)
    sections = {
        "Software": software(),
        "Machine": machine(),
        "GPUs": gpus(),
        "Variables": relevant_variables(os.environ),
    }
    if given.json:
        print(json.dumps(sections, indent=2))
        return 0
    for title, rows in sections.items():
        print(f"{title}:")
        width = max((len(name) for name in rows), default=0)
        for name, value in rows.items():
            print(f"  {name:<{width}}  {value}")
        if not rows:
            print("  none")
    return 0


def software() -> dict[str, str]:
    """Versions, of packages without importing them."""
    rows = {"octavo": __version__, "python": sys.version.replace("\n", " "), "os": _os_name()}
    for package in _PACKAGES:
        try:
            rows[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            rows[package] = "not installed"
    return rows


def machine() -> dict[str, str]:
    """Processor and memory."""
    import psutil

    memory = psutil.virtual_memory()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    model, flags = _cpu()
    return {
        "cpu": model,
        "cores": f"{usable} usable of {os.cpu_count()}, {psutil.cpu_count(logical=False)} physical",
        **_threads(),
        "cpu features": " ".join(flag for flag in _CPU_FLAGS if flag in flags) or "unknown",
        "memory": f"{memory.total / 2**30:.1f} GiB, {memory.available / 2**30:.1f} GiB available",
        "shared memory": _free_space("/dev/shm"),
        "glibc": " ".join(platform.libc_ver()).strip() or "unknown",
    }


def gpus() -> dict[str, str]:
    """NVIDIA GPUs and what torch makes of them."""
    rows: dict[str, str] = {}
    if importlib.util.find_spec("torch") is not None:
        from octavo.platforms import describe_torch

        rows["torch's CUDA"] = describe_torch()
        rows["NVRTC"] = _runtime_compiler()
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return rows
    query = "--query-gpu=name,memory.total,driver_version,compute_cap"
    try:
        listing = subprocess.run(
            [tool, query, "--format=csv,noheader"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        rows["nvidia-smi"] = f"failed: {error}"
        return rows
    rows.update({f"GPU {index}": line for index, line in enumerate(listing.stdout.strip().splitlines())})
    return rows


def _runtime_compiler() -> str:
    from octavo.kernels.cuda.nvrtc import CompilerMissingError, find_compiler

    try:
        return ".".join(map(str, find_compiler().version))
    except CompilerMissingError as error:
        return f"none: {error}"


def relevant_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that change how Octavo runs; values of those that may be secret are hidden."""
    names = sorted(name for name in environment if name in _VARIABLES or name.startswith(_VARIABLE_PREFIXES))
    return {
        name: "(hidden)" if any(word in name.upper() for word in _SECRET_WORDS) else environment[name] for name in names
    }


def _os_name() -> str:
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = platform.system()
    return f"{name}, kernel {platform.release()}, {platform.machine()}"


def _cpu() -> tuple[str, frozenset[str]]:
    """The processor's name and features, as far as known."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or "unknown", frozenset()
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    flags = fields.get("flags", fields.get("Features", ""))
    return fields.get("model name", platform.machine()), frozenset(flags.split())


def _threads() -> dict[str, str]:
    """The cores that this process may use, and where it would compute on them by the environment's settings."""
    if importlib.util.find_spec("torch") is None:
        return {}
    from octavo.config.environment import settings_from_environment
    from octavo.config.settings import DeviceSettings
    from octavo.platforms import place_threads, this_process

    topology = this_process()
    quota = "no limit" if topology.quota is None else f"{topology.quota:g} CPUs"
    try:
        placement = str(
            place_threads(DeviceSettings(**settings_from_environment(DeviceSettings.__struct_fields__)), topology)
        )
    except OctavoError as error:
        placement = str(error)
    return {
        "usable cores": f"{len(topology.cores)} physical, {len(topology.nodes)} NUMA node(s), quota: {quota}",
        "threads": placement,
    }


def _free_space(path: str) -> str:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return "none"
    return f"{usage.total / 2**30:.1f} GiB, {usage.free / 2**30:.1f} GiB free"
