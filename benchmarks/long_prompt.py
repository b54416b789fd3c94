"""What a long prompt costs the engine's loop, once, besides the model. No model, no device.

    python benchmarks/long_prompt.py --tokens 131072

Figures are the least of several runs, in ms, for a prompt of which nothing is cached, and for one that is cached:

receive
    Decoding the frontend's message.
add, schedule
    The scheduler takes the request, and makes the first step.
"""

import argparse
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from common import describe, save
from scheduler_plan import scheduler_plan

from octavo.engine import messages
from octavo.records import EngineRequest, Plan, SamplingParams, StepResult, as_token_ids
from octavo.scheduling import Scheduler

VOCABULARY = 49_000
BLOCK_SIZE = 16


def main() -> int:
    """Measure prompts of one length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=131_072)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--output-json", type=Path)
    given = parser.parse_args()
    scheduler = Scheduler(_plan(given.tokens))
    random = np.random.default_rng(0)
    times: dict[str, dict[str, list[float]]] = {"new": defaultdict(list), "cached": defaultdict(list)}
    for run in range(given.runs):
        prompt = random.integers(0, VOCABULARY, given.tokens).tolist()
        for kind, found in times.items():
            _measure(
                scheduler, EngineRequest(f"{kind}{run}", as_token_ids(prompt), SamplingParams(max_tokens=2)), found
            )
    figures = {
        kind: {name: round(min(values) * 1e3, 2) for name, values in found.items()} for kind, found in times.items()
    }
    save({**describe(), "tokens": given.tokens, "milliseconds": figures}, given.output_json)
    return 0


def _measure(scheduler: Scheduler, request: EngineRequest, times: dict[str, list[float]]) -> None:
    """Time a request's way to its first step, then run it to its end."""
    data = messages.encode(messages.Add.of([request]))
    marks = [time.perf_counter()]
    message = messages.decode_to_engine(data)
    assert isinstance(message, messages.Add)
    received = message.all_requests()
    marks.append(time.perf_counter())
    for each in received:
        scheduler.add_request(each)
    marks.append(time.perf_counter())
    step = scheduler.schedule()
    marks.append(time.perf_counter())
    for name, start, end in zip(("receive", "add", "schedule"), marks, marks[1:], strict=False):
        times[name].append(end - start)
    times["engine"].append(marks[-1] - marks[0])
    while step is not None:
        scheduler.update(StepResult(np.zeros(len(step.slots), np.int32)))
        step = scheduler.schedule()


def _plan(num_tokens: int) -> Plan:
    num_blocks = 1 + 3 * (num_tokens // BLOCK_SIZE + 8)
    return scheduler_plan(num_tokens + 64, BLOCK_SIZE, num_blocks, max_num_seqs=4, num_steps_ahead=0)


if __name__ == "__main__":
    raise SystemExit(main())
