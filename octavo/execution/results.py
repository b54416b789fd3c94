"""Results of a step, on their way from the device to the host."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.platforms.transfer import HostCopies
from octavo.records import RowLogprobs, StepResult
from octavo.sampling.logprobs import LogprobTensors
from octavo.sampling.sampler import Samples


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
        num_rows: rows of the step.
        rows: ``[N]`` int64, the rows that sampled.
        samples: their tokens and log-probabilities, once ``copies`` have arrived.
        prompt_logprobs: (row, log-probabilities of prompt positions).
    """

    num_rows: int
    rows: NDArray[np.int64]
    samples: Samples | None
    copies: HostCopies
    prompt_logprobs: list[tuple[int, LogprobTensors]] = field(default_factory=list)

    def result(self) -> StepResult:
        """Wait for the tokens and read them."""
        self.copies.wait()
        token_ids = np.zeros(self.num_rows, np.int64)
        logprobs: dict[int, RowLogprobs] = {}
        if self.samples is not None:
            token_ids[self.rows] = self.samples.token_ids.numpy()
            for index, sampled in self.samples.read_logprobs().items():
                logprobs[int(self.rows[index])] = RowLogprobs([sampled])
        for row, found in self.prompt_logprobs:
            logprobs.setdefault(row, RowLogprobs()).prompt.extend(found.read())
        return StepResult(token_ids, logprobs=logprobs)
