"""Grammars are compiled aside, tried first, within limits, and kept."""

import gc
import json
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from walking import allowed_tokens

from octavo.errors import InvalidRequestError, RequestFailedError
from octavo.records import StructuredOutputsParams
from octavo.sampling.grammar.base import CompiledGrammar
from octavo.sampling.grammar.compiler import GrammarCompiler
from octavo.sampling.grammar.source import GrammarSource, read_source
from octavo.sampling.grammar.trial import TrialProcess, TrialTask, VocabularySource
from octavo.sampling.grammar.xgrammar_backend import XGrammar
from octavo.tokenization.vocabulary import Vocabulary

SLOW = "(([a-z]{1,30}){1,30}){1,50}"
"""A regex that xgrammar would work on for minutes."""


@pytest.fixture(scope="module")
def compiler(vocabulary_source: VocabularySource) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(vocabulary_source, timeout_s=2.0)
    yield compiler
    compiler.close()


@pytest.fixture(scope="module")
def trial(vocabulary_source: VocabularySource) -> Iterator[TrialProcess]:
    trial = TrialProcess(vocabulary_source)
    yield trial
    trial.stop()


def params(**fields: Any) -> StructuredOutputsParams:
    return StructuredOutputsParams(**fields)


def task(timeout_s: float = 30.0, **fields: Any) -> TrialTask:
    source = read_source(params(**fields))
    return TrialTask(source, source.backends[0], timeout_s)


@pytest.mark.long
def test_the_same_grammar_is_compiled_once(compiler: GrammarCompiler) -> None:
    futures = [compiler.submit(params(regex="a+b")) for _ in range(5)]
    assert len({id(future.result()) for future in futures}) == 1
    assert compiler.submit(params(regex="a+b")).done()
    assert compiler.compile(params(regex="a+c")) is not futures[0].result()


def test_states_of_one_grammar_do_not_know_each_other(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    grammar = compiler.compile(params(choice=["ab", "cd"]))
    one, other = grammar.start(), grammar.start()
    before = allowed_tokens(other, vocabulary)
    assert one.accept(int(before[0]))
    np.testing.assert_array_equal(allowed_tokens(other, vocabulary), before)


@pytest.mark.long
def test_what_one_backend_fails_at_the_other_may_follow(compiler: GrammarCompiler) -> None:
    """xgrammar works on this for minutes beforehand, llguidance only on what comes up."""
    schema = {"type": "string", "pattern": "^([^\n]{0,30}x){0,20}$"}
    assert read_source(params(json=schema)).backends == ("xgrammar", "guidance")
    assert not isinstance(compiler.compile(params(json=schema)), XGrammar)


@pytest.mark.long
@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"grammar": "root ::= foo"}, 'cannot be followed: xgrammar: .*"foo" is not defined'),
        ({"grammar": "root ::= a\na ::= root", "backend": "xgrammar"}, "no text follows it to its end"),
        ({"grammar": 'start: / "test"\n'}, "^The grammar cannot be followed: guidance: "),
        ({"grammar": 'start: "a" | undefined'}, "undefined"),
        ({"regex": SLOW, "backend": "xgrammar"}, "takes longer than 2 seconds"),
        ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "^The JSON schema cannot be followed: "),
    ],
)
def test_a_bad_grammar_ends_in_words(fields: dict[str, Any], what: str, compiler: GrammarCompiler) -> None:
    with pytest.raises(InvalidRequestError, match=what) as refusal:
        compiler.compile(params(**fields))
    assert str(refusal.value).endswith(".") and "\n" not in str(refusal.value) and "/cpp/" not in str(refusal.value)
    assert compiler.submit(params(**fields)).done(), "a second time it is not tried again"


def test_kept_grammars_are_bounded(vocabulary_source: VocabularySource, compiler: GrammarCompiler) -> None:
    size = compiler.compile(params(regex="a+b")).num_bytes
    assert size > 0

    def num_kept(**limits: int) -> int:
        """How many of seven are compiled once."""
        small = GrammarCompiler(vocabulary_source, **limits)
        small._threads.shutdown()
        small._threads, small._own = compiler._threads, compiler._own
        forms = [params(regex=f"a+{letter}") for letter in "bcdefgh"]
        grammars: list[CompiledGrammar] = [small.compile(form) for form in forms]
        # The last first: whoever is not kept is compiled again and takes another one's place.
        found = [small.compile(form) is grammar for form, grammar in zip(forms[::-1], grammars[::-1], strict=True)]
        assert found == sorted(found, reverse=True)
        return sum(found)

    assert num_kept(max_cache_entries=2) == 2
    assert 1 <= num_kept(max_cache_bytes=3 * size) <= 3
    assert num_kept() == 7


@pytest.mark.long
def test_a_trial_says_how_much_memory_it_takes(trial: TrialProcess) -> None:
    schema = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(12)}}
    result = trial.run(task(json=schema))
    assert result.error is None and 0 < result.num_bytes < 64 << 20


