"""Many open streams on one API process, some of whose clients do not read: errors, memory, and how late text comes.

    python benchmarks/relay/many_streams.py --streams 1000 --deaf 100 --output-json result.json

The engine is only a clock, see ``fake_engine.py``. Clients that do not read open a stream and leave it in their
sockets' buffers, which are kept small, until the server cuts them.
"""

import argparse
import asyncio
import itertools
import resource
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent)]
from common import describe, save  # noqa: E402
from run import request_of, server  # noqa: E402

DEAF_CHOICES = 16
"""Answers that a deaf client asks for at once, so that buffers are full in a few seconds."""


async def main() -> None:
    """Open all, read most, save what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--deaf", type=int, default=0, help="further streams whose clients do not read")
    parser.add_argument("--tokens", type=int, default=200, help="of each stream")
    parser.add_argument("--interval-ms", type=float, default=125.0, help="between two tokens of a stream")
    parser.add_argument("--write-timeout", type=float, default=5.0, help="seconds until a deaf client is cut")
    parser.add_argument("--output-json", type=Path)
    given = parser.parse_args()
    machine = describe()  # before this process is kept to some of the cores
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="relay-") as folder:
        address = f"ipc://{folder}/api.sock"
        options = {"stream_write_timeout": given.write_timeout}
        async with server("octavo", address, Path(folder), given.interval_ms, **options) as (process, port):
            figures = await measure(process, port, given)
    save({**machine, "arguments": vars(given) | {"output_json": None}, **figures}, given.output_json)


async def measure(process: psutil.Process, port: int, given: argparse.Namespace) -> dict[str, float]:
    """Everything at once."""
    await asyncio.gather(*(read(port, 20) for _ in range(8)))
    resident = [process.memory_info().rss]
    watch = asyncio.create_task(_watch(process, resident))
    before, start = process.cpu_times(), time.perf_counter()
    deaf = [await leave_unread(port) for _ in range(given.deaf)]
    results = await asyncio.gather(*(read(port, given.tokens) for _ in range(given.streams)), return_exceptions=True)
    seconds, after = time.perf_counter() - start, process.cpu_times()
    cut = await asyncio.gather(*(was_cut(connection, given.write_timeout + 10) for connection in deaf))
    watch.cancel()
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in errors[:3]:
        print(repr(error), file=sys.stderr)
    gaps = sorted(gap for result in results if not isinstance(result, BaseException) for gap in result)
    used = after.user + after.system - before.user - before.system
    return {
        "num_errors": len(errors),
        "tokens_per_second": given.streams * given.tokens / seconds,
        "core_share": used / seconds,
        "gap_p50_ms": statistics.median(gaps) * 1000,
        "gap_p99_ms": gaps[len(gaps) * 99 // 100] * 1000,
        "gap_max_ms": gaps[-1] * 1000,
        "num_deaf_cut": sum(cut),
        "resident_mib_before": resident[0] / 2**20,
        "resident_mib_most": max(resident) / 2**20,
        "kib_per_stream": (max(resident) - resident[0]) / (given.streams + given.deaf) / 2**10,
    }


async def _watch(process: psutil.Process, resident: list[int]) -> None:
    while True:
        resident.append(process.memory_info().rss)
        await asyncio.sleep(0.25)


async def read(port: int, num_tokens: int) -> list[float]:
    """Read one chat's answer to its end: seconds between pieces.

    Raises:
        RuntimeError: it broke off.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_of(num_tokens))
    times: list[float] = []
    end = b""
    while data := await reader.read(1 << 16):
        times.append(time.perf_counter())
        end = (end + data)[-64:]
    writer.close()
    if b"data: [DONE]" not in end:
        raise RuntimeError(f"A stream broke off after {len(times)} pieces.")
    return [later - earlier for earlier, later in itertools.pairwise(times)]


async def leave_unread(port: int) -> socket.socket:
    """A client with room for very little, who asks for a long answer and does not read it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, ("127.0.0.1", port))
    await loop.sock_sendall(connection, request_of(1900, n=DEAF_CHOICES))
    return connection


async def was_cut(connection: socket.socket, seconds: float) -> bool:
    """Read what came; whether the server ended it before the answer's end."""
    received = b""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            while data := await loop.sock_recv(connection, 1 << 16):
                received = (received + data)[-64:]
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    finally:
        connection.close()
    return b"[DONE]" not in received


if __name__ == "__main__":
    asyncio.run(main())
