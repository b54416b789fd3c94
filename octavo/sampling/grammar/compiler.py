"""Compiles what requests ask for, away from the engine's loop, within limits of time and memory; keeps the results."""

import logging
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from octavo.errors import InvalidRequestError, OctavoError, OverloadedError, RequestFailedError
from octavo.records import GrammarBackend as BackendChoice
from octavo.records import StructuredOutputsParams
from octavo.sampling.grammar.backends import open_backend
from octavo.sampling.grammar.base import CompiledGrammar, GrammarBackend, GrammarError
from octavo.sampling.grammar.source import GrammarSource, read_source
from octavo.sampling.grammar.trial import TrialProcess, TrialTask, VocabularySource
from octavo.tokenization.vocabulary import Vocabulary, load_vocabulary

logger = logging.getLogger(__name__)

COMPILE_TIMEOUT_S = 5.0
"""For one backend to compile one grammar."""
MAX_PENDING = 256
"""Most grammars that wait or are being compiled."""
MAX_WAIT_S = 30.0
"""A grammar that could not be begun by then is refused: the server has too many to compile."""
MAX_GRAMMAR_BYTES = 256 << 20
"""Most memory of one compiled grammar."""
MAX_CACHE_BYTES = 512 << 20
"""Most memory of the compiled grammars that are kept."""
MAX_CACHE_ENTRIES = 1024
REFUSED_FOR_S = 60.0
"""How long a grammar that was refused is refused again without a look: a machine that was busy may be free later."""
_NUM_THREADS = 2


class GrammarCompiler:
    """Compiles grammars for one model's vocabulary.

    Nothing is loaded before the first grammar: libraries and vocabulary are then read by the thread that compiles, and
    by a process of its own that tries every grammar first (see :mod:`octavo.sampling.grammar.trial`).

    Args:
        vocabulary: where the vocabulary comes from; None if there is no tokenizer.
        default_backend: for requests that name none.
        is_compact: JSON has no white space of the model's choice, whatever requests ask for.
    """

    def __init__(
        self,
        vocabulary: VocabularySource | None,
        default_backend: BackendChoice = "auto",
        *,
        is_compact: bool = False,
        timeout_s: float = COMPILE_TIMEOUT_S,
        max_cache_bytes: int = MAX_CACHE_BYTES,
        max_cache_entries: int = MAX_CACHE_ENTRIES,
    ) -> None:
        self._vocabulary_source = vocabulary
        self._default_backend = default_backend
        self._is_compact = is_compact
        self._timeout_s = timeout_s
        self._cache = _GrammarCache(max_cache_bytes, max_cache_entries)
        self._pending: dict[bytes, Future[CompiledGrammar]] = {}
        self._lock = threading.Lock()
        self._vocabulary: Vocabulary | None = None
        self._backends: dict[str, GrammarBackend] = {}
        self._backends_lock = threading.Lock()
        self._trials: list[TrialProcess] = []
        self._is_closed = False
        self._own = _ThreadState()
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "grammar")

    def submit(self, params: StructuredOutputsParams) -> "Future[CompiledGrammar]":
        """Begin to compile; the same grammar is compiled once, however many ask for it.

        Nothing is read here, as that can take a while, too. The future ends with :class:`InvalidRequestError` if the
        grammar is malformed or cannot be followed, or with another :class:`OctavoError`. Cancelling it has no effect
        on others.

        Raises:
            InvalidRequestError: the model can follow none.
            OverloadedError: too many grammars are waiting.
        """
        if self._vocabulary_source is not None and not self._vocabulary_source.eos_ids:
            raise InvalidRequestError(
                "Structured output needs a token that ends a text, and this model has none.", "structured_outputs"
            )
        if self._vocabulary_source is None:
            raise InvalidRequestError(
                "Structured output needs the model's tokenizer, which skip_tokenizer_init leaves out.",
                "structured_outputs",
            )
        unbound = msgspec.structs.replace(params, start_after=None, start_after_tail=None, openers=None)
        key = msgspec.msgpack.encode(unbound)
        future: Future[CompiledGrammar] = Future()
        with self._lock:
            found = self._cache.get(key)
            if found is not None:
                _settle(future, found)
                return future
            shared = self._pending.get(key)
            is_new = shared is None
            if shared is None:
                if len(self._pending) >= MAX_PENDING:
                    raise OverloadedError(f"{MAX_PENDING} grammars are waiting to be compiled; try again later.")
                shared = self._pending[key] = self._threads.submit(self._work, params, time.monotonic())
        if is_new:
            # Not within the lock, which it takes itself: it is called here and now if all is done already.
            shared.add_done_callback(lambda done: self._keep(key, done))
        shared.add_done_callback(lambda done: _pass_on(done, future))
        return future

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """Compile and wait; raises as :meth:`submit` and its future do."""
        return self.submit(params).result()

    def close(self) -> None:
        """End threads and processes; grammars under way fail."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._is_closed = True
            trials = list(self._trials)
        for trial in trials:
            trial.stop()

    def _trial(self) -> TrialProcess:
        """This thread's. It is opened here, not as the thread begins: a thread would keep this object for good."""
        if self._own.trial is None:
            assert self._vocabulary_source is not None
            trial = TrialProcess(self._vocabulary_source)
            with self._lock:
                if self._is_closed:
                    trial.stop()
                self._trials.append(trial)
            self._own.trial = trial
        return self._own.trial

    def _keep(self, key: bytes, done: "Future[CompiledGrammar]") -> None:
        with self._lock:
            self._pending.pop(key, None)
            if done.cancelled():
                return
            error = done.exception()
            if error is None:
                self._cache.put(key, done.result())
            elif isinstance(error, InvalidRequestError):
                # Who tries a grammar again that takes too long is not to occupy a thread again.
                self._cache.put(key, _Refusal(str(error), time.monotonic() + REFUSED_FOR_S))

    def _work(self, params: StructuredOutputsParams, submitted: float) -> CompiledGrammar:
        if time.monotonic() - submitted > MAX_WAIT_S:
            raise OverloadedError("Too many grammars are waiting to be compiled; try again later.")
        source = read_source(params, self._default_backend, is_compact=self._is_compact)
        errors = []
        for name in source.backends:
            try:
                return self._compile(source, name)
            except GrammarError as error:
                errors.append(str(error))
            except OctavoError:
                raise
            except BaseException:  # A panic in Rust is no Exception; it is not to end the thread.
                logger.exception("A grammar failed after its trial.")
                raise RequestFailedError("The grammar could not be compiled, because of a fault here.") from None
        raise InvalidRequestError(_refusal(source, errors), "structured_outputs")

    def _compile(self, source: GrammarSource, name: str) -> CompiledGrammar:
        result = self._trial().run(TrialTask(source, name, self._timeout_s))
        if result.error is not None:
            raise GrammarError(result.error)
        if result.num_bytes > MAX_GRAMMAR_BYTES:
            raise GrammarError(f"it takes {result.num_bytes >> 20} MiB; {MAX_GRAMMAR_BYTES >> 20} are allowed")
        return self._backend(name).compile(source)

    def _backend(self, name: str) -> GrammarBackend:
        assert self._vocabulary_source is not None
        with self._backends_lock:
            if self._vocabulary is None:
                given = self._vocabulary_source
                self._vocabulary = load_vocabulary(Path(given.path), given.vocab_size, given.eos_ids)
            if name not in self._backends:
                self._backends[name] = open_backend(name, self._vocabulary)
            return self._backends[name]


