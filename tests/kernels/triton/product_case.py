"""A product's operands, and what it is in float64."""

from dataclasses import dataclass

import pytest
import torch

from octavo.kernels import basic
from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.linear import GATES, LinearOp
from octavo.kernels.triton.linear_workspace import Workspace

Kind = tuple[torch.dtype, str, bool]
"""Type of a product's values, its activation, whether it has a bias."""

WEIGHT_SHAPES = [
    (6144, 4096),
    (4096, 4096),
    (24576, 4096),
    (4096, 12288),
    (4096, 1024),
    (1024, 2048),
    (3072, 2048),
    (2048, 8192),
    (7168, 5120),
    (34816, 5120),
    (1000, 1408),
    (8, 128),
]
"""Weight rows and inputs of Qwen3 0.6B, 8B and 14B and Llama 3.2 1B, and sizes that are no multiple of a tile."""

every_kind = pytest.mark.parametrize(
    "kind",
    [(torch.float16, "none", True), (torch.bfloat16, "silu", False), (torch.float16, "gelu_tanh", True)],
    ids=str,
)


def random(device: torch.device, seed: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Normal numbers, the same on every device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def used_workspace(device: torch.device, needed: tuple[int, int]) -> Workspace:
    """Of so many values and counters, full of what an earlier launch may have left."""
    num_values, num_counters = needed
    return Workspace(
        torch.full((num_values,), float("nan"), device=device),
        torch.zeros(num_counters, dtype=torch.int32, device=device),
    )


def check_normed_row(
    op: LinearOp, device: torch.device, num_inputs: int, activation: str, *, has_residual: bool
) -> None:
    """A GEMM that norms a single row itself against a norm and the GEMM."""
    x, residual = random(device, 2, 2, 1, num_inputs, dtype=torch.bfloat16)
    scale = 1 + random(device, 3, num_inputs, dtype=torch.bfloat16) / 4
    norm = DeferredNorm(x, residual if has_residual else None, scale, 1e-6)
    y = op.normed(norm, activation)
    assert y is not None
    assert torch.equal(norm.total, x + residual if has_residual else x)
    normed = basic.rms_norm.reference(norm.total, scale, 1e-6)
    expected = op(normed) if activation == "none" else op.gated(normed, activation)
    torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)


@dataclass
class ProductCase:
    """``x Wᵀ + b``, or with an activation the gated product of ``W``'s halves."""

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    activation: str

    @classmethod
    def make(
        cls,
        device: torch.device,
        shape: tuple[int, int, int],
        dtype: torch.dtype,
        activation: str = "none",
        with_bias: bool = False,
        *,
        padding: int = 0,
    ) -> "ProductCase":
        """Operands of so many rows, channels and features; rows of ``x`` lie ``padding`` values further apart."""
        num_rows, num_channels, num_features = shape
        num_weights = num_channels * (1 if activation == "none" else 2)
        return cls(
            x=random(device, 3, num_rows, num_features + padding, dtype=dtype)[:, :num_features],
            weight=random(device, 1, num_weights, num_features, dtype=dtype) / num_features**0.5,
            bias=random(device, 2, num_weights, dtype=dtype) if with_bias else None,
            activation=activation,
        )

    def check(self, actual: torch.Tensor) -> None:
        """Hold a product of bfloat16 or float16 against the one of float64."""
        expected = self.x.double() @ self.weight.double().T
        if self.bias is not None:
            expected += self.bias.double()
        if self.activation != "none":
            expected = GATES[self.activation](expected)
        torch.testing.assert_close(actual.double(), expected, rtol=1e-2, atol=2e-2)
