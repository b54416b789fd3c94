"""Keys and values of 8 bits: how they are rounded when they are stored, and what they stand for.

A key or value of a head is rounded with one scale, so what the cache holds of a token depends on that token alone,
whatever runs beside it and however its prompt was cut. Queries attend to rounded keys only, those of their own token
included; otherwise a token would see one thing as part of a chunk and another when it is generated.
"""

from dataclasses import dataclass

import torch

LARGEST_VALUES = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}
"""Types of quantised caches → their largest value, to which a scale of its own brings the largest magnitude."""

_SMALLEST_SCALE = 1e-12
"""So that a vector of zeros has one."""


@dataclass(frozen=True, slots=True)
class CacheScales:
    """The factors of what a layer's cache holds.

    Attributes:
        values: float32, of the cache's shape without its last dimension; strides may be 0.
        are_given: whether they were in the checkpoint. Others are written with the tokens.
    """

    values: torch.Tensor
    are_given: bool

    @classmethod
    def given(cls, scales: torch.Tensor, cache: torch.Tensor) -> "CacheScales":
        """A layer's scales from its checkpoint.

        Args:
            scales: ``[2]`` or ``[2, Hkv]`` for keys and values, ``[1]`` for latent vectors.
            cache: ``[2, blocks, Hkv, block_size, D]`` or ``[blocks, block_size, size]``.
        """
        if scales.dim() == 2:
            return cls(scales[:, None, :, None].expand(cache.shape[:-1]), are_given=True)
        return cls(scales.view(-1, *[1] * (cache.dim() - 2)).expand(cache.shape[:-1]), are_given=True)

    def put(self, index: tuple[torch.Tensor | slice | int, ...], x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Round vectors for some places of the cache, and store their scales if these are theirs.

        Args:
            index: of the places in :attr:`values`.
            x: ``[..., D]``, a vector per place.

        Returns:
            Values of ``dtype``, of ``x``'s shape.
        """
        if self.are_given:
            return round_vectors(x, self.values[index], dtype)
        scales = vector_scales(x, dtype)
        self.values[index] = scales
        return round_vectors(x, scales, dtype)


def vector_scales(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The scale of each vector that makes its largest magnitude the type's largest value, ``[..., D] → [...]``."""
    largest = x.float().abs().amax(-1)
    # A device multiplies by the inverse where it divides by a number of the host's, which may round the other way.
    return (largest / torch.full_like(largest, LARGEST_VALUES[dtype])).clamp(min=_SMALLEST_SCALE)


def round_vectors(x: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``x / scales`` rounded to the nearest values of a type, ties to even; what is too large becomes its largest."""
    wide = (x.float() / scales[..., None]).clamp(-LARGEST_VALUES[dtype], LARGEST_VALUES[dtype])
    return (wide.round() if dtype is torch.int8 else wide).to(dtype)
