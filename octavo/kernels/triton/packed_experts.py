"""Feed-forward experts whose weights stay quantised, as two grouped GEMMs; :mod:`.experts` has the terms.

Few pairs of an expert meet weights that are converted in registers, since reading them is what takes time; float8 ones
meet parts of values instead (:mod:`.value_parts`), without a conversion. Many pairs of float8 experts that were made
for it are rounded to float8 first, so that the tensor cores multiply twice as fast; a great many go to
:mod:`.experts_hopper`.

One or two tokens go another way (:mod:`.few_experts`). A token's bits depend on which of these a step takes, and on
nothing else of the other tokens.
"""

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
import triton

from octavo.errors import UnsupportedModelError
from octavo.kernels.experts import ExpertsOp
from octavo.kernels.packed_experts import PackedExperts, PackedMatrices
from octavo.kernels.pair_sum import PairSum
from octavo.kernels.triton.experts import PairOrder, order_pairs
from octavo.kernels.triton.experts_hopper import SPECIALISED_PAIRS, can_multiply, hopper_gemm
from octavo.kernels.triton.few_experts import with_few
from octavo.kernels.triton.launch import IS_INTERPRETED, dependent_launch, is_hopper
from octavo.kernels.triton.packed_experts_kernel import packed_experts_kernel
from octavo.kernels.triton.quantize import quantize_groups
from octavo.kernels.triton.unit_gemm import LARGEST_EXPONENT
from octavo.kernels.triton.value_parts import empty_parts, split_rows
from octavo.records.experts import ExpertSpec

ROUNDED_PAIRS = 16
"""Pairs of an expert, if they spread evenly, from which float8 activations are faster."""

_MAX_STEP = 128
_MAX_SPLIT_PAIRS = 32
"""Pairs of a tile up to which splitting them costs less than converting the weights."""


@dataclass(frozen=True, slots=True)
class PackedTile:
    """A program's work in a grouped GEMM.

    Attributes:
        block_m, block_n, block_k: pairs, outputs and input features.
        num_stages, num_warps: depth of the load pipeline; warps per program.
        is_specialised: whether :mod:`.experts_hopper` multiplies instead, if it supports the tensors.
    """

    block_m: int
    block_n: int
    block_k: int
    num_stages: int
    num_warps: int
    is_specialised: bool = False


def rounds_inputs(weights: PackedExperts, num_pairs: int) -> bool:
    """Whether so many pairs are rounded to float8."""
    num_experts = len(weights.down.codes)
    return weights.rounds_inputs and num_pairs >= ROUNDED_PAIRS * min(num_experts, num_pairs)


def splits_inputs(weights: PackedExperts, num_pairs: int, x: torch.Tensor) -> bool:
    """Whether so many pairs are multiplied in parts."""
    suits = all(weight.is_float8 and weight.has_one_group for weight in (weights.gate_up, weights.down))
    has_cores = IS_INTERPRETED or is_hopper(x.device)
    return (
        suits and has_cores and x.dtype is torch.bfloat16 and _most_pairs(weights.down, num_pairs) <= _MAX_SPLIT_PAIRS
    )


def _most_pairs(weight: PackedMatrices, num_pairs: int) -> float:
    """Of an expert, about, if they are drawn evenly."""
    per_expert = num_pairs / min(len(weight.codes), num_pairs)
    return per_expert + 1.5 * math.sqrt(per_expert)


def step_of(weight: PackedMatrices) -> int:
    """Input features of a step for any number of pairs; sums that are scaled have them within a group."""
    whole = weight.is_float4 or weight.is_nvfp4 or weight.has_one_group or weight.is_scaled
    return _MAX_STEP if whole else min(weight.group & -weight.group, _MAX_STEP)


def choose_tile(
    weight: PackedMatrices, num_pairs: int, *, is_gated: bool, is_rounded: bool, is_split: bool = False
) -> PackedTile:
    """A tile for a number of pairs, by how many of them an expert has if they spread evenly.

    Few pairs: the weights' bytes bound the GEMM, so programs are small, and several fit on a multiprocessor. Many:
    tiles are as large as registers allow, so that a weight that is converted meets many pairs. Sums that are scaled
    group by group, codes of 4 bits, and codes that are scaled, take registers, so that their tiles stay at 64 pairs.

    All tiles of a weight take the same steps, and the two GEMMs of a number of pairs have the same ``block_m``.
    """
    per_expert = num_pairs / min(len(weight.codes), num_pairs)
    most = _most_pairs(weight, num_pairs)
    block_k = step_of(weight)
    narrow = 32 if is_gated else 64
    if is_split:
        block_m = 8 if most <= 8 else 16 if most <= 16 else 32
        return PackedTile(block_m, narrow, block_k, 3 if block_m == 8 else 4, 4)
    if most <= 32:
        return PackedTile(16 if most <= 16 else 32, narrow, block_k, 4 if per_expert <= 1 else 3, 4)
    if most <= 64:
        return PackedTile(64, narrow, block_k, 3, 4)
    if is_rounded:
        block_m = 128 if weight.has_one_group and most > 128 else 64
        is_specialised = weight.has_one_group and per_expert >= SPECIALISED_PAIRS
        return PackedTile(block_m, 2 * narrow, block_k, 3, 4, is_specialised)
    if weight.bits == 4 or weight.is_scaled:
        return PackedTile(64, 2 * narrow, block_k, 3, 8)
    if most <= 128:
        return PackedTile(64, narrow, block_k, 3, 4)
    return PackedTile(128, 2 * narrow, block_k, 3, 8)


