"""A server as users start it: a process of its own, with the demo model, asked over HTTP."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import openai
import psutil
from ports import free_port

MODEL = "bundled:smollm2"
SMALL = (
    *("--max-model-len", "512"),
    *("--kv-cache-memory-bytes", "192MiB"),
    *("--num-threads", "1"),
    *("--log-level", "warning"),
    # Tests compare texts to the letter; in bfloat16 a sum may round differently in a batch of another size.
    *("--dtype", "float32"),
    "--disable-uvicorn-access-log",
)
PATIENCE = 120.0


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds, looking often."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"waited {PATIENCE:.0f} s in vain"
        time.sleep(0.02)


async def until_async(holds: Callable[[], bool]) -> None:
    """The same beside a running event loop."""
    await asyncio.to_thread(until, holds)


def environment() -> dict[str, str]:
    """One thread for a machine that runs other things as well."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def octavo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    command = [sys.executable, "-m", "octavo.cli.main", *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False)


class ServerProcess:
    """``octavo serve``, running.

    Args:
        flags: further ones of the command line.
    """

    def __init__(self, *flags: str, api_key: str = "none", model: str = MODEL) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.api_key = api_key
        self.log = Path(tempfile.mkstemp(suffix=".log")[1])
        command = [sys.executable, "-m", "octavo.cli.main", "serve", model, "--host", "127.0.0.1"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port), *SMALL, *flags], env=environment(), stderr=log
            )
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE, headers={"authorization": f"Bearer {api_key}"})

    @property
    def health(self) -> int:
        """Status of ``/health``; 0 if nobody answers."""
        try:
            return self.http.get("/health").status_code
        except httpx.TransportError:
            return 0

    def wait_until_healthy(self) -> None:
        """Wait until requests are served."""

        def is_healthy() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return self.health == 200

        until(is_healthy)

    def client(self) -> openai.OpenAI:
        """The official client."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.api_key, max_retries=0, timeout=PATIENCE)

    def async_client(self) -> openai.AsyncOpenAI:
        """The official client, asynchronous."""
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.api_key, max_retries=0, timeout=PATIENCE)

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        lines = self.http.get("/metrics").text.splitlines()
        values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"octavo:{name}{{")]
        assert values, f"there is no metric {name}"
        return sum(values)

    def is_idle(self) -> bool:
        """Whether nothing runs or waits and every block is back."""
        return not any(map(self.metric, ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")))

    def children(self, module: str) -> list[psutil.Process]:
        """Living processes of this server that run a module."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if module in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def kill_engine(self) -> None:
        """What the out-of-memory killer would do."""
        (engine,) = self.children("octavo.engine.process")
        engine.kill()

    def family(self) -> list[psutil.Process]:
        """The server's process and all that it started."""
        main = psutil.Process(self.process.pid)
        return [main, *main.children(recursive=True)]

    def stop(self) -> None:
        """End it, with all its processes, whatever state it is in."""
        self.http.close()
        family = self.family() if self.process.poll() is None else []
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        self.log.unlink()
