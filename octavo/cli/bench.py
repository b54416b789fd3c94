"""``octavo bench``: finds the benchmark and runs it."""

from collections.abc import Sequence

from octavo.cli.main import Command, dispatch

BENCHMARKS = {
    "latency": Command("octavo.cli.bench_offline:run_latency", "seconds for one batch of fixed lengths, offline"),
    "throughput": Command("octavo.cli.bench_offline:run_throughput", "tokens/s over many requests, offline"),
    "serve": Command("octavo.cli.bench_serve:run", "a running server under load: times and throughput"),
    "sweep": Command("octavo.cli.bench:run_sweep", "many runs: servers and loads with varied flags"),
    "engine": Command(
        "octavo.cli.bench_engine:run", "the offline engine beside another and beside what the device allows"
    ),
    "kernels": Command("octavo.cli.bench_kernels:run", "each kernel of a step beside the library and its limit"),
    "results": Command("octavo.cli.bench_results:run", "tables of measured files, printed or filled into a page"),
}
_WORKLOAD = "octavo.cli.bench_sweep:run_workload"
SWEEPS = {
    "serve": Command("octavo.cli.bench_sweep:run_serve", "each set of server flags by each set of benchmark flags"),
    "serve_workload": Command(_WORKLOAD, "latency against throughput over a range of load"),
    "serve_sla": Command(_WORKLOAD, "the same, under its old name"),
}


def run(arguments: Sequence[str]) -> int:
    """Run a benchmark; returns the exit status."""
    return dispatch("octavo bench", BENCHMARKS, arguments)


def run_sweep(arguments: Sequence[str]) -> int:
    """Run a sweep; returns the exit status."""
    return dispatch("octavo bench sweep", SWEEPS, arguments)
