"""Feed-forward layers of which each token uses some experts only (mixtures of experts)."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import nn

from octavo.hub.families.experts import ExpertFields
from octavo.hub.model_config import ModelConfig
from octavo.kernels import DeferredNorm, DeferredOutput, DeferredSum, rows_of
from octavo.kernels.deferred_choice import Chosen, DeferredChoice
from octavo.kernels.pair_sum import PairSum, sum_of
from octavo.kernels.routing import LogitsOp, RouterOp, make_logits, make_router, sigmoid, split_identities
from octavo.layers.build import Build
from octavo.layers.experts import Experts, Mxfp4Experts
from octavo.layers.mlp import BoundedGatedMLP, GatedMLP, gate_of
from octavo.layers.stored_matrix import StoredMatrix
from octavo.layers.weights import sibling
from octavo.quantization.grouped_weight import Layout
from octavo.quantization.slot import WeightSlot
from octavo.records.experts import ExpertSpec, Routing, StackedExperts


class Router(nn.Module):
    """Chooses each token's experts, by weights in float32 whatever the model's type.

    Args:
        correction: the checkpoint's name of the bias in the choice, beside this module.
        bias: whether logits have a bias.
        deterministic: whether a token's bits must not depend on the other tokens.
        layout: see :class:`StoredMatrix`.

    Attributes:
        routes: ``[≥ T, K]``, where the choice is noted; None if nobody asks for it.
    """

    routes: torch.Tensor | None = None

    def __init__(
        self,
        hidden_size: int,
        routing: Routing,
        correction: str,
        *,
        bias: bool = False,
        deterministic: bool = False,
        layout: Layout | None = None,
    ) -> None:
        super().__init__()
        self._stored = StoredMatrix(layout)
        self.weight = _parameter(routing.num_experts, hidden_size)
        self.bias = _parameter(routing.num_experts) if bias else None
        self.routing = routing
        self._op: RouterOp | None = None
        self._deterministic = deterministic
        self._correction_name = correction
        self.correction = _parameter(routing.num_experts) if routing.is_corrected else None

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        yield from self._stored.slots(path, self.weight.data)
        if self.bias is not None:
            yield f"{path}.bias", WeightSlot(self.bias.data)
        if self.correction is not None:
            num_experts = len(self.correction)
            shapes = ((num_experts,), (1, num_experts))
            yield sibling(path, self._correction_name), WeightSlot(self.correction.data, shapes)

    def fit(self, path: str, has: Callable[[str], bool]) -> None:
        """See :class:`octavo.layers.weights.FitsForms`."""
        self._stored.fit(path, has)

    def finish_weights(self) -> None:
        """See :class:`octavo.layers.weights.Finishable`."""
        self._op = make_router(
            self.weight.data, self.bias, self.correction, self.routing, deterministic=self._deterministic
        )

    def forward(self, x: torch.Tensor | DeferredNorm) -> Chosen | DeferredChoice:
        """Each token's experts ``[T, K]`` int64 and their weights, float32, for ``x`` of ``[T, hidden]``."""
        assert self._op is not None, "finish_weights() was called"
        choice = self._op(x)
        if self.routes is not None:
            chosen, _ = choice
            self.routes[: len(chosen)] = chosen
        return choice


