"""Feed-forward experts as two grouped GEMMs, without waiting for the device.

Terms: a *pair* is a token and one of its experts, numbered ``token · K + place``. Pairs are ordered by expert, and cut
into row tiles of one expert each. The first GEMM gathers the tokens of its tiles and applies the gate, the second one
scatters its results back to the pairs' numbers, and a sum over each token's pairs, in their order, ends it; it is left
to whatever reads it.

One or two tokens go another way (:mod:`.few_experts`), unless results must not depend on the batch.

No result depends on how pairs are tiled: each program sums over the input features in one order, and the tensor cores
take the weights' rows in the same units for every size of tile.
"""

import math
from functools import partial
from typing import NamedTuple

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from octavo.kernels.experts import ExpertsOp, ExpertWeights
from octavo.kernels.pair_sum import PairSum
from octavo.kernels.triton.experts_hopper import SPECIALISED_PAIRS, can_multiply, hopper_gemm
from octavo.kernels.triton.experts_kernel import count_kernel, experts_kernel, order_kernel
from octavo.kernels.triton.few_experts import with_few
from octavo.kernels.triton.launch import dependent_launch, has_tma
from octavo.records.experts import ExpertSpec

_ORDER_BLOCK, _SHORT_ORDER_BLOCK = 1024, 128
_NUM_CHUNKS = 16
_MAX_COUNTED_PAIRS = 2048
"""Pairs up to which each program that orders them also counts them."""

_TMA_PAIRS = 512
"""Pairs of an expert from which narrower gate and up tiles by TMA are faster, measured with 256 to 1024 of them."""


class ExpertTile(NamedTuple):
    """A program's work in a grouped GEMM.

    Attributes:
        block_m, block_n, block_k: pairs, outputs and input features.
        num_stages, num_warps: depth of the load pipeline; warps per program.
        is_joined: whether rows of the gate and of the up projection share a tile of 64 rows.
        uses_descriptors: whether tiles are loaded by TMA, if the tensors' rows are aligned for it.
        is_specialised: whether :mod:`.experts_hopper` multiplies instead, if it supports the tensors.
    """

    block_m: int
    block_n: int
    block_k: int
    num_stages: int
    num_warps: int
    is_joined: bool = False
    uses_descriptors: bool = False
    is_specialised: bool = False


class PairOrder(NamedTuple):
    """Pairs by expert, cut into row tiles.

    Attributes:
        pairs: ``[T·K]`` int32, in the order of their experts.
        tiles: ``[≥tiles, 3]`` int32: expert, and the first and the end place of a tile in ``pairs``.
        num_tiles: ``[1]`` int32.
    """

    pairs: torch.Tensor
    tiles: torch.Tensor
    num_tiles: torch.Tensor


