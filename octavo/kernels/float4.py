"""Floats of 4 bits (e2m1), and scales that are powers of two, stored as their exponents (OCP MX 1.0).

Other formats look values up in a table by codes of 4 bits: NVFP4, which has the same floats beside other scales,
bitsandbytes' NF4 (arXiv:2305.14314) and FP4, and GGUF's IQ4.
"""

import torch

FLOAT4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""What the codes stand for."""
TABLES = {
    "nvfp4": FLOAT4_VALUES,
    "nf4": (
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ),
    "iq4": (
        *(-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0),
        *(1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0),
    ),
    "fp4": tuple(sign * size / 12 for sign in (1, -1) for size in (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)),
}
"""What the codes stand for in formats of this kind."""
MX_GROUP = 32
"""Numbers that share a scale."""
_LARGEST = 6.0
_LARGEST_SCALE = 448.0
_BIAS = 127


def float4_values(codes: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What codes stand for, of any shape."""
    return torch.tensor(FLOAT4_VALUES, dtype=dtype, device=codes.device)[codes.long()]


def float4_codes(values: torch.Tensor) -> torch.Tensor:
    """Codes of the nearest values, ties to even; larger ones become the largest. Float32 of any shape → uint8."""
    sizes = values.abs().clamp(max=_LARGEST)
    steps = torch.where(sizes < 2, 0.5, torch.where(sizes < 4, 1.0, 2.0))
    sizes = (sizes / steps).round_() * steps
    # Eight codes in three runs of equal steps.
    codes = torch.minimum(torch.minimum(2 * sizes, sizes + 2), sizes / 2 + 4)
    return (codes + 8 * values.signbit()).to(torch.uint8)


def powers_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """Scales that are stored as their exponents, uint8 → float32."""
    return torch.exp2(exponents.float() - _BIAS)


def exponents_of(scales: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`powers_of_two`."""
    return (torch.frexp(scales).exponent - 1 + _BIAS).to(torch.uint8)


def round_to_nvfp4(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Round groups of numbers, each with the float8 scale that makes the largest magnitude about 6.

    Args:
        groups: ``[out, groups, numbers of a group]`` float32.

    Returns:
        Codes of the same shape, uint8; scales ``[out, groups]``, float8 values in float32; and factors ``[out, 1]``, by
        which the largest scale of an output is the largest float8 value.
    """
    scales = groups.abs().amax(-1) / _LARGEST
    factors = scales.amax(-1, keepdim=True) / _LARGEST_SCALE
    scales = torch.where(factors > 0, scales / factors, 0).to(torch.float8_e4m3fn).float()
    own = (scales * factors)[..., None]
    return float4_codes(torch.where(own > 0, groups / own, 0)), scales, factors


def round_to_float4(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round groups of numbers, each with the power of two that suits its largest magnitude.

    That one is at least 3.5 and less than 7 times the scale. What is more than 6 times it becomes 6; what is 7 times or
    more is nearer to 4 times the next scale. This is compressed-tensors' rule. The scale with the least squared error
    leaves the distributions of models farther off; see ``docs/quantization.md``.

    Args:
        groups: ``[..., groups, numbers of a group]`` float32.

    Returns:
        Codes of the same shape, and exponents ``[..., groups]``, both uint8.
    """
    mantissas, exponents = torch.frexp(groups.abs().amax(-1))
    exponents = (exponents - 3 + (mantissas >= 7 / 8)).clamp(2 - _BIAS, _BIAS)
    codes = float4_codes(groups / torch.exp2(exponents.float())[..., None])
    return codes, (exponents + _BIAS).to(torch.uint8)
