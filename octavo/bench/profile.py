"""``octavo profile``: runs an engine under torch's profiler in the steady state of a case."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from octavo.engine.core import EngineCore
from octavo.platforms import DeviceRuntime, runtime_of
from octavo.records import EngineRequest, SamplingParams, as_token_ids

Case = Literal["decode", "prefill", "mixed"]
WINDOW = "octavo: steps"
"""Name of the trace event that spans the measured steps."""

_MIXED_OUTPUT_LEN = 128


@dataclass(frozen=True, slots=True)
class ProfileLoad:
    """The load while profiling: as many requests in flight as fit, or as requested.

    Attributes:
        case: ``decode``: all requests decode; ``prefill``: only prompts; ``mixed``: new requests replace ended ones.
    """

    case: Case
    batch: int
    input_len: int


def profile_engine(engine: EngineCore, device: torch.device, load: ProfileLoad, num_steps: int, trace: Path) -> float:
    """Bring the engine into the case's steady state, time some steps, then profile as many.

    Args:
        trace: path of the Chrome trace; ``.json`` or ``.json.gz``.

    Returns:
        Seconds of the steps without the profiler.
    """
    loop = _ClosedLoop(engine, load)
    loop.warm_up()
    runtime = runtime_of(device)
    plain = _timed(lambda: loop.run(num_steps), runtime)
    with torch.profiler.profile() as profiler:  # of all devices that there are
        # The first step under the profiler also pays for its start.
        loop.run(1)
        runtime.synchronize()
        with torch.profiler.record_function(WINDOW):
            _timed(lambda: loop.run(num_steps), runtime)
    profiler.export_chrome_trace(str(trace))
    loop.stop()
    return plain


class _ClosedLoop:
    """Keeps a number of requests in flight."""

    def __init__(self, engine: EngineCore, load: ProfileLoad) -> None:
        self._engine = engine
        self._load = load
        self._random = random.Random(0)
        self._in_flight: set[str] = set()
        self._started: set[str] = set()
        self._num_requests = 0
        self._num_done = 0

    def warm_up(self) -> None:
        """Run until the case's state is steady."""
        batch = min(self._load.batch, self._engine.info.max_num_seqs)
        if self._load.case == "decode":
            self._run_until(lambda: len(self._started) >= batch)
            self.run(3)
        else:
            self._run_until(lambda: self._num_done >= batch)

    def run(self, num_steps: int) -> None:
        """Run some steps."""
        for _ in range(num_steps):
            self._step()

    def stop(self) -> None:
        """End all requests, so that the engine may be used again."""
        self._engine.abort(self._in_flight)
        while self._engine.has_work:
            self._engine.step()

    def _run_until(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            self._step()

    def _step(self) -> None:
        while len(self._in_flight) < self._load.batch:
            request = self._draw()
            self._engine.add_request(request)
            self._in_flight.add(request.request_id)
        # Only first tokens and ends: looking at every token would add host time that real callers do not pay.
        for output in self._engine.step().others:
            self._started.add(output.request_id)
            if output.finish_reason is not None:
                self._in_flight.discard(output.request_id)
                self._num_done += 1

    def _draw(self) -> EngineRequest:
        """The next request; lengths of mixed answers differ, so that requests end at different times."""
        self._num_requests += 1
        end = self._engine.info.vocab_size
        prompt = [self._random.randrange(end // 2, end) for _ in range(self._load.input_len)]
        # Decoding lasts longer than both runs, the timed one and the profiled one.
        lengths = {
            "decode": self._engine.info.max_model_len - self._load.input_len,
            "prefill": 1,
            "mixed": self._random.randint(_MIXED_OUTPUT_LEN // 2, _MIXED_OUTPUT_LEN * 3 // 2),
        }
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=lengths[self._load.case], detokenize=False)
        return EngineRequest(str(self._num_requests), as_token_ids(prompt), params, arrival_time=time.time())


def _timed(function: Callable[[], None], runtime: DeviceRuntime) -> float:
    runtime.synchronize()
    start = time.perf_counter()
    function()
    runtime.synchronize()
    return time.perf_counter() - start
