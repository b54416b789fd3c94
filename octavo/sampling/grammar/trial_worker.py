"""The process that tries grammars: reads tasks from its standard input until that ends."""

import os
import random
import resource
import sys
from pathlib import Path

import msgspec
import numpy as np
import psutil

from octavo.sampling.grammar.backends import open_backend
from octavo.sampling.grammar.base import GrammarBackend, GrammarError, GrammarState, shortened
from octavo.sampling.grammar.trial import (
    MAX_TRIAL_BYTES,
    TrialResult,
    TrialTask,
    VocabularySource,
    read_message,
    write_message,
)
from octavo.tokenization.vocabulary import Vocabulary, load_vocabulary

WALK_LENGTH = 32
"""Tokens that a trial goes along a grammar."""
_SPENT_BYTES = 1 << 30


def main() -> None:
    """Serve tasks until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # What a library prints must not come between answers.
    given = msgspec.msgpack.decode(read_message(sys.stdin.buffer), type=VocabularySource)
    vocabulary = load_vocabulary(Path(given.path), given.vocab_size, given.eos_ids)
    backends = {name: open_backend(name, vocabulary) for name in ("xgrammar", "guidance")}
    _limit_memory()
    write_message(answers, b"ready")
    while True:
        try:
            task = msgspec.msgpack.decode(read_message(sys.stdin.buffer), type=TrialTask)
        except EOFError:
            return
        _limit_time(task.timeout_s)
        write_message(answers, msgspec.msgpack.encode(_try(backends[task.backend], task, vocabulary)))


def _try(backend: GrammarBackend, task: TrialTask, vocabulary: Vocabulary) -> TrialResult:
    try:
        grammar = backend.compile(task.source)
        error = walk(grammar.start(), vocabulary)
        num_bytes = grammar.num_bytes
    except GrammarError as failure:
        error, num_bytes = str(failure), 0
    except BaseException as failure:  # A panic in Rust is no Exception.
        error, num_bytes = shortened(failure), 0
    # The system's own peak would count the engine's memory, from before this program was started in its copy.
    return TrialResult(error, num_bytes, is_spent=psutil.Process().memory_info().rss > _SPENT_BYTES)


def walk(state: GrammarState, vocabulary: Vocabulary) -> str | None:
    """Follow a grammar for some tokens, as a model that chooses at random would.

    Returns:
        What is wrong with the grammar, if it lets no text begin or end.
    """
    mask = np.zeros(-(-vocabulary.size // 32), np.int32)
    chooser = random.Random(0)
    for _ in range(WALK_LENGTH):
        state.fill(mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[: vocabulary.size])
        if not len(allowed):
            return "no text follows it to its end"
        token_id = int(allowed[chooser.randrange(len(allowed))])
        if not state.accept(token_id):
            return "the library contradicts itself about it"
        if state.is_finished:
            return None
    return None


def _limit_memory() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = MAX_TRIAL_BYTES if hard == resource.RLIM_INFINITY else min(MAX_TRIAL_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _limit_time(seconds: float) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(usage.ru_utime + usage.ru_stime + seconds) + 2
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


if __name__ == "__main__":
    main()
