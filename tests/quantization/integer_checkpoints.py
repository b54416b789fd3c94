"""Checkpoints of integer weights, written from integers that the tests draw themselves."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


class Drawn(NamedTuple):
    """Integers of a layer, and what they stand for: each value is its scale times (integer - zero).

    Attributes:
        integers: ``[out, in]`` int64, from 0.
        scales, zeros: ``[out, groups]``.
        groups: ``[in]``, the group of each input.
    """

    integers: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    groups: torch.Tensor
    bits: int

    @property
    def weight(self) -> torch.Tensor:
        """``[out, in]`` float32."""
        groups = self.groups.tolist()
        columns = [
            self.scales[:, group].float() * (self.integers[:, column] - self.zeros[:, group]).float()
            for column, group in enumerate(groups)
        ]
        return torch.stack(columns, 1)


def draw(
    shape: tuple[int, int],
    random: torch.Generator,
    *,
    bits: int = 4,
    group: int = 32,
    symmetric: bool = True,
    shuffled: bool = False,
    dtype: torch.dtype = torch.float16,
) -> Drawn:
    """Integers for a layer of a shape ``[out, in]``; ``group`` -1 is one for all inputs."""
    num_outputs, num_inputs = shape
    size = num_inputs if group == -1 else group
    num_groups = num_inputs // size
    largest = 1 << bits
    integers = torch.randint(largest, shape, generator=random)
    scales = ((0.5 + torch.rand(num_outputs, num_groups, generator=random)) / largest).to(dtype)
    zeros = torch.full((num_outputs, num_groups), largest // 2)
    if not symmetric:
        zeros = torch.randint(1, largest, (num_outputs, num_groups), generator=random)
    groups = torch.arange(num_inputs) // size
    if shuffled:
        groups = groups[torch.randperm(num_inputs, generator=random)]
    return Drawn(integers, scales, zeros, groups, bits)


def words(integers: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack along the last dimension, which is filled up with zeros, the first integer in the lowest bits; int32.

    Integers whose bits do not divide 32 go on in the next word.
    """
    stream = ((integers[..., None] >> torch.arange(bits)) & 1).flatten(-2)
    stream = torch.nn.functional.pad(stream, (0, -stream.shape[-1] % 32)).unflatten(-1, (-1, 32))
    return (stream << torch.arange(32)).sum(-1).to(torch.uint32).view(torch.int32)


def gptq(drawn: Drawn, *, is_second: bool = False) -> dict[str, torch.Tensor]:
    """A layer's tensors in GPTQ's first or second format."""
    zeros = drawn.zeros.T - (0 if is_second else 1)
    return {
        "qweight": words(drawn.integers, drawn.bits).T.contiguous(),
        "qzeros": words(zeros, drawn.bits),
        "scales": drawn.scales.T.contiguous(),
        "g_idx": drawn.groups.to(torch.int32),
    }


def awq(drawn: Drawn) -> dict[str, torch.Tensor]:
    """A layer's tensors in AWQ's format."""

    def mixed(integers: torch.Tensor) -> torch.Tensor:
        return words(integers.unflatten(-1, (-1, 8))[..., list(AWQ_ORDER)].flatten(-2), 4)

    return {"qweight": mixed(drawn.integers.T), "qzeros": mixed(drawn.zeros.T), "scales": drawn.scales.T}


def quark(drawn: Drawn, kind: str, *, has_zeros: bool, interleaved: bool = True) -> dict[str, torch.Tensor]:
    """A layer's tensors in Quark's format of integers in groups, of a type such as ``uint4``."""
    middle = 0 if kind.startswith("u") else 1 << (drawn.bits - 1)

    def stored(integers: torch.Tensor) -> torch.Tensor:
        values = integers.T - middle
        if drawn.bits == 8:
            return values.to(torch.uint8 if middle == 0 else torch.int8)
        filled = torch.nn.functional.pad(values & 15, (0, -values.shape[-1] % 8)).unflatten(-1, (-1, 8))
        return words((filled[..., list(AWQ_ORDER)] if interleaved else filled).flatten(-2), 4)

    own = {"weight": stored(drawn.integers), "weight_scale": drawn.scales.T.contiguous()}
    return own | ({"weight_zero_point": stored(drawn.zeros)} if has_zeros else {})


def compressed(drawn: Drawn, *, symmetric: bool, is_packed: bool, shuffled: bool = False) -> dict[str, torch.Tensor]:
    """A layer's tensors in compressed-tensors' formats, ``pack-quantized`` or ``int-quantized``."""
    middle = 1 << (drawn.bits - 1)
    tensors = {"weight_scale": drawn.scales}
    if is_packed:
        tensors["weight_packed"] = words(drawn.integers, drawn.bits)
        tensors["weight_shape"] = torch.tensor(drawn.integers.shape)
    else:
        tensors["weight"] = (drawn.integers - middle).to(torch.int8)
    if not symmetric:
        packed, single = words(drawn.zeros.T, drawn.bits).T, (drawn.zeros - middle).to(torch.int8)
        tensors["weight_zero_point"] = packed if is_packed else single
    if shuffled:
        tensors["weight_g_idx"] = drawn.groups.to(torch.int32)
    return tensors


def write_layers(
    source: Path,
    folder: Path,
    config: Mapping[str, Any],
    store: Callable[[str, tuple[int, int]], tuple[dict[str, torch.Tensor], torch.Tensor] | None],
) -> dict[str, torch.Tensor]:
    """Write a model whose linear layers are stored in some way; returns the weights that it stands for.

    Args:
        config: ``quantization_config``.
        store: of a layer's name and shape, its tensors by their names within it, and the weight that they stand for;
            None leaves it as it is.
    """
    shutil.copytree(source, folder, dirs_exist_ok=True)
    raw = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"quantization_config": config}))
    stored: dict[str, torch.Tensor] = {}
    weights: dict[str, torch.Tensor] = {}
    for name, weight in load_file(source / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        found = store(layer, tuple(weight.shape)) if layer.endswith(("_proj", "lm_head")) else None
        if found is None:
            stored[name] = weights[name] = weight
        else:
            tensors, weights[name] = found
            stored |= {f"{layer}.{key}": value.contiguous() for key, value in tensors.items()}
    save_file(stored, folder / "model.safetensors")
    return weights
