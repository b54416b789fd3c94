"""``octavo bench sweep serve_workload``: latency against throughput, from one request at a time to all at once."""

from collections.abc import Sequence
from typing import Any

from octavo.bench.sweep import workload_levels, workload_of
from octavo.cli.bench_sweep_serve import RunOne, Sweep, make_parser
from octavo.cli.values import parse_count
from octavo.errors import ConfigError


def run(arguments: Sequence[str]) -> int:
    """Sweep; returns the exit status.

    Raises:
        OctavoError: a flag is wrong, or a server or benchmark failed.
    """
    parser = make_parser(
        "octavo bench sweep serve_workload",
        "Measure a server at loads that are spread evenly between one request at a time and all at once.",
    )
    parser.add_argument(
        "--workload-var",
        "--sla-variable",
        choices=("request_rate", "max_concurrency"),
        default="request_rate",
        help="what to vary. Default: request_rate.",
    )
    parser.add_argument(
        "--workload-iters",
        "--sla-iters",
        type=parse_count,
        default=10,
        help="levels of load, the two ends included. Default: 10.",
    )
    given = parser.parse(arguments)
    variable = given.workload_var
    if given.workload_iters < 2:
        raise ConfigError("--workload-iters must be at least 2: the two ends of the range.")
    sweep = Sweep(given)
    if any(name.replace("-", "_") == variable for params in sweep.bench_params.values() for name in params):
        raise ConfigError(f"{variable} is what the sweep varies; leave it out of --bench-params.")

    def measure(run_one: RunOne) -> list[dict[str, Any]]:
        # One request at a time, whatever the rate; then all at once, as many as there are.
        serial = run_one("serial", {"max_concurrency": 1, "request_rate": "inf"})
        batch = run_one("batch", {"request_rate": "inf"})
        low, high = (sum(workload_of(row, variable) for row in rows) / len(rows) for rows in (serial, batch))
        rows = [{**row, "level": low} for row in serial]
        for level in workload_levels(low, high, given.workload_iters - 2, variable):
            value = int(level) if variable == "max_concurrency" else level
            rows += [{**row, "level": level} for row in run_one(f"{variable}={level:.4g}", {variable: value})]
        return rows + [{**row, "level": high} for row in batch]

    return sweep.run(measure)
