"""Recognises what a module of the transformers library computes, by running it on small random values."""

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from octavo.kernels.basic import ACTIVATIONS, apply_rope, as_halves
from octavo.kernels.linear import GATES
from octavo.kernels.routing import choose_experts
from octavo.records.experts import Routing, Score

_SIZE = 8
_TOLERANCE = 1e-6


def gate_of_activation(activation: Callable[[torch.Tensor], torch.Tensor]) -> str | None:
    """The kernels' name of the gate that has an activation; None if there is none."""
    x = _noise(4, 2 * _SIZE)
    first, second = x.chunk(2, -1)
    for name, gate in GATES.items():
        if _agree(lambda: activation(first) * second, gate(x)):
            return name
    return None


def activation_kind(module: nn.Module) -> str | None:
    """The kernels' name of the activation that a module without parameters computes; None for other modules."""
    x = _noise(4, _SIZE)
    for kind, activation in ACTIVATIONS.items():
        if _agree(lambda: module(x.clone()), activation(x)):
            return kind
    return None


@dataclass(frozen=True, slots=True)
class GatedLayers:
    """What a gated feed-forward part consists of.

    Attributes:
        inputs: names of its gate and up projection; one name if they are one layer, whose first outputs are gates.
        output: name of its down projection.
        gate: name of the gated activation in kernels.
    """

    inputs: tuple[str, ...]
    output: str
    gate: str