@pytest.mark.long
def test_an_engine_with_much_memory_keeps_its_trial_process(vocabulary_source: VocabularySource) -> None:
    trial = TrialProcess(vocabulary_source)
    engines = np.ones((3 << 30) // 2, np.int8)
    try:
        assert trial.run(task(regex="a+")).error is None
        assert trial._process is not None, "it is not taken for one that has grown itself"
    finally:
        trial.stop()
        del engines


@pytest.mark.long
def test_a_crash_is_a_result(trial: TrialProcess) -> None:
    assert trial.run(task(regex="a+")).error is None
    assert trial._process is not None
    os.kill(trial._process.pid, signal.SIGSEGV)
    trial._process.wait()
    assert trial.run(task(regex="a+")).error is None, "one that died with nothing to do is replaced"


def test_a_grammar_that_crashes_the_library_is_refused(trial: TrialProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(process: Any, message: bytes, timeout_s: float) -> bytes:
        raise EOFError

    assert trial.run(task(regex="a+")).error is None
    monkeypatch.setattr("octavo.sampling.grammar.trial._ask", dies)
    monkeypatch.setattr(trial, "_started", lambda: trial._process)
    assert "crashes the library" in (trial.run(task(regex="a+")).error or "")


def test_without_a_tokenizer_it_says_so() -> None:
    with pytest.raises(InvalidRequestError, match="skip_tokenizer_init"):
        GrammarCompiler(None).submit(params(regex="a"))
    with pytest.raises(InvalidRequestError, match="token that ends a text"):
        GrammarCompiler(VocabularySource("/nowhere", 10, ())).submit(params(regex="a"))


def test_closing_ends_what_is_under_way(vocabulary_source: VocabularySource) -> None:
    compiler = GrammarCompiler(vocabulary_source)
    futures = [compiler.submit(params(regex=f"a{{{count}}}")) for count in range(1, 9)]
    compiler.close()
    for future in futures:
        with pytest.raises(RequestFailedError):
            future.result(timeout=60)


def test_reading_is_not_the_callers_work(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, goes_on = threading.Event(), threading.Event()

    def read_slowly(*args: Any, **options: Any) -> GrammarSource:
        reading.set()
        assert goes_on.wait(60)
        return read_source(*args, **options)

    monkeypatch.setattr("octavo.sampling.grammar.compiler.read_source", read_slowly)
    future = compiler.submit(params(regex="slowly[0-9]"))
    assert reading.wait(60) and not future.done()
    goes_on.set()
    assert future.result(60)
    malformed = compiler.submit(params(regex="("))
    with pytest.raises(InvalidRequestError, match="regex"):
        malformed.result(60)


def test_what_is_refused_at_once_keeps_nobody_waiting(vocabulary_source: VocabularySource) -> None:
    compiler = GrammarCompiler(vocabulary_source)

    def submit_and_finish(function: Any, *args: Any) -> "Future[CompiledGrammar]":
        future: Future[CompiledGrammar] = Future()
        future.set_exception(InvalidRequestError("No."))
        return future

    compiler._threads.submit = submit_and_finish  # type: ignore[method-assign, assignment]
    refused: list[BaseException | None] = []
    caller = threading.Thread(
        target=lambda: refused.append(compiler.submit(params(regex="a")).exception(60)), daemon=True
    )
    caller.start()
    caller.join(60)
    assert isinstance(refused[0], InvalidRequestError)
    compiler.close()


@pytest.mark.long
def test_a_compiler_that_is_dropped_leaves_nothing(vocabulary_source: VocabularySource) -> None:
    compiler = GrammarCompiler(vocabulary_source)
    compiler.compile(params(regex="a"))
    (trial,) = compiler._trials
    threads = list(compiler._threads._threads)
    dropped = weakref.ref(compiler)
    del compiler
    gc.collect()
    assert dropped() is None
    trial.stop()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_hostile_inputs_end(compiler: GrammarCompiler) -> None:
    """Compiled or refused in words; the process that tries them may be ended by it, this one goes on."""
    wide = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(60)}}
    excluding = {"type": "any_text", "excludes": [f"x{i}" for i in range(500)]}
    hostile: list[dict[str, Any]] = [
        {"regex": "(a|a)*" * 20 + "b"},
        {"regex": "(.*a){25}"},
        {"regex": "(a|b)*a(a|b){20}"},
        {"json": {**wide, "minProperties": 30, "maxProperties": 31}},
        {"json": {"enum": [f"x{i * 7919}" for i in range(4000)]}},
        {"json": {"type": "array", "items": {"type": "integer"}, "minItems": 10**6, "maxItems": 10**6}},
        {"json": {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "string"}]}}, "$ref": "#/$defs/a"}},
        {"json": {"type": "object", "properties": {"c": {"$ref": "#"}}, "required": ["c"]}},
        {"grammar": 'root ::= root "a" | "a"'},
        {"grammar": 'root ::= ("" *)* "a"'},
        {"structural_tag": json.dumps({"type": "structural_tag", "format": excluding})},
    ]
    for fields in hostile:
        error = compiler.submit(params(**fields)).exception(timeout=60)
        assert error is None or isinstance(error, InvalidRequestError)
