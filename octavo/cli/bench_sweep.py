"""``octavo bench sweep``: finds the kind of sweep and runs it."""

from collections.abc import Sequence

from octavo.cli.main import Command, dispatch

SWEEPS = {
    "serve": Command("octavo.cli.bench_sweep_serve", "each set of server flags by each set of benchmark flags"),
    "serve_workload": Command("octavo.cli.bench_sweep_workload", "latency against throughput over a range of load"),
    "serve_sla": Command("octavo.cli.bench_sweep_workload", "the same, under its old name"),
}


def run(arguments: Sequence[str]) -> int:
    """Run a sweep; returns the exit status.

    Raises:
        OctavoError: a flag is wrong, or a server or benchmark failed.
    """
    return dispatch("octavo bench sweep", SWEEPS, arguments)
