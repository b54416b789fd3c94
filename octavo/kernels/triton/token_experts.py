"""Float8 experts of a single token on Hopper's tensor cores, which multiply float8 by float8 without conversions.

Two launches: one for the gates and up projections of all pairs, one that adds up the token's experts, and that asks for
its weights while the first one still runs. TMA puts weights into shared memory, most of a program's at once, and
whatever the programs multiply is in parts (:mod:`.token_tiles`). The first one makes the choice as well if the router
left that (:mod:`.token_choice`).
"""

from typing import Any

import torch
import triton

from octavo.kernels.deferred_choice import Chosen, DeferredChoice
from octavo.kernels.experts import ChoosingExperts, ExpertsOp
from octavo.kernels.packed_experts import PackedExperts, PackedMatrices
from octavo.kernels.pair_sum import PairSum
from octavo.kernels.triton.hopper_tiles import tile_descriptor
from octavo.kernels.triton.launch import aligned_rows, dependent_launch, is_hopper, num_multiprocessors
from octavo.kernels.triton.token_experts_kernel import OUTPUTS_OF_TILE, token_down_kernel, token_up_kernel
from octavo.kernels.triton.token_tiles import ROWS, WIDTH, sliced_descriptor
from octavo.kernels.triton.value_parts import empty_parts
from octavo.records.experts import ExpertSpec

_SLICES = 4
"""Slices of the inputs in the first kernel."""
_SLOTS = 2
"""Tiles of weights in shared memory of the first kernel."""
_LAST_TILES = 4
"""Tiles of a program of the first kernel that are left when the second one may start and request its weights."""
_MAX_BYTES = 160 << 10
"""Of weights in shared memory."""
_MAX_LOGITS = 4096
"""Parts of logits that a program adds up, which are all in registers."""


def reads(weights: PackedExperts) -> bool:
    """Whether the kernels take experts: float8 values with a scale per output, without biases."""
    up, down = weights.gate_up, weights.down
    return (
        weights.gate_up_bias is None
        and weights.down_bias is None
        and all(weight.is_float8 and weight.has_one_group and _is_aligned(weight) for weight in (up, down))
        and up.num_inputs % WIDTH.value == 0
        and down.num_inputs % ROWS.value == 0
        and _SLOTS * _tile_bytes(up.num_inputs) <= _MAX_BYTES
    )