def choose_tile(num_pairs: int, num_experts: int, itemsize: int, *, is_gated: bool, has_tma: bool = True) -> ExpertTile:
    """A tile for a number of pairs, by how many of them an expert has if they spread evenly.

    Few pairs: the weights' bytes bound the GEMM, so tiles hold most experts' pairs at once and are so small that
    several programs fit on a multiprocessor: while one starts, the others read. With one pair per expert, there are
    too few programs for that, and a deep pipeline takes its place. Many: tiles are as large as registers allow,
    and without TMA (``has_tma``) as large as an older device's shared memory. Hopper has a kernel of its own for them.
    """
    per_expert = num_pairs / min(num_experts, num_pairs)
    most = per_expert + 1.5 * math.sqrt(per_expert)  # the spread of even draws
    block_k = 256 // itemsize
    if per_expert <= 1:
        return ExpertTile(16, 64, block_k, 4, 4)
    if most <= 32:
        return ExpertTile(16 if most <= 16 else 32, 32 if is_gated else 64, block_k, 3, 4, is_joined=is_gated)
    if most <= 64 or itemsize == 4:
        return ExpertTile(64, 64, block_k // 2, 4, 4)
    if not has_tma:
        return ExpertTile(128, 64 if is_gated else 128, block_k // 2, 4, 8)
    is_specialised = per_expert >= SPECIALISED_PAIRS
    if is_gated and per_expert < _TMA_PAIRS:
        return ExpertTile(128, 128, block_k // 2, 4, 8, is_specialised=is_specialised)
    return ExpertTile(
        128, 64 if is_gated else 128, block_k // 2, 3, 4, uses_descriptors=True, is_specialised=is_specialised
    )


def make_experts(
    gate_up: torch.Tensor, weights: ExpertWeights, spec: ExpertSpec, *, deterministic: bool = False
) -> ExpertsOp:
    """A layer's experts; see :func:`octavo.kernels.experts.make_experts`."""
    many = partial(experts_mlp, weights=weights, spec=spec)
    return many if deterministic else with_few(many, weights, spec)


def experts_mlp(
    x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor, weights: ExpertWeights, spec: ExpertSpec
) -> PairSum:
    """The weighted sum of each token's experts; see :data:`octavo.kernels.experts.ExpertsOp`."""
    num_tokens, num_chosen = chosen.shape
    num_experts, hidden, size = weights.down.shape
    num_pairs = num_tokens * num_chosen
    results = x.new_empty(num_pairs, hidden)
    total = PairSum(results, shares, is_weighted=not spec.weighs_inputs)
    if num_tokens == 0:
        return total
    up, down = (
        choose_tile(num_pairs, num_experts, x.element_size(), is_gated=is_gated, has_tma=has_tma(x.device))
        for is_gated in (True, False)
    )
    order = order_pairs(chosen, num_experts, up.block_m)
    inner = x.new_empty(num_pairs, size)
    grouped_gemm(x, weights.gate_up, weights.gate_up_bias, shares, inner, order, up, spec)
    grouped_gemm(inner, weights.down, weights.down_bias, shares, results, order, down, None)
    return total


def order_pairs(chosen: torch.Tensor, num_experts: int, block_m: int) -> PairOrder:
    """Order pairs by expert; of one expert, by their numbers.

    Args:
        chosen: ``[T, K]`` int64, contiguous.
        block_m: pairs in a row tile.
    """
    num_pairs = chosen.numel()
    most_tiles = num_pairs // block_m + min(num_experts, num_pairs)
    order = PairOrder(
        torch.empty(num_pairs, dtype=torch.int32, device=chosen.device),
        torch.empty(most_tiles, 3, dtype=torch.int32, device=chosen.device),
        torch.empty(1, dtype=torch.int32, device=chosen.device),
    )
    num_bins, pdl = triton.next_power_of_2(num_experts), dependent_launch(chosen.device)
    block = _ORDER_BLOCK if num_pairs > _SHORT_ORDER_BLOCK else _SHORT_ORDER_BLOCK
    counts, num_chunks, chunk_size = None, 1, num_pairs
    if num_pairs > _MAX_COUNTED_PAIRS:
        num_chunks = _NUM_CHUNKS
        chunk_size = triton.cdiv(num_pairs, num_chunks)
        counts = torch.empty(num_chunks, num_bins, dtype=torch.int32, device=chosen.device)
        count_kernel[(num_chunks,)](
            chosen, counts, num_pairs, chunk_size, NUM_BINS=num_bins, BLOCK=block, num_warps=4, **pdl
        )
    order_kernel[num_experts, num_chunks](
        chosen,
        counts,
        *order,
        num_pairs,
        chunk_size,
        NUM_CHUNKS=num_chunks,
        NUM_BINS=num_bins,
        BLOCK=block,
        BLOCK_M=block_m,
        num_warps=4,
        **pdl,
    )
    return order


def grouped_gemm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    shares: torch.Tensor,
    y: torch.Tensor,
    order: PairOrder,
    tile: ExpertTile,
    spec: ExpertSpec | None,
) -> None:
    """One GEMM for each expert's pairs.

    Args:
        x: with a ``spec`` ``[T, in]``, rows of tokens; otherwise ``[pairs, in]``, ordered by expert.
        weight: ``[E, out, in]`` contiguous; with a ``spec``, gates and up projections.
        bias: ``[E, out]`` or None.
        shares: ``[T, K]`` float32, which weight the tokens if ``spec`` says so.
        y: written: with a ``spec`` ``[pairs, out / 2]`` after the activation and ordered by expert, otherwise
            ``[pairs, out]`` by the pairs' numbers.
    """
    if tile.is_specialised and can_multiply(x, weight, y):
        hopper_gemm(x, weight, bias, shares, y, order, spec)
        return
    num_outputs, num_features = y.shape[1], weight.shape[2]
    grid = (triton.cdiv(num_outputs, tile.block_n), len(order.tiles))
    weight_tiles = x_tiles = None
    if tile.uses_descriptors and num_features * x.element_size() % 16 == 0 and weight.data_ptr() % 16 == 0:
        weight_tiles = TensorDescriptor.from_tensor(weight.flatten(0, 1), [tile.block_n, tile.block_k])
        x_tiles = TensorDescriptor.from_tensor(x, [tile.block_m, tile.block_k]) if spec is None else None
    experts_kernel[grid](
        x,
        weight,
        weight_tiles,
        x_tiles,
        bias,
        shares,
        y,
        *order,
        num_outputs,
        num_features,
        x.stride(0),
        shares.shape[1],
        1.0 if spec is None else spec.alpha,
        0.0 if spec is None else spec.limit,
        ACTIVATION="none" if spec is None else spec.activation,
        WEIGHS=spec is not None and spec.weighs_inputs,
        JOINED=spec is not None and tile.is_joined,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        STAGES=tile.num_stages,
        EVEN_K=num_features % tile.block_k == 0,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **dependent_launch(x.device),
    )
