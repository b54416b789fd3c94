"""What the benchmark scripts share: where they ran, servers to measure, files with figures."""

import asyncio
import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from octavo.bench.http_client import HttpClient
from octavo.cli.bench_report import commit
from octavo.cli.collect_env import machine

OCTAVO = (sys.executable, "-m", "octavo.cli.main")


def describe() -> dict[str, Any]:
    """Machine, versions, commit and time."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "load_average_at_start": os.getloadavg(),
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in ("octavo", "torch", "transformers", "tokenizers", "uvicorn")},
        },
    }


def save(figures: dict[str, Any], path: Path | None) -> None:
    """Print figures as JSON, and write them to a file if one is given."""
    text = json.dumps(figures, indent=2)
    print(text)
    if path is not None:
        path.write_text(text + "\n", encoding="utf-8")


@asynccontextmanager
async def running_server(
    *flags: str, patience: float = 120.0
) -> AsyncGenerator[tuple[psutil.Process, str, float], None]:
    """``octavo serve`` with the given flags: its process, its URL and the seconds from command to ready.

    Raises:
        RuntimeError: it ended, or was not ready in time.
    """
    port = _free_port()
    start = time.perf_counter()
    process = _start([*OCTAVO, "serve", *flags, "--host", "127.0.0.1", "--port", str(port)])
    url = f"http://127.0.0.1:{port}"
    try:
        await _wait_until_healthy(process, url, start + patience)
        yield psutil.Process(process.pid), url, time.perf_counter() - start
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command)


async def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, deadline: float) -> None:
    client = HttpClient(url)
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"The server ended with status {process.returncode}.")
        if time.perf_counter() > deadline:
            raise RuntimeError("The server was not ready in time.")
        try:
            async with client.request("GET", "/health") as response:
                if response.status == 200:
                    return
        except OSError:
            pass
        finally:
            await client.close()
        await asyncio.sleep(0.02)


def family(process: psutil.Process) -> list[psutil.Process]:
    """A process and everything it started that still lives."""
    return [process, *process.children(recursive=True)]


def resident_bytes(process: psutil.Process) -> int:
    """Resident memory of a process and everything it started."""
    total = 0
    for member in family(process):
        try:
            total += member.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def cpu_seconds(process: psutil.Process) -> float:
    """Processor time that a process and everything it started have used."""
    total = 0.0
    for member in family(process):
        try:
            times = member.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
