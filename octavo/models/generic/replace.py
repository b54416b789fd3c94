"""Puts Octavo's layers in the place of the library's where they compute the same."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from octavo.layers.build import Build, Split
from octavo.layers.embedding import Embedding
from octavo.layers.norm import LayerNorm, Norm, RMSNorm, UnitOffsetRMSNorm, UnitRMSNorm
from octavo.models.generic.behaviour import (
    activation_kind,
    embedding_scale,
    gated_layers,
    is_layer_norm,
    is_unit_rms_norm,
    rms_norm_offset,
    routing_of,
)
from octavo.models.generic.division import Division
from octavo.models.generic.experts import FIRST_DOWN_LAYER, TokenExperts, TokenRouter, gate_of_experts
from octavo.models.generic.linears import SharedGemm, SharedLinear, TokenActivation, TokenLinear, TokenMLP
from octavo.models.generic.residual import join_additions
from octavo.models.generic.trace import Trace
from octavo.parallel import Section, TensorParallel
from octavo.quantization.scheme import LinearScheme
from octavo.records.experts import Score

_EPSILONS = ("variance_epsilon", "eps", "norm_eps")
_NormKey = tuple[type, float, int, int]
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


class TokenEmbedding(Embedding):
    """Token ids of any shape."""

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """``[1, T]`` int → ``[1, T, hidden]``."""
        return super().forward(token_ids.view(-1)).view(*token_ids.shape, -1)


def make_embedding(module: nn.Module, scheme: LinearScheme, tensor_parallel: TensorParallel) -> TokenEmbedding | None:
    """Octavo's embedding for the library's; None if it does more than look up vectors and scale them.

    Args:
        scheme: see :class:`Embedding`.
    """
    scale = embedding_scale(module) if isinstance(module, nn.Embedding) else None
    if not isinstance(module, nn.Embedding) or scale is None:
        return None
    return TokenEmbedding(
        module.num_embeddings,
        module.embedding_dim,
        scheme=scheme,
        scale=None if scale == 1.0 else scale,
        tensor_parallel=tensor_parallel,
    )


def replace_module(root: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a module in the place of another wherever that stands."""
    for parent in list(root.modules()):
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)


def replace_layers(base: nn.Module, build: Build, traced: Trace, division: Division) -> None:
    """Replace feed-forward parts, experts and their routers, activations, norms and linear layers.

    Args:
        build: of ``base``.
    """
    for path in traced.last_readers:
        _replace_activation(base, path)
    for path in traced.unread_firsts:
        _replace_router(base, path, build)
    for path, module in list(base.named_modules()):
        found = gated_layers(module)
        if found is not None:
            splits = [division.split(f"{path}.{name}") for name in (*found.inputs, found.output)]
            is_divided = splits == ["column", "column", "row"]
            _put(base, path, TokenMLP(module, found, build.at(path), is_divided=is_divided))
    norms: dict[_NormKey, Callable[[], Norm] | None] = {}
    for path, module in list(base.named_modules()):
        norm = _norm(module, norms) or _unit_norm(module, traced.input_sizes.get(path))
        if norm is not None:
            _put(base, path, norm)
    for path, module in list(base.named_modules()):
        gate = gate_of_experts(module)
        if gate is not None:
            name, deterministic = path.rpartition(".")[2], build.quantization.plain.deterministic
            layout = build.layout(f"{build.prefix}{path}.{FIRST_DOWN_LAYER}")
            experts = TokenExperts(
                module, name, gate, division.tensor_parallel, deterministic=deterministic, layout=layout
            )
            _put(base, path, experts)
    sections = _interleaved_sections(traced)
    for paths in traced.shared_inputs:
        _merge(base, build, paths, division, sections)
    for path, module in list(base.named_modules()):
        if type(module) is nn.Linear:
            parent, _, name = path.rpartition(".")
            split, head_size = division.split(path), division.head_size(path, module.out_features)
            at = build.at(parent) if parent else build
            _put(base, path, TokenLinear(module, at, name, split, head_size, sections.get(path)))
    join_additions(base, traced.joined_norms, traced.deferrable)


