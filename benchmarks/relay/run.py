"""What relaying streams costs: one API process, 256 streams, an engine that is only a clock.

    python benchmarks/relay/run.py --streams 256 --output-json result.json

Runs Octavo's API process and a plain FastAPI server in turns over the same fake engine, each kept to the first core
(the engine and the clients have the others), and compares the processor time that a relayed token costs.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

sys.path.append(str(Path(__file__).resolve().parents[1]))
from common import describe, save

from octavo.api.launch import ApiLaunch
from octavo.bench.http_client import HttpClient
from octavo.config import EngineConfig, ServerSettings
from octavo.hub import resolve
from octavo.tokenization import load_tokenizer

HERE = Path(__file__).resolve().parent
MODEL = "bundled:smollm2"
MAX_MODEL_LEN = 2048
TEXT = (
    "The keeper climbed the tower at dusk and lit the lamp, as every evening; ships far out saw it turn. "
    "A small boat came in late, its sail torn, and three men carried a fourth up the stones to the door. "
)


async def main() -> None:
    """Run, compare, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=400, help="of each stream")
    parser.add_argument("--interval-ms", type=float, default=25.0, help="between two tokens of a stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", default=["octavo", "plain"], choices=["octavo", "plain"])
    parser.add_argument("--output-json", type=Path)
    given = parser.parse_args()
    machine = describe()  # before this process is kept to some of the cores
    rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in given.kinds}
    for _ in range(given.rounds):
        for kind in given.kinds:
            rounds[kind].append(await measure(kind, given.streams, given.tokens, given.interval_ms))
            print(kind, json.dumps(rounds[kind][-1]), file=sys.stderr)
    medians = {
        kind: {name: statistics.median(one[name] for one in ones) for name in ones[0]} for kind, ones in rounds.items()
    }
    figures: dict[str, Any] = {**machine, "arguments": vars(given) | {"output_json": None}, "rounds": rounds}
    figures["medians"] = medians
    if len(medians) == 2:
        figures["processor_time_ratios"] = {
            name: medians["octavo"][name] / medians["plain"][name]
            for name in medians["octavo"]
            if name.startswith("cpu_")
        }
    save(figures, given.output_json)


async def measure(kind: str, num_streams: int, num_tokens: int, interval_ms: float) -> dict[str, float]:
    """One server, loaded once."""
    with tempfile.TemporaryDirectory(prefix="relay-") as folder:
        address = f"ipc://{folder}/api.sock"
        async with server(kind, address, Path(folder), interval_ms) as (process, port):
            await load(port, 8, 20)
            opening = Used.by(process)
            await load(port, num_streams, 1)
            before, start = Used.by(process), time.perf_counter()
            num_events = await load(port, num_streams, num_tokens)
            seconds, after = time.perf_counter() - start, Used.by(process)
            rss = process.memory_info().rss
    counted = num_streams * num_tokens
    used = after.total - before.total
    used_to_open = before.total - opening.total
    return {
        "tokens_per_event": counted / num_events,
        "tokens_per_second": counted / seconds,
        "core_share": used / seconds,
        "cpu_us_per_token": used / counted * 1e6,
        "cpu_us_per_further_token": (used - used_to_open) / (counted - num_streams) * 1e6,
        "cpu_us_per_token_in_user_mode": (after.user - before.user) / counted * 1e6,
        "cpu_us_per_stream_of_one_token": used_to_open / num_streams * 1e6,
        "resident_mib": rss / 2**20,
    }


@dataclass(frozen=True, slots=True)
class Used:
    """Processor time that a process has taken, in seconds."""

    user: float
    system: float

    @classmethod
    def by(cls, process: psutil.Process) -> "Used":
        """Up to now."""
        times = process.cpu_times()
        return cls(times.user, times.system)

    @property
    def total(self) -> float:
        """In both modes."""
        return self.user + self.system


@asynccontextmanager
async def server(
    kind: str, address: str, folder: Path, interval_ms: float, **options: Any
) -> AsyncIterator[tuple[psutil.Process, int]]:
    """A server, Octavo's with further settings, and its engine."""
    path = resolve(MODEL).path
    tokenizer = load_tokenizer(path)
    ids_file = folder / "ids.json"
    ids_file.write_text(json.dumps(tokenizer.encode(TEXT, add_special_tokens=False)), encoding="utf-8")
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    port = listener.getsockname()[1]
    cores = sorted(os.sched_getaffinity(0))
    if kind == "octavo":
        settings = EngineConfig.from_kwargs(model=MODEL, log_level="warning", disable_log_stats=True)
        api = ServerSettings(host="127.0.0.1", port=port, disable_uvicorn_access_log=True, **options)
        launch = ApiLaunch(settings, api, address, 0, [listener.fileno()])
        process = start_on(cores[0], ["-m", "octavo.api.process"], listener.fileno())
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(launch) + b"\n")
        process.stdin.flush()
    else:
        listener.close()
        file = folder / "tokenizer.json"
        tokenizer.backend.save(str(file))
        process = start_on(cores[0], [str(HERE / "plain_server.py"), address, str(port), str(file)])
    script = [str(HERE / "fake_engine.py"), address, str(interval_ms), str(MAX_MODEL_LEN), str(ids_file)]
    engine = start_on(cores[-1], script)
    os.sched_setaffinity(0, cores[1:] or cores)
    try:
        await wait_until_healthy(port)
        yield psutil.Process(process.pid), port
    finally:
        for one in (process, engine):
            one.kill()
            one.wait()
        listener.close()


def start_on(core: int, command: list[str], *fds: int) -> subprocess.Popen[bytes]:
    """A Python process of our own on one core."""
    stdin = subprocess.PIPE if fds else None
    return subprocess.Popen(["taskset", "-c", str(core), sys.executable, *command], stdin=stdin, pass_fds=fds)


async def wait_until_healthy(port: int) -> None:
    """Ask until the server answers."""
    client = HttpClient(f"http://127.0.0.1:{port}")
    deadline = time.perf_counter() + 60
    while time.perf_counter() < deadline:
        try:
            async with client.request("GET", "/health") as response:
                if response.status == 200:
                    return
        except OSError:
            pass
        finally:
            await client.close()
        await asyncio.sleep(0.1)
    raise RuntimeError("The server was not ready in time.")


async def load(port: int, num_streams: int, num_tokens: int) -> int:
    """Open the streams at once and read them to their ends: how many events with text came.

    Raises:
        RuntimeError: a stream did not end as it should.
    """
    counts = await asyncio.gather(*(read_stream(port, num_tokens) for _ in range(num_streams)))
    return sum(counts)


def request_of(num_tokens: int, **fields: object) -> bytes:
    """A chat's request for a stream, as it goes over the wire."""
    messages = [{"role": "user", "content": "Tell me of the sea."}]
    body = json.dumps({"messages": messages, "max_tokens": num_tokens, "stream": True, **fields}).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\nconnection: close\r\n"
        + f"content-length: {len(body)}\r\n\r\n".encode()
        + body
    )


async def read_stream(port: int, num_tokens: int) -> int:
    """One chat's answer, its events counted without looking into them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_of(num_tokens))
    num_events = 0
    rest = end = b""
    while data := await reader.read(1 << 16):
        num_events += (rest + data).count(b"data: ")
        rest = data[-5:]
        end = (end + data)[-64:]
    writer.close()
    if b"data: [DONE]" not in end:
        raise RuntimeError("A stream broke off.")
    return num_events - 2  # the opening with the role, and the end


if __name__ == "__main__":
    asyncio.run(main())
