"""Scores of text pairs: by a cross-encoder, or by comparing the embeddings of both texts."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from octavo.errors import InvalidRequestError
from octavo.inputs.pooling import PoolingOptions, PoolingProcessor, with_query
from octavo.inputs.texts import BareText, EncodedPair, bare_text, encode_pair, encode_text, write_pair
from octavo.records import (
    PooledData,
    PoolingOutput,
    PoolingParams,
    PoolingRequest,
    PoolingRequestOutput,
    PreparedRequest,
)

MAX_PAIRS = 4096
MAX_PAIR_TOKENS = 1 << 22
"""Each pair holds its texts anew."""
MAX_QUERY_BYTES = 8 << 20
"""Vectors of queries that travel with the documents of one portion."""

Output = PoolingRequestOutput[PoolingOutput]
Outputs = list[Output]
ScoringJob = Generator[list[PreparedRequest], Outputs, list["Score"]]
"""Yields requests to run together and is sent their outputs, until it returns a score for each pair."""


@dataclass(frozen=True, slots=True)
class Score:
    """How well two texts match.

    Attributes:
        token_ids: of all that was computed for this pair and for no pair before it.
    """

    value: float
    token_ids: list[int]
    num_cached: int = 0


@dataclass(frozen=True, slots=True)
class ScoringOptions:
    """What is the same for all pairs.

    Attributes:
        max_tokens_per_query, max_tokens_per_doc: most tokens of each text; 0 is no limit.
    """

    pooling: PoolingOptions = field(default_factory=PoolingOptions)
    max_tokens_per_query: int = 0
    max_tokens_per_doc: int = 0


def proceed(job: ScoringJob, outputs: Outputs | None) -> tuple[list[PreparedRequest], list[Score]]:
    """The next requests to run, or else the scores.

    Args:
        outputs: of the last requests; None at first.
    """
    try:
        return (next(job) if outputs is None else job.send(outputs)), []
    except StopIteration as end:
        return [], end.value


def make_pairs(first: Sequence[str], second: Sequence[str]) -> list[tuple[str, str]]:
    """One text with each of several, or text by text."""
    if not first or not second:
        raise InvalidRequestError("There are no texts to compare.")
    if len(first) not in (1, len(second)):
        raise InvalidRequestError(
            f"Give one text to compare with all others, or as many on both sides; got {len(first)} and {len(second)}."
        )
    if len(second) > MAX_PAIRS:
        raise InvalidRequestError(f"One request may compare at most {MAX_PAIRS} pairs of texts, got {len(second)}.")
    return list(zip(first if len(first) > 1 else list(first) * len(second), second, strict=True))


def score_pairs(
    processor: PoolingProcessor,
    pairs: Sequence[tuple[str, str]],
    new_id: Callable[[], str],
    params: PoolingParams | None = None,
    options: ScoringOptions = ScoringOptions(),
) -> ScoringJob:
    """Score pairs of texts by what the model can do.

    Args:
        new_id: gives ids to requests.
    """
    spec = processor.spec
    scorer = _PairScorer(processor, pairs, new_id, params, options)
    if "classify" in spec.tasks:
        if spec.num_labels != 1:
            raise InvalidRequestError(
                f"Scores need a model of one class, a cross-encoder; this one has {spec.num_labels}. Use /classify."
            )
        return scorer.cross_encode()
    if spec.tasks[0] == "token_embed":
        return scorer.late_interaction()
    if "embed" in spec.tasks:
        return scorer.bi_encode()
    raise InvalidRequestError(f"This model's task is {spec.tasks[0]!r}; it cannot compare texts.")


@dataclass(frozen=True, slots=True)
class _PairScorer:
    """The three ways to score pairs; arguments as of :func:`score_pairs`."""

    processor: PoolingProcessor
    pairs: Sequence[tuple[str, str]]
    new_id: Callable[[], str]
    params: PoolingParams | None
    options: ScoringOptions

    def cross_encode(self) -> ScoringJob:
        """A cross-encoder reads both texts at once."""
        processor, options = self.processor, self.options
        base = processor.resolve(self.params, "classify")
        prepared = []
        num_tokens = 0
        for pair in self._encoded_pairs():
            num_tokens += len(pair.token_ids)
            if num_tokens > MAX_PAIR_TOKENS:
                raise InvalidRequestError(
                    f"The pairs of one request have at most {MAX_PAIR_TOKENS} tokens in all; send fewer at a time, or "
                    "let the texts be cut."
                )
            request = PoolingRequest(base.task, base.use_activation, segment_start=pair.segment_start)
            prepared.append(
                processor.prepare(self.new_id(), None, pair.token_ids, request, self.params, options.pooling)
            )
        outputs = yield prepared
        return [
            Score(float(output.outputs.array[0]), output.prompt_token_ids, output.num_cached_tokens)
            for output in outputs
        ]

    def _encoded_pairs(self) -> Iterator[EncodedPair]:
        """The pairs as the model reads them: framed, or written by its template."""
        tokenizer, template = self.processor.tokenizer, self.processor.pair_template
        limit = self.processor.limit(self.options.pooling)
        max_first, max_second = self.options.max_tokens_per_query, self.options.max_tokens_per_doc
        one: tuple[str, BareText] | None = None
        for first, second in self.pairs:
            if template:
                most = {"max_first": max_first, "max_second": max_second}
                yield write_pair(tokenizer, template, first, second, limit=limit, **most)
                continue
            # Most often it is one query with many documents.
            if one is None or one[0] != first:
                one = first, bare_text(tokenizer, first, limit=limit, most=max_first)
            yield encode_pair(tokenizer, one[1], second, limit=limit, max_second=max_second)

    def bi_encode(self) -> ScoringJob:
        """Each text has a vector; the score is their cosine similarity."""
        request = self.processor.resolve(self.params, "embed")
        wanted = _unique(self.pairs)
        outputs = yield [self._prepare(text, is_query, request) for text, is_query in wanted]
        found = dict(zip(wanted, outputs, strict=True))
        fresh = set(wanted)
        scores = []
        for first, second in self.pairs:
            query, document = found[first, True], found[second, False]
            value = _cosine(query.outputs.array, document.outputs.array)
            scores.append(_score(value, [(first, True), (second, False)], found, fresh))
        return scores

    def late_interaction(self) -> ScoringJob:
        """Each token has a vector. The queries' come first; the device then compares each document's with them."""
        request = self.processor.resolve(self.params, "token_embed")
        queries = list(dict.fromkeys(first for first, _ in self.pairs))
        found = yield [self._prepare(text, True, request) for text in queries]
        known = {(text, True): output for text, output in zip(queries, found, strict=True)}
        vectors = {text: PooledData.of(output.outputs.array) for (text, _), output in known.items()}
        outputs: Outputs = []
        for start, end in _portions([len(vectors[first].data) for first, _ in self.pairs]):
            outputs += yield [
                self._prepare(second, False, with_query(request, vectors[first]))
                for first, second in self.pairs[start:end]
            ]
        fresh = set(known)
        scores = []
        for (first, _), output in zip(self.pairs, outputs, strict=True):
            score = _score(float(output.outputs.array), [(first, True)], known, fresh)
            token_ids = [*score.token_ids, *output.prompt_token_ids]
            scores.append(Score(score.value, token_ids, score.num_cached + output.num_cached_tokens))
        return scores

    def _prepare(self, text: str, is_query: bool, request: PoolingRequest) -> PreparedRequest:
        processor, options = self.processor, self.options
        limit = processor.limit(options.pooling)
        own = options.max_tokens_per_query if is_query else options.max_tokens_per_doc
        if own:
            own += processor.tokenizer.frame.num_special_tokens
            limit = own if limit is None else min(limit, own)
        token_ids = encode_text(processor.tokenizer, text, limit=limit, side=options.pooling.truncation_side)
        return processor.prepare(self.new_id(), text, token_ids, request, self.params, options.pooling)


def _portions(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Batches of pairs with a bounded number of query bytes: each pair carries its own copy."""
    portions: list[tuple[int, int]] = []
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > MAX_QUERY_BYTES:
            portions.append((start, index))
            start, total = index, 0
        total += size
    return [*portions, (start, len(sizes))]


_Text = tuple[str, bool]
"""A text, and whether it is a query."""


def _unique(pairs: Sequence[tuple[str, str]]) -> list[_Text]:
    texts: dict[_Text, None] = {}
    for first, second in pairs:
        texts[first, True] = texts[second, False] = None
    return list(texts)


def _score(value: float, texts: Sequence[_Text], found: dict[_Text, Output], fresh: set[_Text]) -> Score:
    """A score, with the tokens of those texts that no score before it has counted."""
    token_ids: list[int] = []
    num_cached = 0
    for text in texts:
        if text in fresh:
            fresh.discard(text)
            token_ids += found[text].prompt_token_ids
            num_cached += found[text].num_cached_tokens
    return Score(value, token_ids, num_cached)


def _cosine(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    norm = float(np.linalg.norm(first)) * float(np.linalg.norm(second))
    return float(first @ second) / norm if norm else 0.0