def _put(base: nn.Module, path: str, new: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(base.get_submodule(parent), name, new)


def _norm(module: nn.Module, known: dict[_NormKey, Callable[[], Norm] | None]) -> Norm | None:
    """Octavo's norm for a root-mean-square norm or a layer norm with a weight; None for other modules."""
    names = [name for name, _ in module.named_parameters()]
    if names not in (["weight"], ["weight", "bias"]) or "Norm" not in type(module).__name__:
        return None
    weight = module.get_parameter("weight")
    epsilon = next(_numbers(module, _EPSILONS), None)
    if weight.dim() != 1 or epsilon is None:
        return None
    key = type(module), epsilon, len(weight), len(names)
    if key not in known:
        known[key] = _norm_like(module, epsilon, len(weight), has_bias=len(names) == 2)
    make = known[key]
    return None if make is None else make()


def _unit_norm(module: nn.Module, size: int | None) -> Norm | None:
    """Octavo's norm for a root-mean-square norm without a weight; None for other modules."""
    epsilon = next(_numbers(module, _EPSILONS), None)
    if size is None or epsilon is None or list(module.parameters()) or "Norm" not in type(module).__name__:
        return None
    return UnitRMSNorm(size, epsilon) if is_unit_rms_norm(module, epsilon) else None


def _norm_like(module: nn.Module, epsilon: float, size: int, *, has_bias: bool) -> Callable[[], Norm] | None:
    offset = None if has_bias else rms_norm_offset(module, epsilon)
    if offset is not None:
        return partial(UnitOffsetRMSNorm if offset else RMSNorm, size, epsilon)
    return partial(LayerNorm, size, epsilon, has_bias=has_bias) if is_layer_norm(module, epsilon) else None


def _replace_activation(base: nn.Module, path: str) -> None:
    module = base.get_submodule(path)
    has_tensors = bool([*module.parameters(), *module.buffers()])
    kind = None if has_tensors else activation_kind(module)
    if kind is not None:
        _put(base, path, TokenActivation(kind))


def _replace_router(base: nn.Module, path: str, build: Build) -> None:
    module = base.get_submodule(path)
    routing = routing_of(module)
    if routing is not None:
        hidden_size = module.get_parameter("weight").shape[1]
        score: Score = "uniform" if build.uniform_routing else routing.score
        deterministic = build.quantization.plain.deterministic
        router = TokenRouter(hidden_size, replace(routing, score=score), correction="", deterministic=deterministic)
        _put(base, path, router)


def _numbers(module: nn.Module, names: Sequence[str]) -> Iterator[float]:
    return (vars(module)[name] for name in names if isinstance(vars(module).get(name), float))


def _interleaved_sections(traced: Trace) -> dict[str, Section]:
    """By their paths, outputs of linear layers that rotate as pairs of neighbours in the library's code."""
    found: dict[str, Section] = {}
    for call in traced.attention:
        if call.rotation is not None and call.rotation.is_interleaved and call.sources is not None:
            counts = call.num_heads, call.num_kv_heads
            for path, count in zip(call.sources, counts, strict=True):
                found[path] = Section(count * call.key_dim, call.key_dim, call.rotation.rotary_dim)
    return found


def _merge(
    base: nn.Module, build: Build, paths: Sequence[str], division: Division, sections: Mapping[str, Section]
) -> None:
    """Compute linear layers of one module that read the same tensor as one GEMM."""
    parent = paths[0].rpartition(".")[0]
    module = dict(base.named_modules()).get(parent)
    if module is None or isinstance(module, _CONTAINERS):
        return
    layers = {path: module._modules.get(path.rpartition(".")[2]) for path in paths}
    linears = {path: layer for path, layer in layers.items() if type(layer) is nn.Linear}
    kinds = {
        (layer.bias is None, division.split(path), division.head_size(path, layer.out_features))
        for path, layer in linears.items()
    }
    if len(linears) < 2 or len(kinds) > 1:
        return
    ((has_no_bias, split, head_size),) = kinds
    if split == "row":
        return
    sizes = {path.rpartition(".")[2]: layer.out_features for path, layer in linears.items()}
    name = "_".join(sizes)
    gemm = (build.at(parent) if parent else build).linear(
        name,
        next(iter(linears.values())).in_features,
        {path.rpartition(".")[2]: sections.get(path, layer.out_features) for path, layer in linears.items()},
        bias=not has_no_bias,
        split=split,
        head_size=head_size,
    )
    module.add_module(name, gemm)
    shared = SharedGemm(gemm, [_own(size, split, head_size, division) for size in sizes.values()])
    for index, part in enumerate(sizes):
        setattr(module, part, SharedLinear(shared, index))


def _own(size: int, split: Split | None, head_size: int, division: Division) -> int:
    """Outputs of a layer that this device has."""
    if split is None:
        return size
    heads = division.tensor_parallel.share(size // head_size, "outputs of a layer", may_repeat=head_size > 1)
    return len(heads) * head_size
