"""Where the time of a start goes: a line in the log for each phase."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from octavo.records import StartPhase
from octavo.telemetry.logs import with_fields


class PhaseTimer:
    """Times phases that follow each other, and logs each as it ends.

    Args:
        level: of the log lines. Lines in JSON also have the phase's parts as fields.
        clock: seconds on any steady clock.

    Attributes:
        phases: those that are over, in order.
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
        """Time what runs inside; a phase that fails is not noted."""
        phase = StartPhase(name)
        start = self._clock()
        yield phase
        phase.seconds = self._clock() - start
        self._note(phase)

    def add(self, name: str, seconds: float, words: str = "") -> None:
        """Note a phase that somebody else timed, such as the imports before there was a timer."""
        self._note(StartPhase(name, seconds, words))

    def ready(self, words: str = "") -> float:
        """Log the end of the start; returns the seconds since this timer was made."""
        total = StartPhase("ready", self._clock() - self._start, words)
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
    """Seconds since this process began: at a program's entry, what the interpreter and the imports took."""
    import psutil

    return max(0.0, time.time() - psutil.Process().create_time())
