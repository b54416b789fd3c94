"""One turn of one engine of ``cpu_peers.py``, in a process of its own.

    python benchmarks/cpu_peers_worker.py '{"engine": "octavo", ...}'

Takes a :class:`~cpu_peers_engines.Job` as JSON. Writes two lines of JSON to standard output: one when the first token
has come, one with the figures; then stays until standard input ends, so that its memory can be measured.
"""

import json
import os
import random
import sys
import time
from dataclasses import dataclass
from typing import Any, Literal

from cpu_peers_engines import LOADERS, Generate, Job

TOKEN_IDS = range(100, 49_000)


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of equal lengths, at once.

    Attributes:
        counts: the tokens whose rate is measured: those after the first of each answer, in the time that they take;
            those of the prompts, in the time to the first of each answer; or all of the answers, in the whole time.
    """

    batch_size: int
    input_len: int
    output_len: int
    counts: Literal["decoded", "prompt", "output"]


WORKLOADS = {
    "decode_1": Workload(1, 16, 129, "decoded"),
    "decode_16": Workload(16, 16, 129, "decoded"),
    "prefill_512": Workload(1, 512, 1, "prompt"),
    "mixed_16": Workload(16, 128, 128, "output"),
}


def main() -> None:
    """Load, measure, report."""
    report = _take_standard_output()
    job = Job(**json.loads(sys.argv[1]))
    engine = LOADERS[job.engine](job)
    source = random.Random(0)
    _seconds(engine.generate, source, 1, 16, 1)
    report({"event": "first_token"})
    figures = {name: tokens_per_second(engine.generate, workload, source) for name, workload in WORKLOADS.items()}
    report({"event": "done", "version": engine.version, "cache_bytes": engine.cache_bytes, "figures": figures})
    sys.stdin.read()


def tokens_per_second(generate: Generate, workload: Workload, source: random.Random) -> float:
    """The rate of a workload, after a warm-up."""

    def seconds(output_len: int) -> float:
        return _seconds(generate, source, workload.batch_size, workload.input_len, output_len)

    seconds(min(2, workload.output_len))
    if workload.counts == "decoded":
        first = seconds(1)
        return workload.batch_size * (workload.output_len - 1) / (seconds(workload.output_len) - first)
    each = workload.input_len if workload.counts == "prompt" else workload.output_len
    return workload.batch_size * each / seconds(workload.output_len)


def _seconds(generate: Generate, source: random.Random, batch_size: int, input_len: int, output_len: int) -> float:
    """Time of a call with fresh prompts of random tokens."""
    prompts = [source.choices(TOKEN_IDS, k=input_len) for _ in range(batch_size)]
    start = time.perf_counter()
    answers = generate(prompts, output_len)
    elapsed = time.perf_counter() - start
    lengths = [len(answer) for answer in answers]
    if lengths != [output_len] * batch_size:
        raise RuntimeError(f"Answers of {output_len} tokens were asked for, but these lengths came: {lengths}.")
    return elapsed


def _take_standard_output() -> Any:
    """A function that writes lines of JSON there; what libraries print goes to standard error from now on."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def report(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=channel, flush=True)

    return report


if __name__ == "__main__":
    main()
