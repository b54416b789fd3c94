"""The state of one running completion: tokens, text and finish reason."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.outputs.detokenizer import IncrementalDetokenizer, make_detokenizer
from octavo.outputs.logprobs import format_logprobs, sample_logprobs
from octavo.outputs.stop_strings import StopStringMatcher
from octavo.outputs.stream import TextTaker
from octavo.records import (
    CompletionOutput,
    EngineOutput,
    EngineRequest,
    RequestOutputKind,
    RoutedExperts,
    SampleLogprobs,
    TokenLogprobs,
    as_token_ids,
)
from octavo.tokenization.tokenizer import Tokenizer


class CompletionState:
    """Collects what the engine sends for one of a request's ``n`` completions.

    A stop string ends the completion here, before the engine knows: the text is cut, the token that completed the
    stop string is the last. A stop token is among the tokens, its text is not part of the text, unless
    ``include_stop_str_in_output``.

    Attributes:
        request: as it was sent to the engine.
        is_only_text: deltas are streamed and consist of text alone.
        text_is_late: the text is only needed at the end and cannot end the completion, so it is decoded
            all at once then: a new token need only be appended to ``token_ids``.
    """

    __slots__ = (
        "_cumulative_logprob",
        "_detokenizer",
        "_finish_reason",
        "_index",
        "_logprobs",
        "_matcher",
        "_num_sent_tokens",
        "_params",
        "_routed",
        "_sent_finish",
        "_stop_reason",
        "_text",
        "_tokenizer",
        "has_prompt_logprobs",
        "is_finished",
        "is_only_text",
        "request",
        "text_is_late",
        "token_ids",
    )

    def __init__(self, index: int, request: EngineRequest, tokenizer: Tokenizer | None) -> None:
        params = request.params
        self.request = request
        self.token_ids: list[int] = []
        self.has_prompt_logprobs = False
        self.is_finished = False
        self._index = index
        self._params = params
        self._tokenizer = tokenizer
        self._detokenizer: IncrementalDetokenizer | None = None
        self._matcher: StopStringMatcher | None = None
        if tokenizer is not None:
            self._detokenizer = make_detokenizer(tokenizer, request.prompt_token_ids, params.skip_special_tokens)
            if stop_strings := params.stop_strings:
                self._matcher = StopStringMatcher(stop_strings, params.include_stop_str_in_output)
        self.text_is_late = params.output_kind is RequestOutputKind.FINAL_ONLY and self._matcher is None
        is_delta = params.output_kind is RequestOutputKind.DELTA
        self.is_only_text = is_delta and self._detokenizer is not None and params.logprobs is None
        # With deltas, these two hold what has not been sent.
        self._text = ""
        self._logprobs: SampleLogprobs | None = None if params.logprobs is None else sample_logprobs(params)
        self._cumulative_logprob = 0.0
        self._routed: list[RoutedExperts] = []
        self._finish_reason: str | None = None
        self._stop_reason: int | str | None = None
        self._num_sent_tokens = 0
        self._sent_finish = False

    @property
    def has_begun(self) -> bool:
        """Whether there is anything to show."""
        return self.is_finished or bool(self.token_ids)

    @property
    def has_unsent(self) -> bool:
        """Whether there is anything that :meth:`delta` has not returned yet."""
        return len(self.token_ids) > self._num_sent_tokens or (self.is_finished and not self._sent_finish)

    def take_tokens(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None = None, *, is_stopped: bool = False
    ) -> None:
        """Add tokens; a stop string among them may end the completion."""
        num_taken = len(token_ids)
        if self.text_is_late:
            self.token_ids += token_ids
        elif num_taken:
            num_taken = self._take_tokens(token_ids, is_stopped=is_stopped)
        if self._logprobs is not None and logprobs is not None:
            for row in logprobs[:num_taken]:
                self._logprobs.append(format_logprobs(row, self._tokenizer))
                self._cumulative_logprob += row.logprobs[0]

    def relay(self, take_text: TextTaker, token_id: int) -> bool:
        """Add a token and offer its text to ``take_text``; returns whether an output must still be sent."""
        self.take_tokens((token_id,))
        if self.is_finished or not take_text(self._index, token_id, self._text):
            return True
        self._text = ""
        self._num_sent_tokens += 1
        return False

    def add_output(self, output: EngineOutput) -> None:
        """Add a step's output."""
        if output.routed is not None:
            self._routed.append(output.routed)
        self.take_tokens(output.new_token_ids, output.logprobs, is_stopped=output.finish_reason == "stop")
        if self.is_finished:
            return
        if output.finish_reason is not None:
            self._stop_reason = output.stop_reason
            self.end(output.finish_reason)

    def _take_tokens(self, token_ids: Sequence[int], *, is_stopped: bool) -> int:
        """Add tokens and their text; returns how many were taken before a stop string ended the completion."""
        detokenizer = self._detokenizer
        num_with_text = len(token_ids) - 1 if self._hides_last(is_stopped) else len(token_ids)
        if detokenizer is None or self._matcher is None:
            self.token_ids += token_ids
            if detokenizer is not None:
                self._text += detokenizer.decode_delta(token_ids[:num_with_text])
            return len(token_ids)
        for position, token_id in enumerate(token_ids):
            self.token_ids.append(token_id)
            if position < num_with_text and self._add_text(detokenizer.decode_delta((token_id,)), self._matcher):
                return position + 1
        return len(token_ids)

    def _add_text(self, text: str, matcher: StopStringMatcher) -> bool:
        """Add text up to a stop string; returns whether one ended the completion."""
        if len(self.token_ids) <= self._params.min_tokens:
            self._text += text
            return False
        self._text += matcher.match_delta(text)
        if matcher.matched is None:
            return False
        self._finish_reason = "stop"
        self._stop_reason = matcher.matched
        self.is_finished = True
        return True

    def _hides_last(self, is_stopped: bool) -> bool:
        return is_stopped and not self._params.include_stop_str_in_output

    def end(self, reason: str) -> None:
        """End the completion, with the text that was held back."""
        if self._detokenizer is not None:
            if self.text_is_late:
                num_hidden = 1 if self._hides_last(reason == "stop") else 0
                self._text = self._detokenizer.decode_delta(self.token_ids[: len(self.token_ids) - num_hidden])
            if self._matcher is not None:
                self._text += self._matcher.flush()
            self._text += self._detokenizer.flush()
        self._finish_reason = reason
        self.is_finished = True

    def delta(self) -> CompletionOutput:
        """What came since the last call; of that, only the token ids are kept."""
        first_token, self._num_sent_tokens = self._num_sent_tokens, len(self.token_ids)
        text, self._text = self._text, ""
        logprobs = self._logprobs
        if logprobs is not None:
            self._logprobs = sample_logprobs(self._params)
        self._sent_finish = self.is_finished
        return self._output(text, self.token_ids[first_token:], logprobs)

    def snapshot(self) -> CompletionOutput:
        """Everything so far."""
        return self._output(
            self._text, self.token_ids.copy(), self._logprobs[:] if self._logprobs is not None else None
        )

    def _output(self, text: str, token_ids: list[int], logprobs: SampleLogprobs | None) -> CompletionOutput:
        return CompletionOutput(
            self._index,
            text,
            token_ids,
            self._cumulative_logprob if logprobs is not None else None,
            logprobs,
            self._routed_experts() if self.is_finished and self._routed else None,
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
        )

    def _routed_experts(self) -> NDArray[np.int16]:
        """See :attr:`CompletionOutput.routed_experts`."""
        num_prompt = len(self.request.prompt_token_ids)
        first, num_read = self._params.routed_experts_prompt_start, num_prompt + len(self.token_ids) - 1
        return np.concatenate([routed.array() for routed in self._routed])[min(first, num_prompt) : num_read]

    def replay(self, leader_id: str | None) -> EngineRequest:
        """The request that lets an engine continue from here.

        Args:
            leader_id: the completion that shares its prompt's blocks, if it still runs.
        """
        params = self._params
        if self.has_prompt_logprobs and params.prompt_logprobs is not None:
            params = params.clone()
            params.prompt_logprobs = None
        return msgspec.structs.replace(
            self.request,
            params=params,
            output_token_ids=np.concatenate((self.request.output_token_ids, as_token_ids(self.token_ids))),
            leader_id=leader_id if self.request.leader_id is not None else None,
        )
