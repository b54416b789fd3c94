"""Which keys a query sees, if not all before it."""

import triton
import triton.language as tl


@triton.jit
def first_visible(positions: tl.tensor, window: tl.tensor):
    """The first key that queries at some positions see; see :func:`octavo.kernels.attention.first_visible`.

    It is not negative, if the positions are not.
    """
    size = tl.maximum(tl.abs(window), 1)
    return tl.where(window < 0, positions - positions % size, tl.maximum(positions - window + 1, 0))
