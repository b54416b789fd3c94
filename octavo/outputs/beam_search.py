"""Beam search over the log-probabilities of the next tokens."""

import heapq
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from octavo.errors import InvalidRequestError
from octavo.outputs.detokenizer import make_detokenizer
from octavo.records import (
    BeamSearchParams,
    CompletionOutput,
    Logprob,
    PreparedRequest,
    RequestOutput,
    RequestOutputKind,
    SampleLogprobs,
    SamplingParams,
    TokensPrompt,
)
from octavo.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Beam:
    """A text in the making, or a whole one.

    Attributes:
        logprobs: per token, the candidates at its place.
        cum_logprob: sum over the tokens.
        end_token: the token that ended it; None while it runs, and if its length ended it.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[dict[int, Logprob], ...] = ()
    cum_logprob: float = 0.0
    end_token: int | None = None


class BeamSearch:
    """A search for one prompt, step by step: ask for :attr:`running`, give :meth:`advance` their next tokens.

    Of all candidates the best ``beam_width`` that do not end the text continue. One that ends it is kept if it is
    among the ``beam_width`` best of all. The search ends when nothing that runs can still beat the worst of
    ``beam_width`` whole texts, or at ``max_tokens``. Hugging Face searches like that with ``early_stopping="never"``.

    Args:
        max_tokens: most tokens; those of ``params`` or fewer.

    Attributes:
        running: texts that continue; empty when the search is over.
    """

    def __init__(self, params: BeamSearchParams, eos_token_ids: Collection[int], max_tokens: int) -> None:
        self.running = [Beam()]
        self._width = params.beam_width
        self._penalty = params.length_penalty
        self._ends = frozenset(() if params.ignore_eos else eos_token_ids)
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._whole: list[Beam] = []

    @property
    def num_candidates(self) -> int:
        """How many of the most likely next tokens of each text :meth:`advance` must see."""
        return self._width + len(self._ends)

    def advance(self, candidates: Sequence[dict[int, Logprob]]) -> None:
        """Extend each of :attr:`running` by its most likely next tokens."""
        self._num_tokens += 1
        found = [
            (beam.cum_logprob + entry.logprob, -index, token_id)
            for index, (beam, tokens) in enumerate(zip(self.running, candidates, strict=True))
            for token_id, entry in tokens.items()
            if entry.logprob > -math.inf
        ]
        # Enough candidates that ``beam_width`` remain after all end tokens; ties keep the order of beams and tokens.
        best = heapq.nlargest(self._width * (1 + len(self._ends)), found)
        following: list[Beam] = []
        for rank, (total, minus_index, token_id) in enumerate(best):
            ends = token_id in self._ends
            if (ends and rank >= self._width) or (not ends and len(following) == self._width):
                continue
            parent, tokens = self.running[-minus_index], candidates[-minus_index]
            beam = Beam((*parent.token_ids, token_id), (*parent.logprobs, tokens), total, token_id if ends else None)
            (self._whole if ends else following).append(beam)
        if self._num_tokens == self._max_tokens:
            self._whole += following
            following = []
        self._whole = heapq.nlargest(self._width, self._whole, key=self._score)
        self.running = [] if self._is_settled(following) else following

    def best(self) -> list[Beam]:
        """Up to ``beam_width`` whole texts, the best first."""
        return self._whole

    def _score(self, beam: Beam) -> float:
        return _scored(beam.cum_logprob, len(beam.token_ids), self._penalty)

    def _is_settled(self, following: Sequence[Beam]) -> bool:
        """Whether nothing that would continue could still be returned."""
        if not following:
            return True
        if len(self._whole) < self._width:
            return False
        # Log-probabilities only fall; a positive penalty makes the most of the longest text.
        length = self._max_tokens if self._penalty > 0 else self._num_tokens
        return _scored(following[0].cum_logprob, length, self._penalty) <= self._score(self._whole[-1])


def _scored(cum_logprob: float, num_tokens: int, length_penalty: float) -> float:
    return cum_logprob / float(num_tokens) ** length_penalty


class PromptSearch:
    """A :class:`BeamSearch` in terms of requests for one token each.

    Args:
        max_tokens, eos_token_ids: as the input processor resolved them for this prompt.
        num_logprobs: as many log-probabilities as are to be positions at least.

    Attributes:
        step_params: how to complete each of :attr:`prompts`.
    """

    def __init__(
        self,
        prompt_token_ids: Sequence[int],
        params: BeamSearchParams,
        *,
        max_tokens: int,
        eos_token_ids: Collection[int],
        num_logprobs: int = 0,
    ) -> None:
        self._prompt = list(prompt_token_ids)
        self._params = params
        self._search = BeamSearch(params, eos_token_ids, max_tokens)
        self.step_params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            logprobs=max(self._search.num_candidates, num_logprobs),
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    @classmethod
    def of(
        cls, prepared: PreparedRequest, params: BeamSearchParams, max_logprobs: int, num_logprobs: int = 0
    ) -> "PromptSearch":
        """The search for a prompt that an input processor has checked.

        Args:
            max_logprobs: most log-probabilities per token that the engine gives; −1 is no limit.

        Raises:
            InvalidRequestError: the search is wider than that allows.
        """
        request = prepared.children[0]
        if request.prompt_embeds is not None:
            raise InvalidRequestError("Beam search cannot be combined with prompt_embeds.", "prompt_embeds")
        search = cls(
            prepared.prompt_token_ids,
            params,
            max_tokens=request.params.max_tokens or params.max_tokens,
            eos_token_ids=request.eos_token_ids,
            num_logprobs=num_logprobs,
        )
        num_candidates = search.num_candidates
        if max_logprobs != -1 and num_candidates > max_logprobs:
            raise InvalidRequestError(
                f"A search of {params.beam_width} beams looks at the {num_candidates} most likely tokens, but "
                f"log-probabilities are given for {max_logprobs} (max_logprobs).",
                "beam_width",
            )
        return search

    @property
    def num_candidates(self) -> int:
        """How many of the most likely tokens the search examines."""
        return self._search.num_candidates

    @property
    def skip_special_tokens(self) -> bool:
        """Whether special tokens are left out of the text."""
        return self._params.skip_special_tokens

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to ask."""
        return not self._search.running

    @property
    def prompts(self) -> list[TokensPrompt]:
        """What to complete by one token each, with :attr:`step_params`."""
        return [TokensPrompt(prompt_token_ids=[*self._prompt, *beam.token_ids]) for beam in self._search.running]

    def advance(self, outputs: Sequence[RequestOutput]) -> None:
        """The answers to :attr:`prompts`."""
        self._search.advance([(output.outputs[0].logprobs or [{}])[0] for output in outputs])

    def completions(self, tokenizer: Tokenizer | None, num_logprobs: int | None) -> list[CompletionOutput]:
        """The best texts, the best first, as completions.

        Args:
            num_logprobs: how many log-probabilities to show beside each token's; None shows none, −1 all there are.
        """
        return [
            CompletionOutput(
                index,
                "" if tokenizer is None else self._text(beam, tokenizer),
                list(beam.token_ids),
                beam.cum_logprob,
                None if num_logprobs is None else ranked_logprobs(beam, num_logprobs),
                finish_reason="length" if beam.end_token is None else "stop",
            )
            for index, beam in enumerate(self._search.best())
        ]

    def best(self) -> list[Beam]:
        """The best texts, the best first."""
        return self._search.best()

    def _text(self, beam: Beam, tokenizer: Tokenizer) -> str:
        hides_end = beam.end_token is not None and not self._params.include_stop_str_in_output
        detokenizer = make_detokenizer(tokenizer, self._prompt, self._params.skip_special_tokens)
        return detokenizer.decode_delta(beam.token_ids[:-1] if hides_end else beam.token_ids) + detokenizer.flush()


def ranked_logprobs(beam: Beam, num_top: int) -> SampleLogprobs:
    """Per token, its own entry first, then the ``num_top`` most likely; all if −1."""
    positions = []
    for token_id, candidates in zip(beam.token_ids, beam.logprobs, strict=True):
        ranked = sorted(candidates.items(), key=lambda item: -item[1].logprob)
        top = ranked if num_top < 0 else ranked[:num_top]
        positions.append({token_id: candidates[token_id], **dict(top)})
    return positions
