"""Constants of query heads in their softmax: learned attention sinks, and ALiBi's slopes."""

from collections.abc import Iterator

import torch
from torch import nn

from octavo.kernels import HeadTerms
from octavo.layers.build import Build
from octavo.layers.weights import sibling
from octavo.quantization.slot import WeightSlot


class AttentionTerms(nn.Module):
    """The terms of the heads on this device; an attention module has it as an attribute.

    Args:
        num_heads: query heads of the model.
        has_sinks: whether checkpoints have ``sinks``, a logit per head, in the module around this one.
        slopes: ALiBi's slopes of all heads, ``[num_heads]`` float32 on the CPU; None for none.
    """

    sinks: nn.Parameter | None
    slopes: torch.Tensor | None

    def __init__(
        self, num_heads: int, build: Build, *, has_sinks: bool = False, slopes: torch.Tensor | None = None
    ) -> None:
        super().__init__()
        heads = build.tensor_parallel.share(num_heads, "attention heads")
        self._num_heads = num_heads
        self._own = slice(heads.start, heads.stop)
        # Float32 whatever the model's type, as kernels read them.
        sinks = nn.Parameter(torch.empty(len(heads), dtype=torch.float32), requires_grad=False) if has_sinks else None
        self.register_parameter("sinks", sinks)
        own_slopes = None if slopes is None else slopes[self._own].to(torch.empty(0).device)
        self.register_buffer("slopes", own_slopes, persistent=False)

    def values(self) -> HeadTerms:
        """The terms as kernels take them."""
        return HeadTerms(self.sinks, self.slopes)

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        if self.sinks is not None:
            yield sibling(path, "sinks"), WeightSlot(self.sinks.data, ((self._num_heads,),), (self._own,))


def alibi_slopes(num_heads: int, max_bias: float = 8.0) -> torch.Tensor:
    """ALiBi's slopes (arXiv:2108.12409), ``[num_heads]`` float32 on the CPU.

    They fall geometrically from ``2^(−max_bias / n)`` to ``2^(−max_bias)`` for the largest power of two ``n`` that is
    at most ``num_heads``; further heads take every other slope of ``2n`` heads, beginning with the first.
    """
    num_first = 1 << (num_heads.bit_length() - 1)
    with torch.device("cpu"):
        exponents = torch.arange(1, num_first + 1, dtype=torch.float64) / num_first
        others = (torch.arange(num_heads - num_first, dtype=torch.float64) * 2 + 1) / (2 * num_first)
        return (2 ** (-max_bias * torch.cat((exponents, others)))).float()
