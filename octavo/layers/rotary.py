"""Rotary position embedding, and its scaling methods for longer contexts."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from octavo.errors import UnsupportedModelError
from octavo.hub.model_config import QueryScaling, RopeConfig
from octavo.kernels import RopeTables, gather_rows

MAIN_ROPE, LOCAL_ROPE, NO_ROPE = "main", "local", "none"
"""Names of rotary tables: the usual one, that of sliding-window layers in models where they differ, and the one that
rotates nothing, of layers without positions."""
QUERY_SCALE = "query_scale"
"""Name of the table of factors on queries."""


class PositionTables(nn.Module):
    """Buffers of one row per position, which planning counts."""


class RotaryEmbedding(PositionTables):
    """Cosine and sine tables of all positions (arXiv:2104.09864).

    Args:
        rope: None for tables that rotate nothing: one pair by an angle of 0.
        max_positions: number of positions in the tables.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, head_dim: int, rope: RopeConfig | None, max_positions: int) -> None:
        super().__init__()
        with torch.device("cpu"):
            inverse, factor = (torch.zeros(1), 1.0)
            if rope is not None:
                inverse, factor = _inverse_frequencies(rope.rotary_dim(head_dim), rope, max_positions)
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


class QueryScale(PositionTables):
    """Factors on queries by their position; see :class:`QueryScaling`."""

    factors: torch.Tensor

    def __init__(self, scaling: QueryScaling, max_positions: int) -> None:
        super().__init__()
        with torch.device("cpu"):
            positions = torch.arange(max_positions, dtype=torch.float32) + scaling.offset
            steps = positions.div(scaling.length, rounding_mode="floor")
            factors = 1 + scaling.beta * steps.log1p()
        self.register_buffer("factors", factors[:, None, None].to(_place()), persistent=False)

    def forward(self, positions: torch.Tensor) -> RopeTables:
        """The factors of some positions, ``[T, 1, 1]``, twice, as tables come in pairs.

        Args:
            positions: ``[T]`` int64.
        """
        rows = gather_rows(self.factors, positions)
        return rows, rows


def position_table(
    head_dim: int, table: RopeConfig | QueryScaling | None, max_positions: int
) -> RotaryEmbedding | QueryScale:
    """The table of a configuration; None is one that rotates nothing."""
    if isinstance(table, QueryScaling):
        return QueryScale(table, max_positions)
    return RotaryEmbedding(head_dim, table, max_positions)


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


def _longrope(inverse: torch.Tensor, rope: RopeConfig, max_positions: int) -> tuple[torch.Tensor, float]:
    """LongRoPE (arXiv:2402.13753): a divisor per frequency, one set of them for texts beyond the original length.

    The set is chosen by the longest sequence that the engine admits, since cached keys keep their rotation.
    """
    original = _number(rope, "original_max_position_embeddings")
    name = "long_factor" if max_positions > original else "short_factor"
    divisors = rope.params.get(name)
    if not isinstance(divisors, list) or len(divisors) != len(inverse) or min(divisors) <= 0:
        raise UnsupportedModelError(f"Rotary scaling 'longrope' needs {len(inverse)} positive numbers in {name!r}.")
    attention = rope.params.get("long_mscale" if max_positions > original else "short_mscale")
    if attention is None:
        attention = rope.params.get("attention_factor")
    if attention is None:
        factor = _number(rope, "factor")
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return inverse / torch.tensor(divisors), float(attention)


def _dynamic(inverse: torch.Tensor, rope: RopeConfig, max_positions: int) -> tuple[torch.Tensor, float]:
    """NTK-aware scaling: the base grows by a fixed ``alpha``, or with the length beyond the model's own.

    That length is the longest sequence that the engine admits, since cached keys keep their rotation.
    """
    if rope.params.get("alpha") is not None:
        growth = _number(rope, "alpha")
    else:
        factor, original = _number(rope, "factor"), _number(rope, "original_max_position_embeddings")
        growth = factor * max(max_positions, original) / original - (factor - 1)
    dim = 2 * len(inverse)
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    return (rope.theta * growth ** (dim / (dim - 2))) ** -exponents, 1.0


def _number(rope: RopeConfig, name: str) -> float:
    value = rope.params.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise UnsupportedModelError(f"Rotary scaling {rope.kind!r} needs a positive number {name!r}, got {value!r}.")
    return float(value)


_SCALINGS: dict[str, Callable[[torch.Tensor, RopeConfig, int], tuple[torch.Tensor, float]]] = {
    "default": _default,
    "dynamic": _dynamic,
    "linear": _linear,
    "llama3": _llama3,
    "longrope": _longrope,
    "yarn": _yarn,
}
