"""What a step costs the host: scheduling, taking results in, handling outputs. No model, no device.

    python benchmarks/host_step.py --batches 1 32 256 1024

``steady`` is a batch that only decodes; ``chat`` is a closed loop of chat-like lengths, in which a request arrives for
each that ends. A fake device answers with random tokens, one step late. Figures are medians over steps, in µs:

schedule, update
    The scheduler's two halves of a step.
message
    What the engine process makes of the outputs: one encoded message for a frontend.
offline, stream
    What ``LLM.generate`` does with them, or a frontend that streams every token as text.
"""

import argparse
import random
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import describe, save
from scheduler_plan import scheduler_plan

from octavo.engine import messages
from octavo.outputs import OutputProcessor
from octavo.records import (
    EngineRequest,
    Plan,
    PreparedRequest,
    RequestOutputKind,
    SamplingParams,
    Step,
    StepResult,
    as_token_ids,
)
from octavo.scheduling import Scheduler

VOCABULARY = 49_000
END = VOCABULARY
WARM_UP = 50


def main() -> int:
    """Measure every batch size in both scenarios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 256, 1024])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--scenarios", nargs="+", choices=["steady", "chat"], default=["steady", "chat"])
    parser.add_argument("--output-json", type=Path)
    given = parser.parse_args()
    figures = {
        scenario: {batch: measure(scenario, batch, given.steps) for batch in given.batches}
        for scenario in given.scenarios
    }
    save({**describe(), "microseconds": figures}, given.output_json)
    return 0


class Loop:
    """An engine without a model, and a frontend of either kind."""

    def __init__(self, scenario: str, batch: int) -> None:
        self.scheduler = Scheduler(_plan(batch))
        self.offline, self.stream = OutputProcessor(None), OutputProcessor(None)
        self.times: dict[str, list[float]] = defaultdict(list)
        self._is_chat = scenario == "chat"
        self._random = random.Random(0)
        self._tokens = np.random.default_rng(0).integers(0, VOCABULARY, (64, batch), np.int32)
        self._under_way: deque[StepResult] = deque()
        self._num_added = 0
        for _ in range(batch):
            self.add()

    def add(self) -> None:
        """A request of prompt and answer as in chats, or with an answer longer than the measurement."""
        draw = self._random.lognormvariate
        num_prompt = min(2000, int(draw(5.3, 0.8)) + 1) if self._is_chat else self._random.randint(64, 128)
        max_tokens = min(2000, int(draw(5.3, 0.7)) + 1) if self._is_chat else None
        prompt = self._random.choices(range(VOCABULARY), k=num_prompt)
        request_id = f"chatcmpl-{self._num_added:032x}"
        self._num_added += 1
        for frontend, kind in ((self.offline, RequestOutputKind.FINAL_ONLY), (self.stream, RequestOutputKind.DELTA)):
            params = SamplingParams(max_tokens=max_tokens, output_kind=kind)
            child = EngineRequest(request_id, as_token_ids(prompt), params, eos_token_ids=[END])
            frontend.add_request(PreparedRequest(request_id, None, prompt, params, [child], 0.0))
        self._timed("add", lambda: self.scheduler.add_request(child))

    def step(self) -> None:
        """One turn of the engine's loop, one step ahead."""
        while len(self._under_way) < 2 and (step := self._timed("schedule", self.scheduler.schedule)) is not None:
            self._under_way.append(self._execute(step))
        result = self._under_way.popleft()
        outputs = self._timed("update", lambda: self.scheduler.update(result))
        self._timed(
            "message", lambda: messages.encode(messages.OutputBatch(1, outputs, self.scheduler.current_stats()))
        )
        self._timed("offline", lambda: self.offline.process(outputs))
        processed = self._timed("stream", lambda: self.stream.process(outputs))
        if self._is_chat:
            for output in processed.outputs:
                if output.finished:
                    self.add()

    def _execute(self, step: Step) -> StepResult:
        return StepResult(self._tokens[step.step_id % 64, : len(step.slots)])

    def _timed(self, name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        self.times[name].append(time.perf_counter() - start)
        return result


def measure(scenario: str, batch: int, num_steps: int) -> dict[str, float]:
    """Medians over the steps after the prompts, in µs; of the chat scenario also the means, which hold its peaks."""
    loop = Loop(scenario, batch)
    while len(loop.scheduler.running) < batch:
        loop.step()
    for _ in range(WARM_UP):
        loop.step()
    added = loop.times["add"]
    loop.times.clear()
    for _ in range(num_steps):
        loop.step()
    loop.times["add"] += added
    figures = {name: round(statistics.median(times) * 1e6, 1) for name, times in loop.times.items()}
    figures["engine"] = round(sum(figures[name] for name in ("schedule", "update", "message")), 1)
    means = {name: statistics.fmean(times) * 1e6 for name, times in loop.times.items()}
    figures["engine (mean)"] = round(sum(means[name] for name in ("schedule", "update", "message")), 1)
    return figures


def _plan(batch: int) -> Plan:
    return scheduler_plan(4096, 16, 1 + 256 * batch, max_num_seqs=batch, num_steps_ahead=1)


if __name__ == "__main__":
    raise SystemExit(main())
