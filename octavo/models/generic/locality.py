"""Checks that a model's tokens meet in attention only, so that they may lie end to end, whichever requests they are of.

Convolutions over tokens, shifts, running sums and attention that is computed elsewhere would mix requests, and would
need a state from step to step.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

NUM_TOKENS = 971
"""Tokens of a trace: a prime number far from the usual sizes of models."""

_NEAR = 8
"""Sizes so near the number of tokens are taken for parts of them."""

_MIXING = ("convolution", "cumsum", "cumprod", "roll", "flip", "logcumsumexp", "_softmax", "unfold")


class TokenLocality(TorchDispatchMode):
    """Watches the operations of a trace.

    Args:
        counts_tokens: whether sums of whole numbers over tokens are let through, since decoders number tokens so.

    Attributes:
        complaint: what mixes tokens; empty if nothing does.
    """

    def __init__(self, positions: torch.Tensor, *, counts_tokens: bool) -> None:
        super().__init__()
        self._positions = positions
        self._counts_tokens = counts_tokens
        self._are_positions_read = False
        self._found = ""

    @property
    def complaint(self) -> str:
        if not self._found and not self._are_positions_read:
            return "it does not take its tokens' positions"
        return self._found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
        self._are_positions_read |= any(value is self._positions for value in inputs)
        outputs = [value for value in tree_flatten(result)[0] if isinstance(value, torch.Tensor)]
        is_count = not self._counts_tokens and str(func).startswith("aten.sum") and _loses_tokens(inputs, outputs)
        if not self._found and (is_count or _mixes_tokens(str(func), args, inputs, outputs)):
            self._found = f"it mixes tokens outside of attention ({func})"
        return result


def _mixes_tokens(name: str, args: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> bool:
    widths = [value for value in inputs if NUM_TOKENS in value.shape]
    if not widths:
        return False
    if any(_is_part_of_tokens(size) for value in outputs for size in value.shape):
        return True
    if any(tuple(value.shape).count(NUM_TOKENS) > 1 for value in outputs):
        return True
    # Sums over tokens, and matrix multiplications that contract them; whole numbers are counts and positions.
    is_summed = any(value.is_floating_point() for value in widths) and outputs
    if is_summed and not any(size and size % NUM_TOKENS == 0 for value in outputs for size in value.shape):
        return True
    return name.removeprefix("aten.").partition(".")[0] in _MIXING and _runs_along_tokens(name, args, widths[0])


def _loses_tokens(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> bool:
    return any(NUM_TOKENS in value.shape for value in inputs) and not any(
        NUM_TOKENS in value.shape for value in outputs
    )


def _runs_along_tokens(name: str, args: Any, tensor: torch.Tensor) -> bool:
    if "convolution" in name:
        return True
    dims = args[1] if len(args) > 1 else 0
    dims = dims if isinstance(dims, (list, tuple)) else [dims]
    return any(isinstance(dim, int) and tensor.shape[dim] == NUM_TOKENS for dim in dims)


def _is_part_of_tokens(size: int) -> bool:
    return size != NUM_TOKENS and abs(size - NUM_TOKENS) <= _NEAR
