"""Log-probabilities of prompt positions, chunk by chunk."""

import numpy as np
import torch

from octavo.execution.forward import ForwardPass
from octavo.platforms.transfer import to_device
from octavo.records import NewRow, Step
from octavo.sampling.logprobs import LogprobTensors, token_logprobs

_ROWS = 128
"""Prompt positions whose logits are computed at a time: 128 × 262,144 float32 values are 128 MiB."""


class PromptLogprobs:
    """The requests in the batch that want log-probabilities of their prompts."""

    def __init__(self, forward: ForwardPass) -> None:
        self._forward = forward
        self._rows: dict[int, NewRow] = {}

    def take_changes(self, step: Step) -> None:
        """Drop requests whose slots were freed, and add new ones."""
        for slot in step.freed_slots:
            self._rows.pop(slot, None)
        for row in step.new_rows:
            if row.params.prompt_logprobs is not None and row.prompt_logprobs_from < row.prompt_len:
                self._rows[row.slot] = row

    def collect(self, step: Step, hidden: torch.Tensor) -> list[tuple[int, LogprobTensors]]:
        """Pairs of a row and log-probabilities of prompt positions, for rows that asked for them.

        Args:
            hidden: ``[≥ T, hidden]``, rows in the step's order.
        """
        if not self._rows:
            return []
        found: list[tuple[int, LogprobTensors]] = []
        start = 0
        for index, (slot, num_scheduled) in enumerate(
            zip(step.slots.tolist(), step.num_scheduled_tokens.tolist(), strict=True)
        ):
            row = self._rows.get(slot)
            if row is not None:
                first = int(step.num_computed[index])
                found.extend((index, part) for part in self._of_row(row, first, hidden[start : start + num_scheduled]))
            start += num_scheduled
        return found

    @torch.inference_mode()
    def _of_row(self, row: NewRow, first: int, hidden: torch.Tensor) -> list[LogprobTensors]:
        """Log-probabilities of the prompt tokens that follow a chunk's positions.

        Args:
            first: position of the chunk's first token.
            hidden: ``[tokens of the chunk, hidden]``.
        """
        # The hidden state at position p predicts the token at p + 1.
        begin = max(first, row.prompt_logprobs_from - 1)
        end = min(first + len(hidden), row.prompt_len - 1)
        assert row.params.prompt_logprobs is not None
        collected = []
        for start in range(begin, end, _ROWS):
            stop = min(start + _ROWS, end)
            logits = self._forward.logits(hidden[start - first : stop - first])
            targets = to_device(row.token_ids[start + 1 : stop + 1].astype(np.int64), hidden.device)
            collected.append(token_logprobs(logits, targets, row.params.prompt_logprobs))
        if first + len(hidden) >= row.prompt_len - 1:
            del self._rows[row.slot]
        return collected