def gated_layers(module: nn.Module) -> GatedLayers | None:
    """The parts of a module that computes ``down(act(gate(x)) · up(x))``; None for other modules."""
    found = {name: child for name, child in module.named_children() if type(child) is nn.Linear}
    *inputs, output = _gated_names(found)
    if not inputs or dict(module.named_parameters(recurse=False)):
        return None
    rows = 2 * _SIZE // len(inputs)
    sizes = {**dict.fromkeys(inputs, (rows, _SIZE)), output: (_SIZE, _SIZE)}
    weights = {
        f"{layer}.{name}": _noise(*sizes[layer][: parameter.dim()], seed=seed + 100 * place)
        for place, layer in enumerate(sizes)
        for seed, (name, parameter) in enumerate(found[layer].named_parameters())
    }
    x = _noise(1, 3, _SIZE, seed=99)

    def project(name: str, values: torch.Tensor) -> torch.Tensor:
        return F.linear(values, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    projected = torch.cat([project(name, x) for name in inputs], -1)
    for name, gate in GATES.items():
        if _agree(lambda: functional_call(module, weights, (x,)), project(output, gate(projected))):
            return GatedLayers(tuple(inputs), output, name)
    return None


@dataclass(frozen=True, slots=True)
class Rotation:
    """How a function rotates heads.

    Attributes:
        rotary_dim: how many numbers of a head it rotates, the first ones.
        is_interleaved: whether it rotates pairs ``(2i, 2i + 1)``; otherwise ``(i, i + rotary_dim / 2)``, as kernels do.
        has_interleaved_tables: whether both cosines of a pair, and sines, are neighbours in its tables; otherwise they
            are half a row apart, as in kernels.
    """

    rotary_dim: int
    is_interleaved: bool = False
    has_interleaved_tables: bool = False


@functools.lru_cache(maxsize=64)
def rotation_of(function: Callable[..., Any], head_dim: int, rotary_dim: int) -> Rotation | None:
    """How a function rotates heads' first ``rotary_dim`` numbers; None for one that does something else.

    Args:
        function: takes queries and keys, ``[1, H, T, D]``, cosines and sines, ``[1, T, R]``.
    """
    if rotary_dim % 2:
        return None
    kinds = (
        Rotation(rotary_dim),
        Rotation(rotary_dim, is_interleaved=True),
        Rotation(rotary_dim, is_interleaved=True, has_interleaved_tables=True),
    )
    return next((kind for kind in kinds if _rotates_so(function, head_dim, kind)), None)


def _rotates_so(function: Callable[..., Any], head_dim: int, kind: Rotation) -> bool:
    heads, size = _noise(2, 3, 5, head_dim), kind.rotary_dim
    angles = [_noise(1, 5, size // 2, seed=seed) for seed in (1, 2)]
    halves, pairs = [x.repeat(1, 1, 2) for x in angles], [x.repeat_interleave(2, -1) for x in angles]
    cos, sin = kernel_tables(*halves, is_interleaved=False)
    rows = reordered(heads, size, as_halves) if kind.is_interleaved else heads
    rotated = torch.stack([apply_rope.reference(row, cos, sin) for row in rows.transpose(1, 2)]).transpose(1, 2)
    expected = reordered(rotated, size, as_pairs) if kind.is_interleaved else rotated
    tables = pairs if kind.has_interleaved_tables else halves
    return _agree(lambda: torch.cat(function(heads[:1], heads[1:], *tables)), expected)


def as_pairs(x: torch.Tensor) -> torch.Tensor:
    """The opposite of :func:`octavo.kernels.basic.as_halves`."""
    return x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


def reordered(x: torch.Tensor, rotary_dim: int, order: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Heads ``[..., D]`` whose first numbers are in another order."""
    return torch.cat((order(x[..., :rotary_dim]), x[..., rotary_dim:]), -1)


def are_interleaved(*tables: torch.Tensor) -> bool | None:
    """Whether the two numbers of a pair's angle are neighbours; None if they are neither that nor half a row apart."""
    if all(torch.equal(*table.chunk(2, -1)) for table in tables):
        return False
    return True if all(torch.equal(table[..., ::2], table[..., 1::2]) for table in tables) else None


def kernel_tables(cos: torch.Tensor, sin: torch.Tensor, *, is_interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines as ``apply_rope`` takes them, ``[1, P, R] → [P, 1, R]``: the first half of sines is negated."""
    if is_interleaved:
        cos, sin = as_halves(cos), as_halves(sin)
    first, second = sin.chunk(2, -1)
    return cos[0][:, None], torch.cat((-first, second), -1)[0][:, None]


def _gated_names(layers: Mapping[str, nn.Linear]) -> tuple[str, ...]:
    """Names of what may be gate, up and down projection, or both in one and down projection; an empty one for none."""
    if set(layers) == {"gate_proj", "up_proj", "down_proj"}:
        has_one_form = (layers["gate_proj"].bias is None) == (layers["up_proj"].bias is None)
        return ("gate_proj", "up_proj", "down_proj") if has_one_form else ("",)
    if len(layers) == 2:
        first, second = layers.values()
        return tuple(layers) if first.out_features == 2 * second.in_features else ("",)
    return ("",)


def is_layer_norm(module: nn.Module, eps: float) -> bool:
    """Whether a module computes a layer norm with its weight, and with its bias if it has one."""
    weights = {name: _noise(*value.shape, seed=seed) for seed, (name, value) in enumerate(module.named_parameters())}
    size = len(weights["weight"])
    x = _noise(3, size, seed=99)
    expected = F.layer_norm(x, (size,), weights["weight"], weights.get("bias"), eps)
    return _agree(lambda: functional_call(module, weights, (x,)), expected)


def rms_norm_offset(module: nn.Module, eps: float) -> int | None:
    """0 or 1 for a root-mean-square norm that multiplies by its weight plus so much; None for other modules."""
    weight = _noise(*module.get_parameter("weight").shape)
    x = _noise(3, len(weight), seed=1)
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    for offset in (0, 1):
        if _agree(lambda: functional_call(module, {"weight": weight}, (x,)), normed * (weight + offset)):
            return offset
    return None


def routing_of(module: nn.Module) -> Routing | None:
    """How a module with one weight ``[experts, hidden]`` chooses experts; None for modules that do something else.

    Those that choose return logits, weights and experts' numbers.
    """
    if [name for name, _ in module.named_parameters()] != ["weight"] or list(module.buffers()):
        return None
    shape = module.get_parameter("weight").shape
    if len(shape) != 2 or isinstance(module, (nn.Linear, nn.Embedding)):
        return None
    x, weight = _noise(3, shape[1]), _noise(*shape, seed=1) * shape[1] ** -0.5
    found = run_on_cpu(lambda: functional_call(module, {"weight": weight}, (x,)))
    if not isinstance(found, tuple) or len(found) != 3 or not all(isinstance(each, torch.Tensor) for each in found):
        return None
    _, shares, chosen = found
    if chosen.dim() != 2 or chosen.shape != shares.shape:
        return None
    scores: tuple[Score, ...] = ("softmax", "sigmoid")
    for score, renormalises in itertools.product(scores, (False, True)):
        routing = Routing(shape[0], chosen.shape[1], score, renormalises)
        numbers, weights = choose_experts.reference(x @ weight.T, None, routing)
        if torch.equal(chosen, numbers) and torch.allclose(shares, weights, rtol=_TOLERANCE, atol=_TOLERANCE):
            return routing
    return None


def is_unit_rms_norm(module: nn.Module, eps: float) -> bool:
    """Whether a module without parameters computes a root-mean-square norm."""
    x = _noise(3, _SIZE)
    return _agree(lambda: module(x), x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))


def embedding_scale(module: nn.Embedding) -> float | None:
    """The factor on every vector of an embedding; None for a module that does something else."""
    weight = _noise(_SIZE, _SIZE)
    found = _run(lambda: functional_call(module, {"weight": weight}, (torch.arange(_SIZE),)))
    if found is None or found.shape != weight.shape:
        return None
    scale = float((found / weight).median())
    return scale if torch.allclose(found, weight * scale, rtol=_TOLERANCE, atol=_TOLERANCE) else None


def _agree(compute: Callable[[], Any], expected: torch.Tensor) -> bool:
    found = _run(compute)
    return (
        found is not None
        and found.shape == expected.shape
        and bool(torch.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE))
    )


def run_on_cpu(compute: Callable[[], Any]) -> Any:
    """What a module computes on the CPU; None if it does not run so."""
    try:
        with torch.inference_mode(), torch.device("cpu"):
            return compute()
    except Exception:  # a module that takes other arguments is none of those looked for
        return None


def _run(compute: Callable[[], Any]) -> torch.Tensor | None:
    """What a module computes on the CPU in float32; None if it does not run so, or returns no tensor."""
    found = run_on_cpu(compute)
    return found if isinstance(found, torch.Tensor) else None


def _noise(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float32, device="cpu")
