"""What of a decode step on a CPU is not kernels: scheduling, inputs, sampling's plan, results, outputs, Python itself.

    python benchmarks/cpu_host_share.py --weights bf16 q4_1 int8 int4 --batches 1 16

``LLM.generate`` runs in this process, with text, greedy unless ``--temperature`` says otherwise. Every call of the
compiled module is timed, replays included; the host's time is the rest from one step's end to the next one's. Waking
the thread team and its barriers count as kernels, the timing itself (about 0.1 µs a call) as the host's. Figures are
medians over the last half of the steps, in which all requests decode, in µs. Weights are those of ``cpu_peers.py``.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import describe, save
from cpu_peers_models import NAMES, prepare
from cpu_peers_turns import contestants

from octavo import LLM, PromptType, SamplingParams
from octavo.platforms.native import native_kernels

TOKEN_IDS = range(100, 49_000)


def main() -> int:
    """Measure all weights at every batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help=f"{', '.join(NAMES)} or a GGUF file")
    parser.add_argument("--weights", nargs="+", default=["bf16", "q4_1", "int8", "int4"])
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache" / "octavo-bench-models")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output-json", type=Path)
    given = parser.parse_args()
    files = prepare(given.model, given.work)
    figures = {
        one.weights: measure(one.path(files), one.settings[0], given)
        for one in contestants(["octavo"], given.weights, files)
    }
    save({**describe(), "threads": given.threads, "figures": figures}, given.output_json)
    return 0


def measure(path: Path, quantization: str, given: argparse.Namespace) -> dict[int, dict[str, float]]:
    """Figures by batch size."""
    settings: dict[str, Any] = {"quantization": quantization} if quantization else {}
    model = LLM(str(path), num_threads=given.threads, dtype="bfloat16", log_level="warning", **settings)
    params = SamplingParams(temperature=given.temperature, ignore_eos=True, max_tokens=given.output_len)
    source = random.Random(0)
    found = {}
    for batch in given.batches:
        for _ in range(2):  # the first call records steps
            prompts: list[PromptType] = [
                {"prompt_token_ids": source.choices(TOKEN_IDS, k=given.input_len)} for _ in range(batch)
            ]
            with timed(model) as steps:
                model.generate(prompts, params, use_tqdm=False)
        found[batch] = summary(steps[-given.output_len // 2 :])
    model.shutdown()
    return found


def summary(steps: list[tuple[int, int, int]]) -> dict[str, float]:
    """Medians of steps, given as nanoseconds in all and in kernels, and calls of kernels."""
    total = statistics.median(step[0] for step in steps)
    host = statistics.median(step[0] - step[1] for step in steps)
    return {
        "step": round(total / 1e3, 1),
        "host": round(host / 1e3, 1),
        "host's share (%)": round(100 * host / total, 2),
        "calls of kernels": statistics.median(step[2] for step in steps),
    }


@contextmanager
def timed(model: LLM) -> Iterator[list[tuple[int, int, int]]]:
    """Steps inside the ``with`` block: nanoseconds from the end of the last one, those in kernels, calls of kernels."""
    native: Any = native_kernels()
    if native is None:
        sys.exit("No compiled kernels run here.")
    core: Any = model.llm_engine.core
    now = time.perf_counter_ns
    in_kernels, num_calls, last_end = 0, 0, now()
    steps: list[tuple[int, int, int]] = []

    def timed_call(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal in_kernels, num_calls
            start = now()
            result = function(*args)
            in_kernels += now() - start
            num_calls += 1
            return result

        return call

    run_step = core.step

    def step() -> Any:
        nonlocal in_kernels, num_calls, last_end
        outputs = run_step()
        end = now()
        steps.append((end - last_end, in_kernels, num_calls))
        in_kernels, num_calls, last_end = 0, 0, end
        return outputs

    plain = {name: function for name, function in vars(native).items() if callable(function) and name[0] != "_"}
    for name, function in plain.items():
        setattr(native, name, timed_call(function))
    core.step = step
    try:
        yield steps
    finally:
        del core.step
        for name, function in plain.items():
            setattr(native, name, function)


if __name__ == "__main__":
    raise SystemExit(main())
