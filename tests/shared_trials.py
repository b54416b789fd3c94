"""One process that tries grammars for all engines of a vocabulary: starting one takes seconds."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from octavo.errors import RequestFailedError
from octavo.sampling.grammar import compiler
from octavo.sampling.grammar.trial import TrialProcess, TrialResult, TrialTask, VocabularySource


class SharedTrials:
    """The processes, by vocabulary; each has a lock, as a :class:`TrialProcess` is for one thread at a time."""

    def __init__(self) -> None:
        self._trials: dict[VocabularySource, tuple[TrialProcess, threading.Lock]] = {}
        self._lock = threading.Lock()

    def run(self, vocabulary: VocabularySource, task: TrialTask) -> TrialResult:
        """Try a grammar in the process of its vocabulary."""
        with self._lock:
            if vocabulary not in self._trials:
                self._trials[vocabulary] = TrialProcess(vocabulary), threading.Lock()
            trial, is_busy = self._trials[vocabulary]
        with is_busy:
            return trial.run(task)

    def stop(self) -> None:
        """End the processes."""
        for trial, _ in self._trials.values():
            trial.stop()


class SharedTrial(TrialProcess):
    """What an engine takes for a process of its own."""

    def __init__(self, vocabulary: VocabularySource, trials: SharedTrials) -> None:
        super().__init__(vocabulary)
        self._trials = trials

    def run(self, task: TrialTask) -> TrialResult:
        """Try a grammar; see :meth:`TrialProcess.run`."""
        if self._is_stopped:
            raise RequestFailedError("The engine is shutting down.")
        return self._trials.run(self._vocabulary, task)


@contextmanager
def sharing_trials() -> Iterator[None]:
    """Let engines of this process share what tries their grammars."""
    trials = SharedTrials()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "TrialProcess", lambda vocabulary: SharedTrial(vocabulary, trials))
        yield
    trials.stop()
