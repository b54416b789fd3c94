"""The tail of decoders that are pooling models."""

import torch

from octavo.execution.draws import Draws
from octavo.execution.pooling import PooledStep, PoolingState
from octavo.execution.tail import Computed
from octavo.kernels import StepShape
from octavo.layers.pooling import Pooler
from octavo.records import NewRow, Step


class PoolingTail:
    """Pools instead of sampling; prompts come in chunks and may hit the prefix cache, as for text.

    Args:
        draws: counts tokens as computed; whatever it appends to a prompt is never read.
    """

    def __init__(self, draws: Draws, pooler: Pooler, device: torch.device) -> None:
        self._draws = draws
        self._pooling = PoolingState(pooler, device)

    def take_changes(self, step: Step) -> None:
        """See :meth:`Tail.take_changes`."""
        self._pooling.take_changes(step)

    def compute(self, hidden: torch.Tensor, shape: StepShape) -> None:
        """See :meth:`Tail.compute`; there are no logits."""

    def prepare_draw(self, step: Step) -> bool:
        """See :meth:`Tail.prepare_draw`."""
        return False

    def draw(self, logits: torch.Tensor) -> None:
        """See :meth:`Tail.draw`; there is nothing to draw from."""

    def finish(self, step: Step, computed: Computed) -> PooledStep:
        """See :meth:`Tail.finish`."""
        self._draws.append(len(step.slots))
        return self._pooling.run(step, computed.hidden[: step.num_tokens])

    def warm_up(self) -> NewRow | None:
        """See :meth:`Tail.warm_up`."""
        return None