def make_packed_experts(
    codes: torch.Tensor, weights: PackedExperts, spec: ExpertSpec, *, deterministic: bool = False
) -> ExpertsOp:
    """A layer's experts; see :func:`octavo.kernels.packed_experts.make_packed_experts`.

    Raises:
        UnsupportedModelError: scales of 4-bit floats are too large.
    """
    for weight in (weights.gate_up, weights.down):
        if weight.is_float4 and int(weight.scales.max()) > LARGEST_EXPONENT:
            raise UnsupportedModelError(
                f"A scale of MXFP4 experts is 2**{int(weight.scales.max()) - 127}; the GPU's kernels take scales of up "
                f"to 2**{LARGEST_EXPONENT - 127}, and such weights are probably damaged."
            )
    if deterministic:
        return partial(packed_experts, weights=weights._replace(rounds_inputs=False), spec=spec)
    return with_few(partial(packed_experts, weights=weights, spec=spec, may_split=True), weights, spec)


def packed_experts(
    x: torch.Tensor,
    chosen: torch.Tensor,
    shares: torch.Tensor,
    weights: PackedExperts,
    spec: ExpertSpec,
    *,
    may_split: bool = False,
) -> PairSum:
    """The weighted sum of each token's experts; see :data:`octavo.kernels.experts.ExpertsOp`.

    Args:
        may_split: whether few pairs may be multiplied in parts, by other sums than more of them.
    """
    num_pairs = chosen.numel()
    results = x.new_empty(num_pairs, x.shape[1])
    total = PairSum(results, shares, is_weighted=not spec.weighs_inputs)
    if num_pairs == 0:
        return total
    is_rounded = rounds_inputs(weights, num_pairs)
    is_split = may_split and not is_rounded and splits_inputs(weights, num_pairs, x)
    up, down = (
        choose_tile(weight, num_pairs, is_gated=is_gated, is_rounded=is_rounded, is_split=is_split)
        for weight, is_gated in ((weights.gate_up, True), (weights.down, False))
    )
    down = replace(down, block_m=up.block_m)  # they share the order of pairs
    order = order_pairs(chosen, len(weights.down.codes), up.block_m)
    size = weights.down.num_inputs
    inner = empty_parts(x, num_pairs, size) if is_split else x.new_empty(num_pairs, size)
    x = split_rows(x) if is_split else x
    for inputs, weight, bias, y, tile, own_spec in (
        (x, weights.gate_up, weights.gate_up_bias, inner, up, spec),
        (inner, weights.down, weights.down_bias, results, down, None),
    ):
        values, scales = round_inputs(inputs, weight.group) if is_rounded else (inputs, None)
        packed_gemm(values, scales, weight, bias, shares, y, order, tile, own_spec)
    return total


def packed_gemm(
    x: torch.Tensor,
    x_scales: torch.Tensor | None,
    weight: PackedMatrices,
    bias: torch.Tensor | None,
    shares: torch.Tensor,
    y: torch.Tensor,
    order: PairOrder,
    tile: PackedTile,
    spec: ExpertSpec | None,
) -> None:
    """One GEMM for each expert's pairs.

    Args:
        x: with a ``spec`` ``[T, in]``, rows of tokens; otherwise ``[pairs, in]``, ordered by expert. Or their parts.
        x_scales: of float8 ``x``; see :func:`round_inputs`.
        bias: ``[E, out]`` or None.
        shares: ``[T, K]`` float32, which weight the tokens if ``spec`` says so.
        y: written: with a ``spec`` ``[pairs, out / 2]`` after the activation and ordered by expert, otherwise
            ``[pairs, out]`` by the pairs' numbers. With a ``spec``, or parts of it.
    """
    if tile.is_specialised and can_multiply(x, weight.codes, y):
        hopper_gemm(x, weight.codes, bias, shares, y, order, spec, x_scales, weight.scales)
        return
    num_outputs, num_features = y.shape[1], weight.num_inputs
    group = 0 if weight.has_one_group else weight.group
    packed_experts_kernel[triton.cdiv(num_outputs, tile.block_n), len(order.tiles)](
        x,
        x_scales,
        weight.codes,
        weight.scales.view(torch.uint8) if weight.is_nvfp4 else weight.scales,
        weight.zeros,
        weight.offsets,
        weight.factors,
        bias,
        shares,
        y,
        *order,
        num_outputs,
        num_features,
        weight.codes.shape[2],
        x.stride(0),
        shares.shape[1],
        1.0 if spec is None else spec.alpha,
        0.0 if spec is None else spec.limit,
        ACTIVATION="none" if spec is None else spec.activation,
        WEIGHS=spec is not None and spec.weighs_inputs,
        FORM=weight.form,
        GROUP=group,
        SCALED=weight.is_scaled,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        STAGES=tile.num_stages,
        EVEN_K=num_features % tile.block_k == 0,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **dependent_launch(x.device),
    )


def round_inputs(x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations in float8; see :func:`octavo.kernels.packed_experts.round_inputs`."""
    return quantize_groups(x, group)
