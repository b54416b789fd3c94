"""The schemes whose quality is measured: what they make of a linear layer's weight, and how they are served.

A scheme rounds with the functions that loading uses; ``torchao's`` ones are references by another library.
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
        make: the GEMM of a float32 weight ``[out, in]``; None for that of the engine.
        settings: the engine's.
        bound: the largest mean KL divergence that it may have, in nats a token.
    """

    make: Callable[[torch.Tensor], Product] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    bound: float | None = None


def _weights(round_values: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], Product]:
    """Only weights are rounded."""
    return lambda weight: partial(F.linear, weight=round_values(weight))


def _float8(weight: torch.Tensor) -> Product:
    values, scales = quantize_rows(weight, FLOAT8)
    return float8_linear(values.float(), scales[:, 0], None, deterministic=False)[0]


def _float8_values(weight: torch.Tensor) -> torch.Tensor:
    values, scales = quantize_rows(weight, FLOAT8)
    return values.float() * scales


def _int8(weight: torch.Tensor) -> Product:
    values, scales = quantize_rows(weight, INT8)
    return int8_linear(values, scales[:, 0], None)[0]


def _grouped(form: Rounding, weight: torch.Tensor) -> torch.Tensor:
    """Rounded as at load; integers in groups of 128, or the largest half of it that divides the inputs."""
    sizes = (MX_GROUP,) if form == "mxfp4" else (128, 64, 32)
    group = next(size for size in sizes if weight.shape[1] % size == 0)
    return dequantize(round_weight(weight, form, group), torch.float32)


def _nvfp4(weight: torch.Tensor) -> torch.Tensor:
    """4-bit floats, a float8 scale per 16 inputs and one factor for all, from the largest magnitudes."""
    groups = weight.unflatten(1, (-1, _NVFP4_GROUP))
    largest = groups.abs().amax(-1, keepdim=True)
    factor = largest.max() / 6 / 448
    scales = (largest / 6 / factor).to(FLOAT8).float() * factor
    return (float4_values(float4_codes(groups / scales.clamp(min=1e-30))) * scales).flatten(1)


def _torchao_float8(weight: torch.Tensor) -> Product:
    from torchao.quantization import Float8Tensor, PerRow

    def rounded(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = Float8Tensor.from_hp(x, FLOAT8, granularity=PerRow()).dequantize(torch.float32)
        return found

    values = rounded(weight)
    return lambda x: F.linear(rounded(x), values)


def _torchao_layer(config: Callable[[], Any], weight: torch.Tensor) -> Product:
    from torchao.quantization import quantize_

    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    quantize_(layer, config())
    return layer


def _torchao_int8() -> Any:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig

    return Int8DynamicActivationInt8WeightConfig()


def _torchao_int4(weight: torch.Tensor) -> Product:
    from torchao.quantization import IntxWeightOnlyConfig, PerGroup

    group = next(size for size in (128, 64, 32) if weight.shape[1] % size == 0)
    return _torchao_layer(lambda: IntxWeightOnlyConfig(torch.int4, granularity=PerGroup(group)), weight)


def _torchao_mxfp4(weight: torch.Tensor) -> torch.Tensor:
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    found: torch.Tensor = MXTensor.to_mx(weight, torch.float4_e2m1fn_x2, MX_GROUP).dequantize(torch.float32)
    return found


def _torchao_nvfp4(weight: torch.Tensor) -> torch.Tensor:
    from torchao.prototype.mx_formats import nvfp4_tensor

    scale = nvfp4_tensor.per_tensor_amax_to_scale(weight.abs().max())
    found: torch.Tensor = nvfp4_tensor.NVFP4Tensor.to_nvfp4(weight, per_tensor_scale=scale).dequantize(torch.float32)
    return found


_BFLOAT16 = {"dtype": "bfloat16"}
SCHEMES = {
    "fp8": Scheme(_float8, bound=0.005),
    "fp8 weights": Scheme(_weights(_float8_values), bound=0.005),
    "w8a8": Scheme(_int8, bound=0.002),
    "int8": Scheme(_weights(partial(_grouped, "int8")), bound=0.002),
    "int4": Scheme(_weights(partial(_grouped, "int4")), bound=0.05),
    "mxfp4": Scheme(_weights(partial(_grouped, "mxfp4")), bound=0.08),
    "nvfp4": Scheme(_weights(_nvfp4), bound=0.06),
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
REFERENCES = {
    "torchao fp8": Scheme(_torchao_float8),
    "torchao w8a8": Scheme(partial(_torchao_layer, _torchao_int8)),
    "torchao int4": Scheme(_torchao_int4),
    "torchao mxfp4": Scheme(_weights(_torchao_mxfp4)),
    "torchao nvfp4": Scheme(_weights(_torchao_nvfp4)),
}
"""torchao's rounding of the same weights, if it is installed; FP8 and INT8 with its rounding of activations."""
ALL = SCHEMES | SERVED | REFERENCES
