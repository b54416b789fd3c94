"""Runs encoders: a step in, vectors out."""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from octavo.execution.pooling import PooledStep, PoolingState
from octavo.kernels import CompileOnly, padded_rows
from octavo.kernels.packed_attention import PackedPlan
from octavo.models.pooled import PooledModel
from octavo.platforms.transfer import to_device
from octavo.records import NewRow, Plan, Step


class EncoderRunner:
    """Runs an encoder. Requests start and end within one step, so no state is kept between steps."""

    def __init__(self, model: PooledModel, plan: Plan, device: torch.device) -> None:
        self._encode = model.encoder()
        self._pooling = PoolingState(model.pooler, device)
        self._plan = plan
        self._device = device

    def rehearse(self, compile_only: CompileOnly) -> None:
        """See :meth:`octavo.execution.build.Runner.rehearse`."""
        with compile_only():
            self.warm_up()

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run the largest step once, to compile kernels and to check that memory is sufficient."""
        plan = self._plan
        num_rows = max(1, min(plan.max_num_batched_tokens // plan.max_model_len, plan.max_num_seqs))
        lengths = np.full(num_rows, plan.max_model_len, np.int64)
        self._forward(np.zeros((3, int(lengths.sum())), np.int64), lengths)

    def capture(self, *, show_progress: bool = False) -> int:
        """Nothing is captured: prompts keep the device busy."""
        return 0

    @torch.inference_mode()
    def execute(self, step: Step) -> PooledStep:
        """Run one step, all of whose rows are new and whole."""
        self._pooling.take_changes(step)
        by_slot = {row.slot: row for row in step.new_rows}
        rows = [by_slot[slot] for slot in step.slots.tolist()]
        inputs = np.concatenate([_inputs_of(row) for row in rows], axis=1)  # [3, T]
        return self._pooling.run(step, self._forward(inputs, step.num_scheduled_tokens.astype(np.int64)))

    def _forward(self, inputs: NDArray[np.int64], lengths: NDArray[np.int64]) -> torch.Tensor:
        """``[T, hidden]`` of sequences laid end to end.

        Args:
            inputs: ``[3, T]``, token ids, positions, segments.
            lengths: ``[R]``.
        """
        num_tokens = inputs.shape[1]
        padding = (0, padded_rows(self._device, num_tokens) - num_tokens)
        token_ids, positions, segments = F.pad(to_device(inputs, self._device), padding)
        hidden = self._encode(token_ids, positions, segments, PackedPlan(lengths, self._device))
        return hidden[:num_tokens]


def _inputs_of(row: NewRow) -> NDArray[np.int64]:
    """``[3, tokens]`` int64: token ids, positions, segments."""
    inputs = np.zeros((3, len(row.token_ids)), np.int64)
    inputs[0] = row.token_ids
    inputs[1] = np.arange(len(row.token_ids))
    if row.pooling is not None and row.pooling.segment_start is not None:
        inputs[2, row.pooling.segment_start :] = 1
    return inputs
