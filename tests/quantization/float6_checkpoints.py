"""Layers of 6-bit floats (OCP MX 1.0), written from codes that the tests draw themselves."""

import torch


def float6_value(code: int, exponent_bits: int) -> float:
    """A code's value by the specification: sign, exponent, mantissa from the highest bit down."""
    mantissa_bits = 5 - exponent_bits
    exponent, mantissa = divmod(code & 31, 1 << mantissa_bits)
    size = 2.0 ** (max(exponent, 1) - 2 ** (exponent_bits - 1) + 1)
    size *= mantissa / (1 << mantissa_bits) + (exponent > 0)
    return -size if code & 32 else size


def draw_float6(
    shape: tuple[int, int], random: torch.Generator, kind: str
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A layer's tensors, of the type ``e3m2`` or ``e2m3``, and the weight that they stand for.

    Four codes are three bytes, of which the first code has the lowest bits.
    """
    codes = torch.randint(64, shape, generator=random)
    exponents = torch.randint(118, 124, (shape[0], shape[1] // 32), generator=random)
    triples = (codes.unflatten(1, (-1, 4)) << (6 * torch.arange(4))).sum(-1, keepdim=True)
    packed = ((triples >> (8 * torch.arange(3))) & 255).flatten(1)
    values = torch.tensor([float6_value(code, int(kind[1])) for code in range(64)])[codes]
    weight = values * torch.pow(2.0, exponents.float() - 127).repeat_interleave(32, 1)
    return {"weight": packed.to(torch.uint8), "weight_scale": exponents.to(torch.uint8)}, weight
