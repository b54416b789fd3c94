"""Experts and their router by the compiled kernels, in which no token depends on the others."""

from typing import NamedTuple

import torch

from octavo.kernels.block_experts import BlockExperts, make_block_experts
from octavo.kernels.cpu.native_linear import GATE_NUMBERS, NativeLinear
from octavo.kernels.experts import ExpertsOp, ExpertWeights, make_experts
from octavo.kernels.routing import LogitsOp, choose_experts, make_logits
from octavo.platforms.native import BLOCK_NUMBERS, TYPE_NUMBERS, NativeKernels, profiled
from octavo.records.experts import ExpertSpec, Routing

_ACTIVATIONS = GATE_NUMBERS | {"clamped_swiglu": 3, "clamped_silu": 4, "swiglu_step": 5}
_SCORES = {"softmax": 0, "sigmoid": 1, "sparsemixer": 2, "uniform": 3}
_WORKSPACE_BYTES = 64 << 20
"""Larger batches are computed in parts, which read the weights again."""
_PROFILED = profiled("experts")


class _Matrices(NamedTuple):
    """The packed weights of one of the GEMMs, and the compiled kernels' number of their type."""

    packed: torch.Tensor
    number: int

    def arguments(self, bias: torch.Tensor | None) -> tuple[int, int, int, int]:
        """What the compiled kernel is given of them."""
        num_bytes = self.packed[0].numel() * self.packed.element_size()
        return self.packed.data_ptr(), 0 if bias is None else bias.data_ptr(), num_bytes, self.number


class NativeExperts:
    """The experts of a layer; see :data:`ExpertsOp`.

    Args:
        sizes: experts, hidden size, inner size.
        biases: of the two GEMMs, ``[E, out]`` of the type of ``x``, or None.
    """

    def __init__(
        self,
        native: NativeKernels,
        gate_up: _Matrices,
        down: _Matrices,
        sizes: tuple[int, int, int],
        biases: tuple[torch.Tensor | None, torch.Tensor | None],
        spec: ExpertSpec,
    ) -> None:
        self._native = native
        self._weights = gate_up, down  # which the addresses are those of
        self._biases = biases
        self._sizes = sizes
        self._spec = spec
        self._arguments = *gate_up.arguments(biases[0]), *down.arguments(biases[1])

    def __call__(self, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        y = torch.empty(x.shape, dtype=x.dtype)
        x = x if x.stride(1) == 1 else x.contiguous()
        chosen, shares = chosen.contiguous(), shares.contiguous()
        num_tokens, num_chosen = chosen.shape
        num_bytes = self._workspace_bytes(num_tokens, num_chosen, x.dtype)
        parts = [(x, chosen, shares, y)]
        if num_bytes > _WORKSPACE_BYTES:
            step = max(1, num_tokens * _WORKSPACE_BYTES // num_bytes)
            num_bytes = self._workspace_bytes(step, num_chosen, x.dtype)
            parts = [*zip(*(tensor.split(step) for tensor in (x, chosen, shares, y)), strict=True)]
        workspace = torch.empty(num_bytes, dtype=torch.uint8)
        with _PROFILED:
            for part in parts:
                self._run(*part, workspace)
        return y

    def _workspace_bytes(self, num_tokens: int, num_chosen: int, dtype: torch.dtype) -> int:
        return self._native.experts_workspace(num_tokens, num_chosen, *self._sizes, TYPE_NUMBERS[dtype])

    def _run(
        self, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor, y: torch.Tensor, workspace: torch.Tensor
    ) -> None:
        spec = self._spec
        self._native.experts(
            x.data_ptr(),
            chosen.data_ptr(),
            shares.data_ptr(),
            y.data_ptr(),
            workspace.data_ptr(),
            *self._arguments,
            x.stride(0) * x.element_size(),
            *chosen.shape,
            *self._sizes,
            TYPE_NUMBERS[x.dtype],
            _ACTIVATIONS[spec.activation],
            spec.alpha,
            spec.limit,
            int(spec.weighs_inputs),
        )


def _pack(native: NativeKernels, weight: torch.Tensor, num_parts: int) -> _Matrices:
    """Pack values ``[E, out, in]``, where they lie if that is possible.

    Args:
        num_parts: parts of the outputs that get panels of their own.
    """
    num_experts, num_outputs, num_inputs = weight.shape
    number, part = TYPE_NUMBERS[weight.dtype], num_outputs // num_parts
    num_bytes = native.packed_bytes(number, part, num_inputs)
    if num_bytes == part * num_inputs * weight.element_size():
        native.pack(weight.data_ptr(), weight.data_ptr(), num_experts * num_outputs, num_inputs, number)
        return _Matrices(weight, number)
    packed = torch.empty(num_experts, num_parts, num_bytes, dtype=torch.uint8)
    for rows, panels in zip(weight.view(-1, part, num_inputs), packed.view(-1, num_bytes), strict=True):
        native.pack(rows.data_ptr(), panels.data_ptr(), part, num_inputs, number)
    return _Matrices(packed, number)


def register(native: NativeKernels) -> None:
    """Use the compiled kernels for experts on CPUs."""

    @make_experts.register("cpu")
    def experts(
        gate_up: torch.Tensor, weights: ExpertWeights, spec: ExpertSpec, *, deterministic: bool = False
    ) -> ExpertsOp:
        if gate_up.dtype not in TYPE_NUMBERS:
            return make_experts.reference(gate_up, weights, spec)
        packed = _pack(native, gate_up, 2), _pack(native, weights.down, 1)
        num_experts, hidden, size = weights.down.shape
        biases = weights.gate_up_bias, weights.down_bias
        return NativeExperts(native, *packed, (num_experts, hidden, size), biases, spec)

    @make_block_experts.register("cpu")
    def block_experts(packed: torch.Tensor, weights: BlockExperts, spec: ExpertSpec) -> ExpertsOp:
        gate_up, down = (_Matrices(each.packed, BLOCK_NUMBERS[each.format]) for each in (weights.gate_up, weights.down))
        sizes = len(packed), weights.gate_up.num_inputs, weights.down.num_inputs
        return NativeExperts(native, gate_up, down, sizes, (weights.gate_up_bias, weights.down_bias), spec)

    @make_logits.register("cpu")
    def logits(weight: torch.Tensor, bias: torch.Tensor | None) -> LogitsOp:
        packed = NativeLinear(native, weight.clone(), bias)

        def run(x: torch.Tensor) -> torch.Tensor:
            y = torch.empty(*x.shape[:-1], len(weight), dtype=torch.float32)
            packed.run(x, y.view(-1, len(weight)), 0)
            return y

        return run

    @choose_experts.register("cpu")
    def choose(
        logits: torch.Tensor, correction: torch.Tensor | None, routing: Routing
    ) -> tuple[torch.Tensor, torch.Tensor]:
        num_tokens, num_experts = logits.shape
        chosen = torch.empty(num_tokens, routing.num_chosen, dtype=torch.int64)
        shares = torch.empty(num_tokens, routing.num_chosen, dtype=torch.float32)
        logits = logits.contiguous()
        native.choose_experts(
            logits.data_ptr(),
            0 if correction is None else correction.data_ptr(),
            chosen.data_ptr(),
            shares.data_ptr(),
            num_tokens,
            num_experts,
            routing.num_chosen,
            _SCORES[routing.score],
            routing.num_groups,
            routing.num_open_groups,
            routing.num_ranked,
            routing.scale,
            routing.jitter,
            int(routing.renormalises),
        )
        return chosen, shares