class _ThreadState(threading.local):
    """What each thread has for itself."""

    trial: TrialProcess | None = None


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a grammar cannot be followed, and until when to say so."""

    text: str
    until: float


class _GrammarCache:
    """What became of grammars, compiled or refused with an error; the least recently used leave first."""

    def __init__(self, max_bytes: int, max_entries: int) -> None:
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._entries: OrderedDict[bytes, CompiledGrammar | _Refusal] = OrderedDict()
        self.num_bytes = 0

    def get(self, key: bytes) -> CompiledGrammar | _Refusal | None:
        found = self._entries.get(key)
        if isinstance(found, _Refusal) and found.until < time.monotonic():
            self.num_bytes -= _size(key, self._entries.pop(key))
            return None
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def put(self, key: bytes, outcome: CompiledGrammar | _Refusal) -> None:
        assert key not in self._entries
        self._entries[key] = outcome
        self.num_bytes += _size(key, outcome)
        while self._entries and (self.num_bytes > self._max_bytes or len(self._entries) > self._max_entries):
            self.num_bytes -= _size(*self._entries.popitem(last=False))


def _size(key: bytes, outcome: CompiledGrammar | _Refusal) -> int:
    return len(key) + (len(outcome.text) if isinstance(outcome, _Refusal) else outcome.num_bytes)


def _settle(future: "Future[CompiledGrammar]", outcome: CompiledGrammar | _Refusal) -> None:
    if isinstance(outcome, _Refusal):
        future.set_exception(InvalidRequestError(outcome.text, "structured_outputs"))
    else:
        future.set_result(outcome)


def _pass_on(done: "Future[CompiledGrammar]", future: "Future[CompiledGrammar]") -> None:
    if not future.set_running_or_notify_cancel():
        return
    error = RequestFailedError("The engine is shutting down.") if done.cancelled() else done.exception()
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


def _refusal(source: GrammarSource, errors: list[str]) -> str:
    names = {"json": "The JSON schema", "regex": "The regex", "structural_tag": "The structural tag"}
    whose = [f"{backend}: {error}" for backend, error in zip(source.backends, errors, strict=True)]
    return f"{names.get(source.kind, 'The grammar')} cannot be followed: {'; '.join(dict.fromkeys(whose))}."
