"""Times the phases of startup, and logs a line for each."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from octavo.records import StartPhase
from octavo.telemetry.logs import with_fields


class PhaseTimer:
    """Times consecutive phases, and logs each as it ends.

    Args:
        level: level of the log lines. JSON lines also have the phase's values as fields.
        clock: a monotonic clock, in seconds.

    Attributes:
        phases: finished phases, in order.
    """

    def __init__(
        self, logger: logging.Logger, level: int = logging.INFO, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.phases: list[StartPhase] = []
        self._logger = logger
        self._level = level
        self._clock = clock
        self._start = clock()

    @contextmanager
    def phase(self, name: str) -> Iterator[StartPhase]:
        """Time the body; a phase that fails is not recorded."""
        phase = StartPhase(name)
        start = self._clock()
        yield phase
        phase.seconds = self._clock() - start
        self._note(phase)

    def add(self, name: str, seconds: float, note: str = "") -> None:
        """Record a phase that was timed elsewhere, such as the imports before this timer existed."""
        self._note(StartPhase(name, seconds, note))

    def ready(self, note: str = "") -> float:
        """Log the end of startup; returns the seconds since this timer was created."""
        total = StartPhase("ready", self._clock() - self._start, note)
        self._log(total)
        return total.seconds

    def _note(self, phase: StartPhase) -> None:
        self.phases.append(phase)
        self._log(phase)

    def _log(self, phase: StartPhase) -> None:
        fields = {"phase": phase.name, "seconds": round(phase.seconds, 3)}
        if phase.num_bytes:
            fields["bytes"] = phase.num_bytes
        self._logger.log(self._level, "Start: %s", phase, extra=with_fields(fields))


def process_age() -> float:
    """Seconds since this process started; at a program's entry point, the time of interpreter and imports."""
    import psutil

    return max(0.0, time.time() - psutil.Process().create_time())
