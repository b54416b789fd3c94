"""Drafts from the request's own text (prompt lookup: Saxena 2023; arXiv:2304.04487)."""

from octavo.kernels import DeviceState, DraftTensors, StepKernels


class NgramDrafter:
    """Drafts what followed the last place where a request's last few tokens stood before.

    Args:
        min_length, max_length: number of last tokens to look for.
    """

    def __init__(self, min_length: int, max_length: int, kernels: StepKernels) -> None:
        self._min_length = min_length
        self._max_length = max_length
        self._kernels = kernels

    def propose(self, state: DeviceState, drafts: DraftTensors, num_rows: int) -> None:
        """See :meth:`Drafter.propose`."""
        self._kernels.propose_ngrams(
            state, drafts, num_rows=num_rows, min_length=self._min_length, max_length=self._max_length
        )
