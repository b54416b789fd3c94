"""The sizes that steps are rounded up to, so that few distinct ones occur."""

from dataclasses import replace
from typing import Protocol

import torch

from octavo.execution.graphs import decode_shape, decode_sizes, ladder
from octavo.kernels import StepShape, padded_rows
from octavo.records import Full, Plan, is_quantized

_MEDIUM_STEP = 2048
"""Tokens of a step without a graph that is not the largest; a prompt of so many is a long one."""
_EXPANDED_TOKENS = 32_768
"""Cached tokens of a captured step with chunks over a quantised cache, which is expanded in a buffer: eight heads of
128 dimensions, and what pads many rows, take most of :data:`octavo.kernels.attention.EXPANDED_BYTES`."""
_TOKEN_UNIT = 128
"""Token counts of steps without a graph are rounded up to a multiple of this: the tile size of large GEMMs."""


class StepSizes(Protocol):
    """The sizes for one kind of device.

    Attributes:
        max_tokens: the largest number of tokens of a rounded step.
        captured: the steps to capture, largest first.
        single: representative steps without a graph; kernels choose their tiles by a step's size and kind.
    """

    max_tokens: int
    captured: list[StepShape]
    single: list[StepShape]

    def rounded(self, shape: StepShape) -> StepShape:
        """The size to run a step with that no graph fits."""


class HostSizes:
    """For a CPU, whose kernels plan by a step's exact rows; only GEMMs see padding."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self._device = device
        self.max_tokens = padded_rows(device, max(plan.max_num_batched_tokens, plan.max_num_seqs))
        self.captured: list[StepShape] = []
        self.single: list[StepShape] = []

    def rounded(self, shape: StepShape) -> StepShape:
        """See :meth:`StepSizes.rounded`."""
        return replace(shape, num_tokens=padded_rows(self._device, shape.num_tokens))


class DeviceSizes:
    """For a GPU, whose kernels read the exact numbers on the device.

    Args:
        captures: whether small steps are captured.
    """

    def __init__(self, plan: Plan, *, captures: bool) -> None:
        self.max_tokens = max(plan.max_num_batched_tokens, plan.max_num_seqs)
        self.captured = (
            ladder(
                plan.max_num_seqs,
                plan.max_num_batched_tokens,
                plan.num_exact_graphs,
                plan.decode_len,
                _EXPANDED_TOKENS if _has_quantized_keys(plan) else None,
            )
            if captures
            else []
        )
        self.single = _long_chunks(plan)
        self._max_num_batched_tokens = plan.max_num_batched_tokens
        self._row_sizes = decode_sizes(plan.max_num_seqs, plan.num_exact_graphs)

    def rounded(self, shape: StepShape) -> StepShape:
        """See :meth:`StepSizes.rounded`.

        The vendor's library has a kernel for nearly every number of rows, and the driver synchronises the device when
        one is used for the first time.
        """
        num_rows = next(size for size in self._row_sizes if size >= shape.num_rows)
        if not shape.has_chunks:
            return decode_shape(num_rows, shape.decode_len)
        num_tokens = -(-shape.num_tokens // _TOKEN_UNIT) * _TOKEN_UNIT
        num_tokens = min(num_tokens, self._max_num_batched_tokens)
        return replace(shape, num_rows=num_rows, num_tokens=max(num_tokens, num_rows))


def _has_quantized_keys(plan: Plan) -> bool:
    return any(isinstance(group.spec, Full) and is_quantized(group.spec) for group in plan.groups)


def _long_chunks(plan: Plan) -> list[StepShape]:
    most = plan.max_num_batched_tokens
    medium = min(most, _MEDIUM_STEP)
    # Long fresh prompts, one to a row, take kernels of their own; see ``prefill_attention.stores_keys``.
    sizes = (
        (plan.max_num_seqs, most, True, medium),
        (plan.max_num_seqs, medium, True, 0),
        (1, medium, False, 0),
    )
    return [
        StepShape(min(num_rows, tokens), tokens, tokens, has_decodes, True, cached == 0, plan.decode_len, cached)
        for num_rows, tokens, has_decodes, cached in sizes
    ]
