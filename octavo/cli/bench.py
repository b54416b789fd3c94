"""``octavo bench``: finds the benchmark and runs it."""

from collections.abc import Sequence

from octavo.cli.main import Command, dispatch

BENCHMARKS = {
    "latency": Command("octavo.cli.bench_latency", "seconds for one batch of fixed lengths, offline"),
    "throughput": Command("octavo.cli.bench_throughput", "tokens/s over many requests, offline"),
    "serve": Command("octavo.cli.bench_serve", "a running server under load: times and throughput"),
    "sweep": Command("octavo.cli.bench_sweep", "many runs: servers and loads with varied flags"),
    "engine": Command("octavo.cli.bench_engine", "the offline engine beside another and beside what the device allows"),
    "kernels": Command("octavo.cli.bench_kernels", "each kernel of a step beside the library and its limit"),
    "results": Command("octavo.cli.bench_results", "tables of measured files, printed or filled into a page"),
}


def run(arguments: Sequence[str]) -> int:
    """Run a benchmark; returns the exit status.

    Raises:
        OctavoError: a flag or the model is wrong, or the server does not answer.
    """
    return dispatch("octavo bench", BENCHMARKS, arguments)
