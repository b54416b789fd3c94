"""A server under lasting load: many requests in flight, random lengths, a third of them hung up on.

    python benchmarks/soak.py --minutes 5 --output-json result.json

Fails (status 1) if a request failed, if resident memory grew after the warm-up, if blocks or requests are left at
the end, or if the server does not answer as it did before.
"""

import argparse
import asyncio
import json
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from common import describe, resident_bytes, running_server, save

from octavo.bench.http_client import HttpClient
from octavo.bench.load import LoadRequest, RequestRecord, run_load
from octavo.bench.serving import completion_body, summarise_records

MODEL = "bundled:smollm2"
ROUTE = "/v1/completions"
VOCABULARY = range(100, 49_000)
SAMPLE_SECONDS = 2.0
SETTLE_SECONDS = 15.0
# The cache's pages become resident as they are first used; this much is used up within the warm-up.
CACHE_BYTES = "512MiB"
WARM_UP_SHARE = 0.4
MAX_GROWTH = 0.03
IDLE_GAUGES = ("octavo:num_requests_running", "octavo:num_requests_waiting", "octavo:kv_cache_usage_perc")


class Soak:
    """Keeps requests in flight and watches memory."""

    def __init__(self, client: HttpClient, process: psutil.Process, seconds: float, abort_fraction: float) -> None:
        self._client = client
        self._process = process
        self._seconds = seconds
        self._abort_fraction = abort_fraction
        self._source = random.Random(0)
        self.records: list[RequestRecord] = []
        self.memory: list[tuple[float, int]] = []
        self.device_memory: list[tuple[float, int]] = []
        self._has_gpu = shutil.which("nvidia-smi") is not None

    async def run(self, num_in_flight: int) -> None:
        """Send requests for as long as asked, then wait for the last ones."""
        start = time.perf_counter()
        deadline = start + self._seconds
        watching = asyncio.create_task(self._watch(start))
        await asyncio.gather(*(self._keep_sending(deadline) for _ in range(num_in_flight)))
        watching.cancel()

    async def _keep_sending(self, deadline: float) -> None:
        while time.perf_counter() < deadline:
            self.records += await run_load(self._client, ROUTE, [self._request()], [0.0])

    def _request(self) -> LoadRequest:
        source = self._source
        prompt = source.choices(VOCABULARY, k=source.randint(1, 256))
        output_len = source.randint(1, 128)
        body = completion_body(MODEL, prompt, output_len, {"ignore_eos": True})
        is_aborted = source.random() < self._abort_fraction
        return LoadRequest(body, len(prompt), source.randint(1, output_len) if is_aborted else None)

    async def _watch(self, start: float) -> None:
        while True:
            at = time.perf_counter() - start
            self.memory.append((at, resident_bytes(self._process)))
            if self._has_gpu:
                self.device_memory.append((at, await asyncio.to_thread(device_bytes)))
            await asyncio.sleep(SAMPLE_SECONDS)


def main() -> int:
    """Run, save and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--in-flight", type=int, default=200)
    parser.add_argument("--abort-fraction", type=float, default=1 / 3)
    parser.add_argument("--api-server-count", type=int, default=1)
    parser.add_argument("--output-json", type=Path)
    given = parser.parse_args()
    figures = asyncio.run(soak(given))
    save(figures, given.output_json)
    failed = [name for name, passed in figures["checks"].items() if not passed]
    print(f"failed: {', '.join(failed)}" if failed else "all checks passed", file=sys.stderr)
    return 1 if failed else 0


async def soak(given: argparse.Namespace) -> dict[str, Any]:
    """Load a server of our own; its figures and the checks they passed."""
    environment = describe()
    flags = ("--kv-cache-memory-bytes", CACHE_BYTES, "--api-server-count", str(given.api_server_count))
    quiet = ("--disable-uvicorn-access-log", "--log-level", "warning")
    async with running_server(MODEL, *flags, *quiet) as (process, url, _):
        client = HttpClient(url)
        answer_before = await greedy_answer(client)
        run = Soak(client, process, 60 * given.minutes, given.abort_fraction)
        start = time.perf_counter()
        await run.run(given.in_flight)
        duration = time.perf_counter() - start
        gauges = await settled_gauges(client)
        answer_after = await greedy_answer(client)
        await client.close()
    growth = memory_growth(run.memory, duration)
    result = summarise_records(run.records, duration)
    return {
        **environment,
        "in_flight": given.in_flight,
        "minutes": given.minutes,
        "requests": result.as_json(),
        "errors": result.errors,
        "memory_growth": growth,
        "device_mib_over_seconds": [(round(at, 1), num_bytes >> 20) for at, num_bytes in run.device_memory],
        "resident_mib_over_seconds": [(round(at, 1), num_bytes >> 20) for at, num_bytes in run.memory],
        "gauges_at_end": gauges,
        "checks": {
            "no request failed": result.failed == 0 and result.completed > 0,
            "memory is flat after warm-up": growth <= MAX_GROWTH,
            "device memory is flat after warm-up": memory_growth(run.device_memory, duration) <= MAX_GROWTH,
            "no request and no block is left": len(gauges) == len(IDLE_GAUGES) and not any(gauges.values()),
            "answers are as before": answer_before == answer_after,
        },
    }


def device_bytes() -> int:
    """Memory in use on the first GPU, by whomever."""
    command = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) << 20


def memory_growth(samples: Sequence[tuple[float, int]], duration: float) -> float:
    """By what share memory grew from just after the warm-up to the end; 0 without samples."""
    if not samples:
        return 0.0
    steady = [num_bytes for at, num_bytes in samples if at >= WARM_UP_SHARE * duration]
    fifth = max(1, len(steady) // 5)
    first, last = statistics.median(steady[:fifth]), statistics.median(steady[-fifth:])
    return last / first - 1


async def settled_gauges(client: HttpClient) -> dict[str, float]:
    """The gauges that an idle server shows as zero, after giving them time to get there."""
    deadline = time.perf_counter() + SETTLE_SECONDS
    while True:
        gauges = await read_gauges(client)
        if not any(gauges.values()) or time.perf_counter() > deadline:
            return gauges
        await asyncio.sleep(0.5)


async def read_gauges(client: HttpClient) -> dict[str, float]:
    """The server's gauges of what is going on."""
    async with client.request("GET", "/metrics") as response:
        text = (await response.body()).decode()
    gauges = {}
    for line in text.splitlines():
        name = line.partition("{")[0]
        if name in IDLE_GAUGES:
            gauges[name] = float(line.rsplit(" ", 1)[1])
    return gauges


async def greedy_answer(client: HttpClient) -> str:
    """What the server says to a fixed prompt, which is too short to leave a block in the prefix cache."""
    body = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    async with client.request("POST", ROUTE, json.dumps(body).encode()) as response:
        answer = await response.body()
        if response.status != 200:
            raise RuntimeError(f"The server refuses with status {response.status}: {answer[:300]!r}")
    return str(json.loads(answer)["choices"][0]["text"])


if __name__ == "__main__":
    sys.exit(main())
