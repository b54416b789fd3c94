"""The interface of drafters, and the choice of one."""

from typing import Protocol

from octavo.kernels import DeviceState, DraftTensors, StepKernels
from octavo.records import NgramDrafts
from octavo.speculation.ngram import NgramDrafter


class Drafter(Protocol):
    """Puts drafts behind the known tokens of a step's rows, on the device; the host does not wait."""

    def propose(self, state: DeviceState, drafts: DraftTensors, num_rows: int) -> None:
        """Draft for the next step, once a step's tokens are appended.

        Args:
            state: gets the drafts behind each row's known tokens, and their number in ``num_drafts``.
            drafts: gets both for the host.
            num_rows: upper bound of the step's rows.
        """


def make_drafter(plan: NgramDrafts, kernels: StepKernels) -> Drafter:
    """The drafter that the plan names."""
    return NgramDrafter(plan.min_length, plan.max_length, kernels)
