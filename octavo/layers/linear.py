"""Linear layers, alone and merged."""

import torch
from torch import nn

from octavo.kernels import LinearOp
from octavo.layers.build import Build


class Linear(nn.Module):
    """``y = x Wᵀ + b``."""

    def __init__(self, in_features: int, out_features: int, build: Build, *, bias: bool = False) -> None:
        super().__init__()
        self.scheme = build.scheme
        self.scheme.create(self, in_features, out_features, bias)
        self._product: LinearOp | None = None

    def finalize_weights(self) -> None:
        """Rearrange the loaded weights for the device."""
        self._product = self.scheme.finalize(self, keep_weight=False)

    def forward(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """``[..., in] → [..., out]``, into ``out`` if it is given."""
        assert self._product is not None, "weights are used before finalize()"
        return self._product(x, out)

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """``act(y₁) · y₂`` for the two halves of the outputs: ``[T, in] → [T, out / 2]``."""
        assert self._product is not None, "weights are used before finalize()"
        return self._product.gated(x, activation)


class MergedLinear(Linear):
    """Several linear layers over one input, as one GEMM; outputs are concatenated.

    Args:
        sizes: name in the checkpoint → number of outputs, in order.
    """

    def __init__(self, in_features: int, sizes: dict[str, int], build: Build, *, bias: bool = False) -> None:
        super().__init__(in_features, sum(sizes.values()), build, bias=bias)
        self._parts: dict[str, tuple[int, int]] = {}
        start = 0
        for name, size in sizes.items():
            self._parts[name] = (start, size)
            start += size

    def parts(self) -> dict[str, tuple[int, int]]:
        """Checkpoint names and the rows they fill."""
        return self._parts


class QKVLinear(MergedLinear):
    """Projections to queries, keys and values: ``[T, hidden] → [T, (H + 2·Hkv)·D]``."""

    def __init__(
        self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, build: Build, *, bias: bool
    ) -> None:
        sizes = {"q_proj": num_heads * head_dim, "k_proj": num_kv_heads * head_dim, "v_proj": num_kv_heads * head_dim}
        super().__init__(hidden_size, sizes, build, bias=bias)
