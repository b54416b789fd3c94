"""Rotary position embedding, and its scaling methods for longer contexts."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from octavo.errors import UnsupportedModelError
from octavo.hub.model_config import RopeConfig
from octavo.kernels import RopeTables, gather_rows

MAIN_ROPE, LOCAL_ROPE = "main", "local"
"""Names of rotary tables: the usual one, and that of sliding-window layers in models where they differ."""


class RotaryEmbedding(nn.Module):
    """Cosine and sine tables of all positions (arXiv:2104.09864).

    Args:
        max_positions: number of positions in the tables.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, head_dim: int, rope: RopeConfig, max_positions: int) -> None:
        super().__init__()
        rotary_dim = int(head_dim * rope.partial_rotary_factor)
        with torch.device("cpu"):
            inverse, factor = _inverse_frequencies(rotary_dim, rope, max_positions)
            angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * inverse
            cos, sin = angles.cos() * factor, angles.sin() * factor
        self.register_buffer("cos", torch.cat((cos, cos), -1)[:, None].to(_place()), persistent=False)
        self.register_buffer("sin", torch.cat((-sin, sin), -1)[:, None].to(_place()), persistent=False)

    def forward(self, positions: torch.Tensor) -> RopeTables:
        """The table rows of some positions.

        Args:
            positions: ``[T]`` int64.
        """
        return gather_rows(self.cos, positions), gather_rows(self.sin, positions)


def _place() -> torch.Tensor:
    """An empty tensor of the default type and device, whose type and device new tensors copy."""
    return torch.empty(0)


def _inverse_frequencies(dim: int, rope: RopeConfig, max_positions: int) -> tuple[torch.Tensor, float]:
    """``[dim/2]`` frequencies, and the factor on cosines and sines."""
    scale = _SCALINGS.get(rope.kind)
    if scale is None:
        raise UnsupportedModelError(
            f"The rotary scaling {rope.kind!r} is not supported; supported are {', '.join(sorted(_SCALINGS))}."
        )
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    return scale(rope.theta**-exponents, rope, max_positions)


def _default(inverse: torch.Tensor, rope: RopeConfig, max_positions: int) -> tuple[torch.Tensor, float]:
    return inverse, 1.0


def _linear(inverse: torch.Tensor, rope: RopeConfig, max_positions: int) -> tuple[torch.Tensor, float]:
    return inverse / _number(rope, "factor"), 1.0


def _llama3(inverse: torch.Tensor, rope: RopeConfig, max_positions: int) -> tuple[torch.Tensor, float]:
    """Llama 3.1: stretch long wavelengths by the factor, keep short ones, blend between."""
    factor = _number(rope, "factor")
    low, high = _number(rope, "low_freq_factor"), _number(rope, "high_freq_factor")
    original = _number(rope, "original_max_position_embeddings")
    wavelength = 2 * math.pi / inverse
    blend = ((original / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * inverse / factor + blend * inverse, 1.0


def _yarn(inverse: torch.Tensor, rope: RopeConfig, max_positions: int) -> tuple[torch.Tensor, float]:
    """YaRN (arXiv:2309.00071): interpolate slow dimensions, keep fast ones, sharpen attention."""
    params: dict[str, Any] = rope.params
    factor = _number(rope, "factor")
    original = _number(rope, "original_max_position_embeddings")
    dim = 2 * len(inverse)

    def dimension_of(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = dimension_of(float(params.get("beta_fast") or 32))
    high = dimension_of(float(params.get("beta_slow") or 1))
    if params.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2).float() - low) / max(high - low, 1e-3)).clamp(0, 1)
    attention = params.get("attention_factor")
    if attention is None:
        attention = _yarn_attention(factor, params.get("mscale"), params.get("mscale_all_dim"))
    return inverse / factor * ramp + inverse * (1 - ramp), float(attention)


def _yarn_attention(factor: float, mscale: float | None, mscale_all_dim: float | None) -> float:
    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if mscale and mscale_all_dim:
        return magnitude(mscale) / magnitude(mscale_all_dim)
    return magnitude(1.0)


def _number(rope: RopeConfig, name: str) -> float:
    value = rope.params.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise UnsupportedModelError(f"Rotary scaling {rope.kind!r} needs a positive number {name!r}, got {value!r}.")
    return float(value)


_SCALINGS: dict[str, Callable[[torch.Tensor, RopeConfig, int], tuple[torch.Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
