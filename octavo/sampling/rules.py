"""The interface of what binds or ends one request's tokens: grammars, reasoning limits, repetition."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class TokenRule(Protocol):
    """Follows the tokens of one request.

    Attributes:
        is_binding: whether it may forbid tokens. No token of the request is then drawn before the rule's mask is there.
    """

    is_binding: bool

    @property
    def error(self) -> str | None:
        """Why the request cannot go on, as a sentence; None if all is well."""

    @property
    def finish_reason(self) -> str | None:
        """Why the text has ended; None if it has not, as far as this rule is concerned."""

    def accept(self, token_ids: Sequence[int]) -> int:
        """Take in the next tokens, up to the one that ends the text or to the first that is not allowed.

        Returns:
            The number of tokens taken in.
        """

    def fill(self, masks: NDArray[np.int32], drafts: Sequence[int]) -> None:
        """Clear the bits of tokens that must not come next, and of those that must not come behind drafts.

        Args:
            masks: ``[1 + D, ceil(V / 32)]``, one bit per token, lowest bit first; all bits are set. What is behind a
                draft that must not come itself may stay so.
            drafts: ``D`` tokens that may come next. Afterwards, the rule is where it was.
        """


@dataclass(frozen=True, slots=True)
class BoundRow:
    """A row of a step whose next tokens are bound.

    Attributes:
        rules: the rules that may forbid tokens.
        num_drawn: tokens drawn in the row, each of which needs a mask.
        drafts: the row's drafts; fewer than ``num_drawn``.
    """

    rules: Sequence[TokenRule]
    num_drawn: int = 1
    drafts: Sequence[int] = ()
