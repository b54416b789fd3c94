"""The interface of drawing tokens by parameters that lie on the device."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from octavo.kernels.dispatch import device_function


class SlotColumns(Protocol):
    """Sampling parameters by slot, ``[S]`` each: columns of one table.

    Attributes:
        temperature, top_p, min_p: float64; a temperature of 0 is greedy.
        top_k, stream_key, prompt_len: int64.
    """

    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor
    stream_key: Tensor
    prompt_len: Tensor


class DrawOnDevice(Protocol):
    """Draws by parameters that lie on the device, without the host."""

    def sample(self, logits: Tensor, slots: Tensor, counts: Tensor, lengths: Tensor, tokens: Tensor) -> None:
        """Draw one token per row.

        Args:
            logits: ``[R, V]`` of any float type, penalised and edited where need be.
            slots: ``[≥ R]`` integers.
            counts: the number of real rows first, on the device, int32.
            lengths: ``[≥ R]`` integers, tokens of each request known before this one.
            tokens: out, ``[≥ R]`` int64; −1 where the logits were not numbers or nothing was left to choose from.
        """


MakeDraw = Callable[[SlotColumns, int, int], DrawOnDevice]
"""Makes what draws on a device of parameters by slot, the maximum number of rows and the vocabulary's size."""


@device_function
def draw_maker(device: torch.device) -> MakeDraw | None:
    """What makes the device's kernel; None where PyTorch draws."""
    return None
