"""Where the time of a start goes: a line in the log for each phase."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Phase:
    """One phase of a start.

    Attributes:
        words: what else is worth saying about it; may be filled in while it runs.
        num_bytes: bytes it moved, 0 if that says nothing; likewise.
    """

    name: str
    seconds: float = 0.0
    words: str = ""
    num_bytes: int = 0

    def __str__(self) -> str:
        notes = [self.words] if self.words else []
        if self.num_bytes:
            notes.append(f"{self.num_bytes / 1e9:.2f} GB, {self.num_bytes / 1e9 / max(self.seconds, 1e-9):.1f} GB/s")
        return f"{self.name} {self.seconds:.2f} s" + (f" ({', '.join(notes)})" if notes else "")


class PhaseTimer:
    """Times phases that follow each other, and logs each as it ends.

    Args:
        clock: seconds on any steady clock.

    Attributes:
        phases: those that are over, in order.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.perf_counter) -> None:
        self.phases: list[Phase] = []
        self._logger = logger
        self._clock = clock
        self._start = clock()

    @contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        """Time what runs inside; a phase that fails is not noted."""
        phase = Phase(name)
        start = self._clock()
        yield phase
        phase.seconds = self._clock() - start
        self._note(phase)

    def add(self, name: str, seconds: float, words: str = "") -> None:
        """Note a phase that somebody else timed, such as the imports before there was a timer."""
        self._note(Phase(name, seconds, words))

    def ready(self, words: str = "") -> float:
        """Log the end of the start; returns the seconds since this timer was made."""
        total = Phase("ready", self._clock() - self._start, words)
        self._logger.info("Start: %s", total)
        return total.seconds

    def _note(self, phase: Phase) -> None:
        self.phases.append(phase)
        self._logger.info("Start: %s", phase)


def process_age() -> float:
    """Seconds since this process began: at a program's entry, what the interpreter and the imports took."""
    import psutil

    return max(0.0, time.time() - psutil.Process().create_time())
