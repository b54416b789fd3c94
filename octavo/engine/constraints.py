"""Requests that wait for their grammars; these are compiled outside the engine's loop."""

import concurrent.futures
import logging
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass

import msgspec

from octavo.config import EngineConfig
from octavo.errors import OctavoError, RequestFailedError
from octavo.hub import ModelSource, tokenizer_path
from octavo.records import EngineOutput, EngineRequest
from octavo.sampling.grammar.base import CompiledGrammar
from octavo.sampling.grammar.compiler import GrammarCompiler
from octavo.sampling.grammar.constraint import Constraint
from octavo.sampling.grammar.reasoning_limit import ReasoningLimit
from octavo.sampling.grammar.trial import VocabularySource
from octavo.sampling.repetition import RepetitionDetector
from octavo.sampling.rules import TokenRule

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: EngineRequest
    grammar: Future[CompiledGrammar]


@dataclass(frozen=True, slots=True)
class Bound:
    """A request whose grammar is compiled: the request for the scheduler, and the rules for its tokens."""

    request: EngineRequest
    rules: list[TokenRule]


class Constraints:
    """Holds requests with ``structured_outputs`` until their grammars are compiled.

    The compiler is started by the first of them.
    """

    def __init__(self, settings: EngineConfig, source: ModelSource, vocab_size: int) -> None:
        self._settings = settings
        self._source = source
        self._vocab_size = vocab_size
        self._compiler: GrammarCompiler | None = None
        self._waiting: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    @property
    def request_ids(self) -> set[str]:
        """Ids of requests that wait for their grammars."""
        return set(self._waiting)

    def begin(self, request: EngineRequest) -> None:
        """Start compiling a request's grammar."""
        assert request.params.structured_outputs is not None
        if self._compiler is None:
            self._compiler = self._new_compiler(request.eos_token_ids)
        self._waiting[request.request_id] = _Waiting(request, self._compiler.submit(request.params.structured_outputs))

    def abort(self, request_ids: Iterable[str]) -> list[EngineOutput]:
        """Abort waiting requests; unknown ids are ignored."""
        found = [request_id for request_id in dict.fromkeys(request_ids) if request_id in self._waiting]
        for request_id in found:
            self._waiting.pop(request_id).grammar.cancel()
        return [EngineOutput(request_id, finish_reason="abort") for request_id in found]

    def take_ready(self) -> tuple[list[Bound], list[EngineOutput]]:
        """Remove and return requests that can run, in order of arrival, and outputs of those whose grammars failed."""
        ready: list[Bound] = []
        failed: list[EngineOutput] = []
        for request_id, waiting in list(self._waiting.items()):
            if not waiting.grammar.done():
                continue
            del self._waiting[request_id]
            try:
                ready.append(_bind(waiting.request, waiting.grammar.result()))
            except OctavoError as error:
                failed.append(refusal(request_id, error))
            except Exception:
                logger.exception("a grammar failed")
                failed.append(refusal(request_id, RequestFailedError("The grammar failed.")))
        return ready, failed

    def wait(self, seconds: float) -> None:
        """Wait until a grammar is compiled, at most ``seconds``."""
        grammars = [waiting.grammar for waiting in self._waiting.values()]
        concurrent.futures.wait(grammars, seconds, return_when=concurrent.futures.FIRST_COMPLETED)

    def close(self) -> None:
        """Stop the compiler."""
        if self._compiler is not None:
            self._compiler.close()

    def _new_compiler(self, eos_token_ids: list[int]) -> GrammarCompiler:
        model = self._settings.model
        vocabulary = None
        if not model.skip_tokenizer_init:
            path = tokenizer_path(self._settings, self._source)
            vocabulary = VocabularySource(str(path), self._vocab_size, tuple(eos_token_ids))
        is_compact = model.structured_outputs_disable_any_whitespace
        return GrammarCompiler(vocabulary, model.structured_outputs_backend, is_compact=is_compact)


def refusal(request_id: str, error: OctavoError) -> EngineOutput:
    """The only output of a request that never ran: an error."""
    is_refused = not isinstance(error, RequestFailedError)
    return EngineOutput(request_id, finish_reason="error", error=str(error), is_refused=is_refused)


def _bind(request: EngineRequest, grammar: CompiledGrammar) -> Bound:
    params = request.params
    assert params.structured_outputs is not None
    constraint = Constraint(
        grammar.start(),
        params.structured_outputs.start_after or (),
        params.min_tokens,
        {*request.eos_token_ids, *(params.stop_token_ids or ())},
        request.output_token_ids.tolist(),
        _reasoning_limit(request),
        params.structured_outputs.start_after_tail or (),
        params.structured_outputs.openers,
    )
    # The constraint decides when the text may end and takes min_tokens into account itself.
    request = msgspec.structs.replace(request, params=msgspec.structs.replace(params, min_tokens=0))
    return Bound(request, [constraint, *_repetition_rules(request)])


def rules_without_grammar(request: EngineRequest) -> list[TokenRule]:
    """The rules of a request that needs no grammar: a limit on its reasoning, an end of repetitions."""
    limit = _reasoning_limit(request)
    rules = [] if limit is None else [Constraint(None, earlier=request.output_token_ids.tolist(), limit=limit)]
    return [*rules, *_repetition_rules(request)]


def _repetition_rules(request: EngineRequest) -> list[TokenRule]:
    wanted, params = request.params.repetition_detection, request.params
    if wanted is None or not wanted.is_on:
        return []
    return [RepetitionDetector(wanted, request.output_token_ids.tolist(), params.min_tokens)]


def _reasoning_limit(request: EngineRequest) -> ReasoningLimit | None:
    budget, tags = request.params.thinking_token_budget, request.params.reasoning_tags
    return None if budget is None or tags is None else ReasoningLimit(budget, tags)
