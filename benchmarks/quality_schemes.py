"""The schemes whose quality is measured: what they make of a linear layer's weight, and how they are served.

A scheme rounds with the functions that loading uses; other libraries' are in ``quality_references.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from octavo.kernels.float4 import MX_GROUP, float4_codes, float4_values
from octavo.kernels.grouped import Rounding, dequantize, round_weight
from octavo.kernels.scaled import FLOAT8, INT8, float8_linear, int8_linear, quantize_rows

Product = Callable[[torch.Tensor], torch.Tensor]
"""``[T, in] → [T, out]``, in float32 and without a bias."""
_NVFP4_GROUP = 16


@dataclass(frozen=True)
class Scheme:
    """A way to compute what is otherwise computed in float32.

    Attributes:
        make: the GEMM of a float32 weight ``[out, in]``; None for that of the engine. The weight may be overwritten,
            so that the rounded one takes no further memory.
        settings: the engine's.
        bound: the largest mean KL divergence that it may have, in nats a token.
        cache: rounds the keys, or values, of a layer of a Hugging Face model, which is measured in place of Octavo's.
        needs: the module of the library that rounds; None if that is Octavo.
    """

    make: Callable[[torch.Tensor], Product] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    bound: float | None = None
    cache: Callable[[torch.Tensor], torch.Tensor] | None = None
    needs: str | None = None


def largest_group(weight: torch.Tensor) -> int:
    """The group for integers: 128 inputs, or the largest half of it that divides them."""
    return next(size for size in (128, 64, 32) if weight.shape[1] % size == 0)


def weights_only(round_values: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], Product]:
    """Only weights are rounded."""
    return lambda weight: partial(F.linear, weight=weight.copy_(round_values(weight)))


def _float8(weight: torch.Tensor) -> Product:
    values, scales = quantize_rows(weight, FLOAT8)
    return float8_linear(weight.copy_(values), scales[:, 0], None, deterministic=False)[0]


def _float8_values(weight: torch.Tensor) -> torch.Tensor:
    values, scales = quantize_rows(weight, FLOAT8)
    return values.float() * scales


def _int8(weight: torch.Tensor) -> Product:
    values, scales = quantize_rows(weight, INT8)
    return int8_linear(values, scales[:, 0], None)[0]


def _grouped(form: Rounding, weight: torch.Tensor) -> torch.Tensor:
    """Rounded as at load."""
    group = MX_GROUP if form == "mxfp4" else largest_group(weight)
    return dequantize(round_weight(weight, form, group), torch.float32)


def _nvfp4(weight: torch.Tensor) -> torch.Tensor:
    """4-bit floats, a float8 scale per 16 inputs and one factor for all, from the largest magnitudes."""
    groups = weight.unflatten(1, (-1, _NVFP4_GROUP))
    largest = groups.abs().amax(-1, keepdim=True)
    factor = largest.max() / 6 / 448
    scales = (largest / 6 / factor).to(FLOAT8).float() * factor
    return (float4_values(float4_codes(groups / scales.clamp(min=1e-30))) * scales).flatten(1)


_BFLOAT16 = {"dtype": "bfloat16"}
SCHEMES = {
    "fp8": Scheme(_float8, bound=0.005),
    "fp8 weights": Scheme(weights_only(_float8_values), bound=0.005),
    "w8a8": Scheme(_int8, bound=0.002),
    "int8": Scheme(weights_only(partial(_grouped, "int8")), bound=0.002),
    "int4": Scheme(weights_only(partial(_grouped, "int4")), bound=0.05),
    "mxfp4": Scheme(weights_only(partial(_grouped, "mxfp4")), bound=0.08),
    "nvfp4": Scheme(weights_only(_nvfp4), bound=0.06),
    "fp8 cache": Scheme(settings={"kv_cache_dtype": "fp8"}, bound=0.003),
    "fp8_e5m2 cache": Scheme(settings={"kv_cache_dtype": "fp8_e5m2"}),
    "int8 cache": Scheme(settings={"kv_cache_dtype": "int8_per_token_head"}, bound=0.003),
}
"""In float32. ``fp8`` and ``w8a8`` round activations as well, with a scale per token."""
SERVED = {
    "--dtype bfloat16": Scheme(settings=_BFLOAT16),
    "--quantization fp8": Scheme(settings=_BFLOAT16 | {"quantization": "fp8"}),
    "--quantization int8": Scheme(settings=_BFLOAT16 | {"quantization": "int8"}),
    "--quantization int4": Scheme(settings=_BFLOAT16 | {"quantization": "int4"}),
    "--quantization mxfp4": Scheme(settings=_BFLOAT16 | {"quantization": "mxfp4"}),
}
"""Whole engines of this machine, in bfloat16; without a quantisation, a GGUF file as it is."""
