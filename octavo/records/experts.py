"""Mixtures of experts: how tokens choose experts, what experts compute, how checkpoints store them."""

from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

Score = Literal["softmax", "sigmoid", "sparsemixer", "uniform"]


@dataclass(frozen=True, slots=True)
class Routing:
    """How a token's experts follow from its logits, one per expert.

    The experts with the highest scores are chosen, and their scores weight what they compute. A softmax over the chosen
    experts' logits alone is a renormalised softmax over all of them.

    Attributes:
        num_experts, num_chosen: in total, and per token.
        score: ``softmax`` over all experts, ``sigmoid`` of each logit, ``sparsemixer`` (arXiv:2409.12136), or
            ``uniform``: numbers from 0 to 1 that a hash of a token's first logit draws, for measurements.
        renormalises: whether a token's weights are divided by their sum.
        scale: factor on the weights.
        is_corrected: whether a learned bias per expert is added to the scores in the choice, not in the weights.
        num_groups, num_open_groups: experts are chosen from the groups with the highest scores; 1 and 1 for no groups.
        num_ranked: a group's score is the sum of so many of its experts' highest scores.
        jitter: the sparse mixer's tolerance.
    """

    num_experts: int
    num_chosen: int
    score: Score = "softmax"
    renormalises: bool = False
    scale: float = 1.0
    is_corrected: bool = False
    num_groups: int = 1
    num_open_groups: int = 1
    num_ranked: int = 1
    jitter: float = 0.0


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """What an expert computes around its GEMMs, ``down(act(gate(x), up(x)))``.

    Attributes:
        activation: ``silu`` and ``gelu_tanh`` are ``act(gate) · up``; ``clamped_swiglu`` is
            ``gate · sigmoid(alpha · gate) · (up + 1)`` with gate and up at most ``limit``, and up at least ``-limit``;
            ``clamped_silu`` is ``silu(gate) · up`` with the same bounds; in ``swiglu_step``, not the gate but its
            ``silu`` is at most ``limit``.
        weighs_inputs: whether a token's weight scales what enters the expert instead of what leaves it.
    """

    activation: str
    alpha: float = 1.0
    limit: float = 0.0
    weighs_inputs: bool = False


@dataclass(frozen=True, slots=True)
class SeparateExperts:
    """A checkpoint with three tensors for each expert, ``experts.7.gate_proj.weight`` for example.

    Attributes:
        gate, up, down: names of an expert's layers.
    """

    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """A checkpoint with one tensor for all experts' gates and up projections, and one for all down projections.

    Attributes:
        gate_up, down: names of the tensors beside the router's module.
        is_transposed: whether a matrix is ``[in, out]``; otherwise it is ``[out, in]``.
        is_interleaved: whether outputs of gate and up projection alternate; otherwise all of the gate's come first.
        is_mxfp4: whether a tensor is stored as ``…_blocks`` of 4-bit numbers and ``…_scales``, ``[out, in]`` always.
    """

    gate_up: str = "experts.gate_up_proj"
    down: str = "experts.down_proj"
    is_transposed: bool = False
    is_interleaved: bool = False
    is_mxfp4: bool = False


@dataclass(frozen=True, slots=True)
class StackedParts:
    """A checkpoint with a tensor each for all gates, all up projections and all down projections, a matrix per expert.

    Attributes:
        gate, up, down: names of these layers, whose tensors have the expert as their first dimension.
    """

    gate: str
    up: str
    down: str


@dataclass(frozen=True, slots=True)
class RowExperts:
    """A checkpoint with a tensor each for all gates, all up projections and all down projections, ``[E · I, hidden]``.

    Attributes:
        gate, up, down: names of the tensors beside the router's module.
    """

    gate: str
    up: str
    down: str


class RoutedExperts(msgspec.Struct, array_like=True):
    """The experts that consecutive tokens chose, in the form that is sent between processes.

    Attributes:
        shape: tokens, layers, experts per token.
        data: int16 numbers of experts, −1 in layers without experts.
    """

    shape: list[int]
    data: bytes

    @classmethod
    def of(cls, experts: NDArray[np.int16]) -> "RoutedExperts":
        """From an array ``[tokens, layers, experts per token]``."""
        return cls(list(experts.shape), experts.tobytes())

    def array(self) -> NDArray[np.int16]:
        """The array, read-only."""
        return np.frombuffer(self.data, np.int16).reshape(self.shape)


ExpertStorage = SeparateExperts | StackedExperts | StackedParts | RowExperts
