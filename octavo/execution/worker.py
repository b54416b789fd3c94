"""The worker object passed to functions of ``collective_rpc`` and ``apply_model``, with vLLM's attributes."""

from typing import Any

import torch
from torch import nn

from octavo.execution.executor import Executor


class Worker:
    """The engine's only worker.

    Attributes:
        rank, local_rank: always 0.
    """

    rank = 0
    local_rank = 0

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @property
    def model(self) -> nn.Module:
        """The model.

        Raises:
            InvalidRequestError: its weights are not on the device.
        """
        return self._executor.model

    @property
    def model_runner(self) -> "Worker":
        """Itself: code written for vLLM looks for ``model_runner.model``."""
        return self

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.model.parameters()).device

    def get_model(self) -> nn.Module:
        """The model; see :attr:`model`."""
        return self.model

    def apply_model(self, function: Any) -> Any:
        """The result of ``function`` applied to the model."""
        return function(self.model)