class SharedGate(nn.Module):
    """The share of each token that goes through a shared expert, a sigmoid, in float32 whatever the model's type.

    Args:
        layout: see :class:`StoredMatrix`.
    """

    def __init__(self, hidden_size: int, layout: Layout | None = None) -> None:
        super().__init__()
        self._stored = StoredMatrix(layout)
        self.weight = _parameter(1, hidden_size)
        self._op: LogitsOp | None = None

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        yield from self._stored.slots(path, self.weight.data, (self.weight.shape, self.weight.shape[1:]))

    def fit(self, path: str, has: Callable[[str], bool]) -> None:
        """See :class:`octavo.layers.weights.FitsForms`."""
        self._stored.fit(path, has)

    def finish_weights(self) -> None:
        """See :class:`octavo.layers.weights.Finishable`."""
        self._op = make_logits(self.weight.data, None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, hidden] → [T, 1]``."""
        assert self._op is not None, "finish_weights() was called"
        return sigmoid(self._op(x)).to(x.dtype)


class SparseMLP(nn.Module):
    """Chosen experts, and others that all tokens share.

    Args:
        shared: a feed-forward layer for all tokens; None for none.
        shared_gate: weights what it computes; None for a weight of 1.
        output_scale: factor on the sum.
        num_identity: see :attr:`ExpertFields.num_identity`.
    """

    takes_deferred_norms = True

    def __init__(
        self,
        gate: Router,
        experts: Experts,
        shared: nn.Module | None = None,
        shared_gate: SharedGate | None = None,
        output_scale: float = 1.0,
        num_identity: int = 0,
    ) -> None:
        super().__init__()
        self.gate = gate
        self.experts = experts
        self.shared_experts = shared
        self.shared_expert_gate = shared_gate
        self.output_scale = output_scale
        self._num_identity = num_identity
        self._defers_sum = False

    def defer_sum(self) -> None:
        """Return what experts compute as :class:`octavo.kernels.DeferredOutput` from now on, if nothing is added."""
        self._defers_sum = self.shared_experts is None and self.output_scale == 1 and not self._num_identity

    def forward(self, x: torch.Tensor | DeferredNorm) -> torch.Tensor | DeferredOutput:
        """``[T, hidden]`` in and out."""
        choice = self.gate(x)
        x = rows_of(x)
        found = self._with_identity(x, *choice) if self._num_identity else self.experts.run(x, choice)
        if self._defers_sum and isinstance(found, PairSum):
            return DeferredSum(found)
        total = sum_of(found)
        if self.shared_experts is not None:
            shared = self.shared_experts(x)
            total = total + (shared if self.shared_expert_gate is None else shared * self.shared_expert_gate(x))
        return total if self.output_scale == 1 else total * self.output_scale

    def _with_identity(self, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """What chosen experts compute, where some of them return what they get."""
        first = self.gate.routing.num_experts - self._num_identity
        real, real_shares, kept = split_identities(chosen, shares, first)
        return self.experts(x, real, real_shares) + (x * kept).to(x.dtype)


def feed_forward(config: ModelConfig, fields: ExpertFields, index: int, build: Build) -> SparseMLP | GatedMLP:
    """The feed-forward part of the layer of an index, as its family's configuration describes it."""
    if fields.is_sparse[index]:
        return sparse_mlp(config, fields, build)
    size = config.intermediate_size if fields.dense_size is None else fields.dense_size
    return _gated_mlp(config, fields, size, build)


def sparse_mlp(config: ModelConfig, fields: ExpertFields, build: Build) -> SparseMLP:
    """The feed-forward part of a layer with experts."""
    hidden, routing = config.hidden_size, fields.routing
    spec = ExpertSpec(gate_of(config.hidden_act)) if fields.spec is None else fields.spec
    storage = fields.storage
    deterministic = build.quantization.plain.deterministic
    experts_class = Mxfp4Experts if isinstance(storage, StackedExperts) and storage.is_mxfp4 else Experts
    experts = experts_class(
        routing.num_experts - fields.num_identity,
        hidden,
        fields.size,
        spec,
        storage,
        build.tensor_parallel,
        bias=fields.has_bias,
        layouts=build.layout,
        form=build.expert_form(storage, routing.num_experts - fields.num_identity),
        deterministic=deterministic,
    )
    shared = None
    if fields.shared_size:
        own = build.at("shared_experts")
        shared = _gated_mlp(config, fields, fields.shared_size, own, is_fused=fields.is_shared_fused)
    if build.uniform_routing:
        routing = replace(routing, score="uniform", num_groups=1, num_open_groups=1, is_corrected=False)
    return SparseMLP(
        Router(
            hidden,
            routing,
            fields.correction,
            bias=fields.has_bias,
            deterministic=deterministic,
            layout=build.layout(f"{build.prefix}gate"),
        ),
        experts,
        shared,
        SharedGate(hidden, build.layout(f"{build.prefix}shared_expert_gate")) if fields.has_shared_gate else None,
        fields.output_scale,
        fields.num_identity,
    )


def _gated_mlp(
    config: ModelConfig, fields: ExpertFields, size: int, build: Build, *, is_fused: bool = False
) -> GatedMLP:
    sizes = config.hidden_size, size
    options = {"bias": fields.mlp_bias, "is_fused": is_fused}
    if fields.shared_spec is None:
        return GatedMLP(*sizes, config.hidden_act, build, **options)
    return BoundedGatedMLP(*sizes, config.hidden_act, build, spec=fields.shared_spec, **options)


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=torch.float32), requires_grad=False)
