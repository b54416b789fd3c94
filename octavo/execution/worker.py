"""What functions that run beside the model get to see: vLLM's worker, as far as they use it."""

from typing import Any

import torch
from torch import nn

from octavo.execution.executor import Executor


class Worker:
    """The one device of an engine.

    Attributes:
        rank, local_rank: 0; there is one.
    """

    rank = 0
    local_rank = 0

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @property
    def model(self) -> nn.Module:
        """The model.

        Raises:
            InvalidRequestError: its weights are not there.
        """
        return self._executor.model

    @property
    def model_runner(self) -> "Worker":
        """Itself: code written for vLLM looks for ``model_runner.model``."""
        return self

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return next(self.model.parameters()).device

    def get_model(self) -> nn.Module:
        """The model, as of :attr:`model`."""
        return self.model

    def apply_model(self, function: Any) -> Any:
        """What ``function`` makes of the model."""
        return function(self.model)
