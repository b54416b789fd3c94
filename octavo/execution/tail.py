"""The interface of what follows the layers of a step: sampling or pooling."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from octavo.execution.results import HeldStep, PendingStep
from octavo.kernels import StepShape
from octavo.records import NewRow, Step


@dataclass(slots=True)
class Computed:
    """What a step's forward pass has left on the device.

    Attributes:
        hidden: ``[≥ T, hidden]``.
        logits: ``[≥ R, vocab]`` of tails that draw; others have none.
        is_drawn: whether :meth:`Tail.draw` has run.
        redraw: draws and appends as captured; None if the step was not captured.
    """

    hidden: torch.Tensor
    logits: torch.Tensor | None = None
    is_drawn: bool = False
    redraw: Callable[[], None] | None = None


class Tail(Protocol):
    """What makes a step's results of hidden states; chosen once at start."""

    def take_changes(self, step: Step) -> None:
        """Drop requests whose slots were freed, and add new ones."""

    def compute(self, hidden: torch.Tensor, shape: StepShape) -> torch.Tensor | None:
        """The part of the tail that every step of a shape runs right after the layers: logits, if there are any."""

    def prepare_draw(self, step: Step) -> bool:
        """Bring parameters up to date for :meth:`draw`; False if the step needs the host between logits and draws."""

    def draw(self, logits: torch.Tensor) -> None:
        """Draw from logits ``[rows, vocab]`` and append, all on the device, for steps that need no host."""

    def finish(self, step: Step, computed: Computed) -> PendingStep | HeldStep:
        """Queue the rest of the step; advances the device state."""

    def warm_up(self) -> NewRow | None:
        """Run kernels that :meth:`compute` and :meth:`draw` do not run.

        Returns:
            A request of two tokens to try everything else with; None if there is nothing else.
        """
