"""How quickly things start, and what an idle server costs.

    python benchmarks/startup.py --output-json result.json

``import octavo`` and ``octavo --help`` as whole processes, with a bare Python beside them; ``octavo serve`` from the
command until ``/health`` says 200; then the processor time of the idle server. Bytecode is kept, as where Octavo is
installed.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from common import OCTAVO, cpu_seconds, describe, running_server, save

COMMANDS = {
    "bare_python": (sys.executable, "-c", "pass"),
    "import_octavo": (sys.executable, "-c", "import octavo"),
    "octavo_help": (*OCTAVO, "--help"),
    "octavo_serve_help": (*OCTAVO, "serve", "--help"),
}
SETTLE_SECONDS = 3.0


def main() -> int:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled:smollm2")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--idle-seconds", type=float, default=30.0)
    parser.add_argument("--output-json", type=Path)
    given = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    environment = describe()
    processes = {name: process_seconds(command, given.repeats) for name, command in COMMANDS.items()}
    ready, idle_share = asyncio.run(server_figures(given.model, given.repeats, given.idle_seconds))
    save(
        {
            **environment,
            "model": given.model,
            "process_seconds": processes,
            "ready_seconds": statistics.median(ready),
            "ready_seconds_each": ready,
            "idle_cpu_share": idle_share,
        },
        given.output_json,
    )
    return 0


def process_seconds(command: tuple[str, ...], repeats: int) -> float:
    """Seconds of a whole process, the median after one that warms the file cache."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


async def server_figures(model: str, repeats: int, idle_seconds: float) -> tuple[list[float], float]:
    """Seconds from command to ready, each time, and the share of a core that the last server takes when idle."""
    ready = []
    idle_share = 0.0
    for number in range(repeats):
        async with running_server(model) as (process, _, seconds):
            ready.append(seconds)
            if number == repeats - 1:
                await asyncio.sleep(SETTLE_SECONDS)
                before = cpu_seconds(process)
                await asyncio.sleep(idle_seconds)
                idle_share = (cpu_seconds(process) - before) / idle_seconds
    return ready, idle_share


if __name__ == "__main__":
    sys.exit(main())
