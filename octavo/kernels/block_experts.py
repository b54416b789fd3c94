"""Feed-forward experts whose weights are integers in groups, in the formats of :mod:`octavo.kernels.blocks`."""

from typing import NamedTuple

import torch
import torch.nn.functional as F

from octavo.kernels.blocks import LANES, block_kernels, round_inputs
from octavo.kernels.dispatch import kernel
from octavo.kernels.experts import ExpertsOp, GroupedExperts, apply_gate
from octavo.records.experts import ExpertSpec


class BlockMatrices(NamedTuple):
    """A weight ``[out, in]`` of each expert.

    Attributes:
        packed: ``[E, panels, bytes]`` uint8.
        format: one of :data:`octavo.kernels.blocks.FORMATS`.
        num_inputs: of each weight; its outputs are a multiple of :data:`octavo.kernels.blocks.LANES`.
    """

    packed: torch.Tensor
    format: str
    num_inputs: int

    @property
    def num_outputs(self) -> int:
        """Outputs of each weight."""
        return self.packed.shape[1] * LANES


class BlockExperts(NamedTuple):
    """The weights of all experts of a layer.

    Attributes:
        gate_up: ``[E, 2·I, hidden]``, of each expert the gate's rows before those of the up projection.
        down: ``[E, hidden, I]``.
        gate_up_bias, down_bias: ``[E, 2·I]`` and ``[E, hidden]``, or None.
    """

    gate_up: BlockMatrices
    down: BlockMatrices
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None


class PlainBlockExperts(GroupedExperts):
    """Experts in PyTorch's operations; each weight is dequantised whenever it is used, and its inputs are rounded."""

    def __init__(self, weights: BlockExperts, spec: ExpertSpec) -> None:
        super().__init__(len(weights.down.packed), spec)
        self._weights = weights

    def run(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        weights = self._weights
        inner = _multiply(x, weights.gate_up, weights.gate_up_bias, expert)
        return _multiply(apply_gate(inner, self._spec), weights.down, weights.down_bias, expert)


@kernel
def make_block_experts(packed: torch.Tensor, weights: BlockExperts, spec: ExpertSpec) -> ExpertsOp:
    """The fastest form of a layer's experts, called once their weights are loaded; it reads them where they are.

    Args:
        packed: those of the first GEMM, whose device selects the form.
    """
    return PlainBlockExperts(weights, spec)


def dequantize_expert(weight: BlockMatrices, expert: int) -> torch.Tensor:
    """One expert's weight, ``[out, in]`` float32."""
    kernels = block_kernels(weight.packed.device)
    assert kernels is not None, "such weights are made where there are such kernels"
    shape = weight.num_outputs, weight.num_inputs
    return kernels.linear(weight.packed[expert], weight.format, shape, None, torch.float32).rows(torch.arange(shape[0]))


def _multiply(x: torch.Tensor, weight: BlockMatrices, bias: torch.Tensor | None, expert: int) -> torch.Tensor:
    y = F.linear(round_inputs(x), dequantize_expert(weight, expert))
    return (y if bias is None else y + bias[expert]).to(x.dtype)