class TokenExperts(ChoosingExperts):
    """These kernels for a single token, and other ones for more.

    Args:
        others: the same experts for what the kernels do not take.
        weights: such that :func:`reads` them.
    """

    def __init__(self, others: ExpertsOp, weights: PackedExperts, spec: ExpertSpec) -> None:
        self._others = others
        self._weights = weights
        self._spec = spec

    def __call__(self, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor | PairSum:
        """See :data:`octavo.kernels.experts.ExpertsOp`."""
        if can_multiply(x, chosen.shape[1], self._weights):
            return token_experts(x, (chosen, shares), self._weights, self._spec)
        return self._others(x, chosen, shares)

    def choose_and_run(self, x: torch.Tensor, choice: DeferredChoice) -> torch.Tensor | PairSum:
        """See :class:`octavo.kernels.experts.ChoosingExperts`."""
        if can_choose(choice) and can_multiply(x, choice.routing.num_chosen, self._weights):
            return token_experts(x, choice, self._weights, self._spec)
        return self(x, *choice)


def can_multiply(x: torch.Tensor, num_chosen: int, weights: PackedExperts) -> bool:
    """Whether the kernels compute so many experts of a token, if they take the weights."""
    has_room = num_chosen * _tile_bytes(weights.down.num_inputs) <= _MAX_BYTES
    is_taken = is_hopper(x.device) and x.dtype is torch.bfloat16
    return len(x) == 1 and is_taken and num_chosen % 4 == 0 and has_room


def can_choose(choice: DeferredChoice) -> bool:
    """Whether the kernels choose by such logits: without groups of experts, and if registers hold all parts."""
    routing, num_parts = choice.routing, len(choice.logits)
    is_common = routing.score in ("softmax", "sigmoid", "uniform") and routing.num_open_groups == routing.num_groups
    return is_common and num_parts * triton.next_power_of_2(routing.num_experts) <= _MAX_LOGITS


def token_experts(
    x: torch.Tensor, choice: Chosen | DeferredChoice, weights: PackedExperts, spec: ExpertSpec
) -> torch.Tensor:
    """The weighted sum of a single token's experts; see :data:`octavo.kernels.experts.ExpertsOp`.

    Args:
        choice: that :func:`can_choose` takes if it is deferred.
    """
    up, down = weights.gate_up, weights.down
    hidden, size = down.codes.shape[1:]
    chosen, shares, places, terms, constants = _choice_arguments(choice)
    num_pairs = len(shares)
    inner = empty_parts(x, num_pairs, size)
    y = torch.empty(1, hidden, dtype=x.dtype, device=x.device)
    num_programs = min(num_pairs * (size // OUTPUTS_OF_TILE.value), num_multiprocessors(x.device))
    token_up_kernel[(num_programs,)](
        sliced_descriptor(up.codes.view(-1, size, hidden), _box_slices(hidden), 2),
        aligned_rows(x),
        chosen,
        shares,
        places,
        *terms,
        up.scales,
        inner,
        spec.alpha,
        spec.limit,
        K=hidden,
        OUTPUTS=size,
        PAIRS=num_pairs,
        PROGRAMS=num_programs,
        **constants,
        SLOTS=_SLOTS,
        LAST=_LAST_TILES,
        ACTIVATION=spec.activation,
        WEIGHS=spec.weighs_inputs,
        num_warps=_SLICES,
        **dependent_launch(x.device),
    )
    num_slices = 8 if num_pairs % 8 == 0 else 4
    token_down_kernel[(hidden // ROWS.value,)](
        tile_descriptor(down.codes.flatten(0, 1), (ROWS.value, WIDTH.value)),
        inner,
        chosen,
        shares,
        places,
        down.scales,
        y,
        hidden,
        K=size,
        PAIRS=num_pairs,
        SLICES=num_slices,
        WEIGHS=not spec.weighs_inputs,
        num_warps=num_slices,
        **dependent_launch(x.device),
    )
    return y


def _choice_arguments(choice: Chosen | DeferredChoice) -> tuple[Any, ...]:
    """Experts, their shares and places, what the first kernel chooses by, and its constants for that."""
    if isinstance(choice, DeferredChoice):
        routing, logits = choice.routing, choice.logits
        shares = torch.empty(routing.num_chosen, dtype=torch.float32, device=logits.device)
        terms = (logits, choice.bias, choice.correction, routing.scale)
        constants: dict[str, int | str] = {
            "EXPERTS": routing.num_experts,
            "LOGIT_PARTS": len(logits),
            "SCORE": routing.score,
            "RENORMALISES": routing.renormalises,
        }
        return None, shares, choice.places, terms, constants
    chosen, shares = choice
    constants = {"EXPERTS": 0, "LOGIT_PARTS": 0, "SCORE": "", "RENORMALISES": False}
    return chosen[0], shares[0], None, (None, None, None, 1.0), constants


def _box_slices(num_inputs: int) -> int:
    """Slices that the first kernel requests at once: a power of two of blocks, which divides their number."""
    num_blocks = triton.cdiv(num_inputs, WIDTH.value * _SLICES)
    return _SLICES * (num_blocks & -num_blocks)


def _tile_bytes(num_inputs: int) -> int:
    """Of a tile's weights in shared memory, of one expert."""
    return triton.cdiv(num_inputs, WIDTH.value) * WIDTH.value * ROWS.value


def _is_aligned(weight: PackedMatrices) -> bool:
    return weight.codes.is_contiguous() and weight.scales.is_contiguous() and weight.codes.data_ptr() % 16 == 0
