"""Layers of 4-bit floats, drawn by the tests, in the formats of checkpoints."""

from typing import Any, Literal, NamedTuple

import torch

# Sign, two bits of exponent, one of mantissa.
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class Float4(NamedTuple):
    """Values of a layer before they are scaled.

    Attributes:
        codes: ``[out, in]`` int64, 0 to 15.
        scales: ``[out, groups]``, float8, or uint8 exponents.
        factor: of all scales.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    factor: torch.Tensor

    @property
    def packed(self) -> torch.Tensor:
        """Two codes per byte, the first one in the low bits."""
        return (self.codes[:, ::2] + 16 * self.codes[:, 1::2]).to(torch.uint8)

    @property
    def weight(self) -> torch.Tensor:
        """``[out, in]`` float32."""
        values = torch.tensor([*MAGNITUDES, *(-value for value in MAGNITUDES)])[self.codes]
        if self.scales.dtype is torch.uint8:
            scales = torch.pow(2.0, self.scales.float() - 127)
        else:
            scales = self.scales.float() * self.factor
        size = values.shape[1] // scales.shape[1]
        return torch.stack([values[:, column] * scales[:, column // size] for column in range(values.shape[1])], 1)


def draw_float4(shape: tuple[int, int], random: torch.Generator, kind: Literal["nvfp4", "mxfp4"]) -> Float4:
    """A random layer of a shape ``[out, in]`` in groups of 16 or 32 inputs."""
    codes = torch.randint(16, shape, generator=random)
    groups = shape[0], shape[1] // (16 if kind == "nvfp4" else 32)
    if kind == "mxfp4":
        return Float4(codes, torch.randint(122, 126, groups, generator=random).to(torch.uint8), torch.tensor(1.0))
    scales = (20 + 400 * torch.rand(groups, generator=random)).to(torch.float8_e4m3fn)
    return Float4(codes, scales, 0.0002 + 0.0002 * torch.rand((), generator=random))


def modelopt(drawn: Float4) -> dict[str, torch.Tensor]:
    """A layer's NVFP4 tensors as ModelOpt names them."""
    return {
        "weight": drawn.packed,
        "weight_scale": drawn.scales,
        "weight_scale_2": drawn.factor,
        "input_scale": torch.tensor(0.01),
    }


def compressed_float4(drawn: Float4, *, has_inputs: bool) -> dict[str, torch.Tensor]:
    """A layer's tensors in compressed-tensors' formats of 4-bit floats."""
    tensors = {"weight_packed": drawn.packed, "weight_scale": drawn.scales}
    if drawn.scales.dtype is not torch.uint8:
        tensors["weight_global_scale"] = 1 / drawn.factor.reshape(1)
        if has_inputs:
            tensors["input_global_scale"] = torch.tensor([100.0])
    return tensors


def float4_weights(kind: Literal["nvfp4", "mxfp4"]) -> dict[str, Any]:
    """The weights of a group of compressed-tensors."""
    strategy, group = ("tensor_group", 16) if kind == "nvfp4" else ("group", 32)
    return {"num_bits": 4, "type": "float", "symmetric": True, "strategy": strategy, "group_size": group}
