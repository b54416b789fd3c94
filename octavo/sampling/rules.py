"""The interface of what binds or ends one request's tokens: grammars, reasoning limits, repetition."""

from collections.abc import Sequence
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

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Clear the bits of tokens that must not come next.

        Args:
            mask: ``[ceil(V / 32)]``, one bit per token, lowest bit first; all bits are set.
        """
