"""Mamba-2's mixer: a gated state-space layer in attention's place (arXiv:2405.21060)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from octavo.kernels import DeferredNorm, RopeTables
from octavo.kernels.state_space import causal_conv, gated_rms_norm, state_space_scan
from octavo.layers.build import Build
from octavo.layers.context import CachedLayer, StepContext, compute_type
from octavo.parallel import ONE_DEVICE, Section, TensorParallel
from octavo.quantization.slot import WeightSlot
from octavo.records import State, StateTensor


@dataclass(frozen=True, slots=True)
class StateSpaceSizes:
    """Sizes of a mixer.

    Attributes:
        num_heads, head_dim: ``H`` and ``P``; the inner size is their product.
        num_groups, state_size: ``G`` and ``N``: heads of a group share their input and output vectors of ``N`` values.
        conv_width: tokens that the convolution sees, the newest included.
    """

    num_heads: int
    head_dim: int
    num_groups: int
    state_size: int
    conv_width: int

    @property
    def inner(self) -> int:
        """Size between the projections."""
        return self.num_heads * self.head_dim

    @property
    def conv(self) -> int:
        """Channels of the convolution."""
        return self.inner + 2 * self.num_groups * self.state_size


class Mamba2Mixer(CachedLayer):
    """Projects to a gate, to inputs of a short convolution and to step sizes; scans; gates; projects back.

    Several devices divide the groups of heads; a number of groups that cannot be divided makes each compute all.

    Args:
        eps: of the gated norm.
        dt_limit: bounds of the step sizes.
        bias, conv_bias: whether projections and convolution have biases.
    """

    takes_deferred_norms = True

    def __init__(
        self,
        hidden_size: int,
        sizes: StateSpaceSizes,
        build: Build,
        *,
        eps: float,
        dt_limit: tuple[float, float],
        bias: bool,
        conv_bias: bool,
    ) -> None:
        tp = build.tensor_parallel if sizes.num_groups % build.tensor_parallel.size == 0 else ONE_DEVICE
        heads, shared = Section(sizes.num_heads), Section(sizes.num_groups * sizes.state_size, sizes.state_size)
        inner = Section(sizes.inner, sizes.head_dim)
        in_sections, conv_sections = [inner, inner, shared, shared, heads], [inner, shared, shared]
        whole = sizes.inner
        sizes = replace(sizes, num_heads=sizes.num_heads // tp.size, num_groups=sizes.num_groups // tp.size)
        conv_state = StateTensor((sizes.conv, sizes.conv_width - 1), compute_type())
        scan_state = StateTensor((sizes.num_heads, sizes.head_dim, sizes.state_size), "float32")
        super().__init__({build.name: State((scan_state, conv_state))})
        self.name = build.name
        self.sizes = sizes
        self.eps = eps
        self.dt_limit = dt_limit
        self.in_proj = build.linear(
            "in_proj", hidden_size, in_sections, bias=bias, split="column" if tp.size > 1 else None
        )
        weights = {"weight": (1, sizes.conv_width), "bias": () if conv_bias else None}
        self.conv1d = _Divided(weights, conv_sections, tp)
        self.of_heads = _DividedOfParent(dict.fromkeys(("A_log", "D", "dt_bias"), ()), [heads], tp, torch.float32)
        self.norm = _Divided({"weight": ()}, [inner], tp)
        self.out_proj = build.linear("out_proj", whole, hidden_size, bias=bias, split="row" if tp.size > 1 else None)

    def forward(
        self, x: torch.Tensor | DeferredNorm, ropes: Mapping[str, RopeTables], step: StepContext
    ) -> torch.Tensor:
        """``[T, hidden]`` in and out."""
        sizes, inputs = self.sizes, step.inputs[self.name]
        scan_state, conv_state = step.caches[self.name]
        gate, mixed, dt = self.in_proj(x).split((sizes.inner, sizes.conv, sizes.num_heads), dim=-1)
        mixed = causal_conv(mixed, self.conv1d.weight.squeeze(1), self.conv1d.bias, conv_state, inputs)
        shared = sizes.num_groups * sizes.state_size
        inner, b, c = mixed.split((sizes.inner, shared, shared), dim=-1)
        y = state_space_scan(
            inner.unflatten(-1, (sizes.num_heads, sizes.head_dim)),
            dt,
            self.of_heads.A_log,
            b.unflatten(-1, (sizes.num_groups, sizes.state_size)),
            c.unflatten(-1, (sizes.num_groups, sizes.state_size)),
            self.of_heads.D,
            self.of_heads.dt_bias,
            self.dt_limit,
            scan_state,
            inputs,
        ).flatten(1)
        group_size = sizes.inner // sizes.num_groups
        return self.out_proj(gated_rms_norm(y, gate, self.norm.weight, self.eps, group_size))


class _Divided(nn.Module):
    """Parameters of which each device has some rows.

    Args:
        shapes: names and shapes of a row; None for no such parameter.
        sections: the rows.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...] | None],
        sections: Sequence[Section],
        tensor_parallel: TensorParallel,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._num_rows = sum(section.size for section in sections)
        self._own = tensor_parallel.share_of_sections(sections, "channels of a mixer")
        for name, shape in shapes.items():
            values = None if shape is None else torch.empty(self._own[-1][0].stop, *shape, dtype=dtype)
            self.register_parameter(name, None if values is None else nn.Parameter(values, requires_grad=False))

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        for name, parameter in self.named_parameters():
            if len(parameter) == self._num_rows:
                yield f"{path}.{name}", WeightSlot(parameter.data)
                continue
            for place, source in self._own:
                view = parameter.data[place.start : place.stop]
                shape = (self._num_rows, *view.shape[1:])
                yield f"{path}.{name}", WeightSlot(view, (shape,), (slice(source.start, source.stop),))


class _DividedOfParent(_Divided):
    """Parameters that checkpoints have in the module around this one."""

    A_log: torch.Tensor
    D: torch.Tensor
    dt_bias: torch.Tensor

    def weight_slots(self, path: str) -> Iterator[tuple[str, WeightSlot]]:
        """See :class:`octavo.layers.weights.HasSlots`."""
        return super().weight_slots(path.rpartition(".")[0])
