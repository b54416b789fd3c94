"""Draws of tokens, by the compiled kernels."""

from functools import partial

import torch
from torch import Tensor

from octavo.kernels.draw import MakeDraw, SlotColumns, draw_maker
from octavo.kernels.row_blocks import BLOCK_WIDTH
from octavo.platforms.native import TYPE_NUMBERS, NativeKernels


class NativeDraw:
    """A :class:`~octavo.kernels.draw.DrawOnDevice`; its calls can be recorded."""

    def __init__(self, native: NativeKernels, parameters: SlotColumns, max_rows: int, vocab_size: int) -> None:
        self._native = native
        self._parameters = parameters
        self._groups = torch.empty(2, max_rows, -(-vocab_size // BLOCK_WIDTH))

    def sample(self, logits: Tensor, slots: Tensor, counts: Tensor, lengths: Tensor, tokens: Tensor) -> None:
        """See :meth:`octavo.kernels.draw.DrawOnDevice.sample`."""
        p = self._parameters
        slots, lengths = slots.int(), lengths.int()  # no copies where they are int32, as in a step
        self._native.sample(
            logits.data_ptr(),
            slots.data_ptr(),
            counts.data_ptr(),
            lengths.data_ptr(),
            p.temperature.data_ptr(),
            p.top_p.data_ptr(),
            p.min_p.data_ptr(),
            p.top_k.data_ptr(),
            p.stream_key.data_ptr(),
            p.prompt_len.data_ptr(),
            self._groups[0].data_ptr(),
            self._groups[1].data_ptr(),
            tokens.data_ptr(),
            len(logits),
            logits.shape[1],
            logits.stride(0) * logits.element_size(),
            p.temperature.stride(0),
            TYPE_NUMBERS[logits.dtype],
        )


def register(native: NativeKernels) -> None:
    """Use the compiled kernels for draws on CPUs."""

    @draw_maker.register("cpu")
    def on_cpu(device: torch.device) -> MakeDraw | None:
        return partial(NativeDraw, native)
