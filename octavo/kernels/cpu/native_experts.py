"""Experts and their router by the compiled kernels' GEMMs, in which no row depends on the others."""

import torch

from octavo.kernels.cpu.native_linear import GATE_NUMBERS, NativeLinear
from octavo.kernels.experts import ExpertsOp, ExpertWeights, GroupedExperts, apply_gate, make_experts
from octavo.kernels.routing import LogitsOp, make_logits
from octavo.platforms.native import TYPE_NUMBERS, NativeKernels
from octavo.records.experts import ExpertSpec


class NativeExperts(GroupedExperts):
    """Experts whose weights are packed where they lie."""

    def __init__(self, native: NativeKernels, weights: ExpertWeights, spec: ExpertSpec) -> None:
        super().__init__(len(weights.gate_up), spec)
        own = [weights.of(expert) for expert in range(len(weights.gate_up))]
        self._up = [NativeLinear(native, weight, bias) for weight, bias, _, _ in own]
        self._down = [NativeLinear(native, weight, bias) for _, _, weight, bias in own]

    def run(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        up, spec = self._up[expert], self._spec
        inner = up.gated(x, spec.activation) if spec.activation in GATE_NUMBERS else apply_gate(up(x), spec)
        return self._down[expert](inner)


def register(native: NativeKernels) -> None:
    """Use the compiled kernels for experts on CPUs."""

    @make_experts.register("cpu")
    def experts(gate_up: torch.Tensor, weights: ExpertWeights, spec: ExpertSpec) -> ExpertsOp:
        if gate_up.dtype not in TYPE_NUMBERS:
            return make_experts.reference(gate_up, weights, spec)
        return NativeExperts(native, weights, spec)

    @make_logits.register("cpu")
    def logits(weight: torch.Tensor, bias: torch.Tensor | None) -> LogitsOp:
        packed = NativeLinear(native, weight.clone(), bias)
        return lambda x: packed(x.float())
