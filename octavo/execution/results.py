"""Results of a step, on their way from the device to the host."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.execution.draws import NewTokens
from octavo.execution.routed_experts import RoutedRows
from octavo.platforms.transfer import HostCopies
from octavo.records import RowLogprobs, StepResult
from octavo.sampling.logprobs import LogprobTensors


class PendingStep(Protocol):
    """A step in flight."""

    def result(self) -> StepResult:
        """Wait for the step's tokens."""
        ...


@dataclass(slots=True)
class HeldStep:
    """A step whose forward pass is queued; its tokens are drawn once it gets the masks of allowed tokens.

    Attributes:
        draw: takes the masks, ``[M, ceil(V / 32)]`` int32 for the step's ``masked_rows``.
    """

    draw: Callable[[NDArray[np.int32]], "SampledStep"]


@dataclass(slots=True)
class SampledStep:
    """A step whose device work is queued; a :class:`PendingStep`.

    Attributes:
        new_tokens: the step's tokens, once ``copies`` have arrived.
        sampled_logprobs: (rows, log-probabilities of a token of each); a row occurs once per place, in order.
        prompt_logprobs: (row, log-probabilities of prompt positions).
        routed: the experts of rows' tokens; None if they are not captured.
    """

    new_tokens: NewTokens
    copies: HostCopies
    sampled_logprobs: list[tuple[list[int], LogprobTensors]] = field(default_factory=list)
    prompt_logprobs: list[tuple[int, LogprobTensors]] = field(default_factory=list)
    routed: RoutedRows | None = None

    def result(self) -> StepResult:
        """Wait for the tokens and read them."""
        self.copies.wait()
        logprobs: dict[int, RowLogprobs] = {}
        for rows, found in self.sampled_logprobs:
            for row, of_token in zip(rows, found.read(), strict=True):
                logprobs.setdefault(row, RowLogprobs()).sampled.append(of_token)
        for row, found_in_prompt in self.prompt_logprobs:
            logprobs.setdefault(row, RowLogprobs()).prompt.extend(found_in_prompt.read())
        new = self.new_tokens
        return StepResult(
            new.token_ids,
            new.num_tokens,
            new.drafts,
            new.num_drafts,
            logprobs,
            routed={} if self.routed is None else self.routed.read(),
        )
