"""Device functions for keys and values of 8 bits; see :mod:`octavo.kernels.cache_scales`.

Kernels take scales as a pointer with strides, all None for a cache of the compute type, whose code has no trace of
them. Values are converted to the type of the GEMMs, which holds them exactly; keys' scales multiply scores, and values'
scales the weights, both in float32.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from octavo.kernels.cache_scales import LARGEST_VALUES, CacheScales
from octavo.kernels.triton.launch import IS_INTERPRETED

_IS_INTERPRETED: tl.constexpr = tl.constexpr(IS_INTERPRETED)


def scale_arguments(scales: CacheScales | None, dtype: torch.dtype) -> dict[str, Any]:
    """Keyword arguments of a kernel that writes scales or finds them by their strides.

    Args:
        dtype: of the cache.
    """
    if scales is None:
        return dict.fromkeys(("scales", "scale_part", "scale_block", "scale_head", "scale_token"), None) | {
            "ARE_GIVEN": False,
            "LARGEST": 0.0,
        }
    part, block, head, token = scales.values.stride()
    return {
        "scales": scales.values,
        "scale_part": part,
        "scale_block": block,
        "scale_head": head,
        "scale_token": token,
        "ARE_GIVEN": scales.are_given,
        "LARGEST": LARGEST_VALUES[dtype],
    }


def latent_scale_arguments(scales: CacheScales | None, dtype: torch.dtype) -> dict[str, Any]:
    """The same of a cache of latent vectors."""
    if scales is None:
        return {"scales": None, "scale_block": None, "scale_token": None, "ARE_GIVEN": False, "LARGEST": 0.0}
    block, token = scales.values.stride()
    largest = LARGEST_VALUES[dtype]
    return {
        "scales": scales.values,
        "scale_block": block,
        "scale_token": token,
        "ARE_GIVEN": scales.are_given,
        "LARGEST": largest,
    }


@triton.jit
def scale_of(largest: tl.tensor, poison: tl.tensor, LARGEST: tl.constexpr):
    """The scale of a vector whose largest magnitude is ``largest``.

    Args:
        poison: the vector's sum times zero: NaN if it holds a NaN or an infinity, which maxima may drop.
    """
    return tl.maximum(tl.div_rn(largest, LARGEST), 1e-12) + poison


@triton.jit
def _divide(x, scale):
    """``x / scale`` to the nearest, for fewer scales than values; it must not overflow.

    A division takes about ten instructions, and a slow path for zero. The nearest inverse and one correction of the
    quotient give the same (P. Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor").
    """
    if _IS_INTERPRETED:  # it rounds twice in ``fma``
        quotient = tl.div_rn(x, scale)
    else:
        inverse = tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)
        quotient = x * inverse
        excess = tl.fma(quotient, scale, -x)
        # Zeros keep their sign if the inverse is negated: Triton subtracts from zero, which makes no zero negative.
        quotient = tl.fma(excess, -inverse, quotient)
    return quotient


@triton.jit
def nearest_values(x: tl.tensor, scale: tl.tensor, LARGEST: tl.constexpr, dtype: tl.constexpr):
    """``x / scale`` in float32, rounded to values of a type, ties to even; what is too large becomes its largest.

    To be used where the values are needed in both types. If a kernel converts float32 to float8 and back again, the
    assembler of CUDA 12.8 (Triton 3.6, compute capability 9.0) takes half of the values from the wrong register.
    """
    limit = scale * LARGEST
    wide = _divide(tl.clamp(x.to(tl.float32), -limit, limit, tl.PropagateNan.ALL), scale)
    if dtype == tl.int8:
        nearest = (wide + 1.5 * 2.0**23) - 1.5 * 2.0**23  # beyond 2^23, numbers are whole
    else:
        # So many times a value's power of two that the sum has as many bits behind it as the type has.
        NUM_BITS: tl.constexpr = 3 if dtype == tl.float8e4nv else 2
        SMALLEST: tl.constexpr = 2.0**-6 if dtype == tl.float8e4nv else 2.0**-14
        bits = wide.to(tl.int32, bitcast=True)
        power = (bits & 0x7F800000).to(tl.float32, bitcast=True)
        magic = tl.maximum(power, SMALLEST) * (1.5 * 2.0 ** (23 - NUM_BITS))
        nearest = (wide + magic) - magic
        # Zeros keep their sign.
        nearest = (nearest.to(tl.int32, bitcast=True) | (bits & -2147483648)).to(tl.float32, bitcast=True)
    return nearest


@triton.jit
def round_values(x: tl.tensor, scale: tl.tensor, LARGEST: tl.constexpr, dtype: tl.constexpr):
    """The same in the type."""
    return nearest_values(x, scale, LARGEST, dtype).to(dtype)


@triton.constexpr_function
def weighed_type(compute):
    """The type of the GEMM of weights and values: weights times values' scales leave float16's range."""
    return tl.bfloat16 if compute == tl.float16 else compute
