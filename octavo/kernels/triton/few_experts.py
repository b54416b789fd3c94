"""Experts of a few tokens: every pair reads its expert's weights by itself.

With one token no two pairs share an expert, and with two hardly any do: so pairs need no order, and products that are
as narrow as a pair need no tensor cores. Weights go from memory into registers in 16-byte units, all of a program's at
once, which keeps more bytes in flight than a pipeline through shared memory. The second kernel adds up a token's
experts, in their order, and asks for its weights while the first one still runs.

On GPUs, weights of 4 bits go to the tensor cores instead (:mod:`.unit_gemm`), since unpacking them takes most of the
time, and so do float8 weights of a single token (:mod:`.token_experts`). A token's bits do not depend on the other
tokens, but differ from those of the grouped GEMMs.
"""

from typing import NamedTuple

import torch
import triton

from octavo.kernels.experts import ExpertsOp, ExpertWeights
from octavo.kernels.packed_experts import PackedExperts, PackedMatrices
from octavo.kernels.pair_sum import PairSum
from octavo.kernels.triton import token_experts, unit_gemm
from octavo.kernels.triton.few_experts_kernel import few_down_kernel, few_up_kernel
from octavo.kernels.triton.launch import aligned_rows, dependent_launch
from octavo.records.experts import ExpertSpec

MAX_FEW_TOKENS = 2
"""Tokens up to which this is faster than grouped GEMMs."""

_UNIT_BYTES = 16


class FewTile(NamedTuple):
    """A program's work.

    Attributes:
        rows: outputs, of the second kernel for each expert.
        units: 16-byte units of a row that are loaded at once.
        num_experts: experts whose weights are loaded at once, by the second kernel.
    """

    rows: int
    units: int
    num_experts: int
    num_warps: int


def choose_up_tile(row_bytes: int, form: str) -> FewTile:
    """A tile of the first kernel for weights' rows of a number of bytes; tuned on an H200."""
    units = min(triton.next_power_of_2(row_bytes // _UNIT_BYTES), 128)
    return FewTile(2 if form == "plain" else max(512 // units, 4), units, 1, 4)


def choose_down_tile(row_bytes: int, form: str, num_chosen: int) -> FewTile:
    """A tile of the second kernel for weights' rows of a number of bytes; tuned on an H200."""
    units = min(triton.next_power_of_2(row_bytes // _UNIT_BYTES), 256)
    num_experts, rows = min(num_chosen, 4 if form == "plain" else 8), 4
    # Loads before the wait stay in registers, and codes of 4 bits take more of them afterwards.
    most = 1024 if form.endswith("4") or units > 128 else 2048
    while num_experts * rows * units > most and rows > 2:
        rows //= 2
    while num_experts * rows * units > most and num_experts > 1:
        num_experts //= 2
    return FewTile(rows, units, num_experts, 4)


def with_few(many: ExpertsOp, weights: PackedExperts | ExpertWeights, spec: ExpertSpec) -> ExpertsOp:
    """``many``, but for so few tokens that it would be slower."""
    units = weights if isinstance(weights, PackedExperts) and unit_gemm.reads_experts(weights) else None
    if units is None and not takes(weights):
        return many

    def run(x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor | PairSum:
        num_tokens = len(x)
        if units is not None and 0 < num_tokens <= unit_gemm.MAX_TOKENS and _takes_units(x, units):
            return unit_gemm.unit_experts(x, chosen, shares, units, spec)
        if 0 < num_tokens <= MAX_FEW_TOKENS:
            return few_experts(x, chosen, shares, weights, spec)
        return many(x, chosen, shares)

    if isinstance(weights, PackedExperts) and token_experts.reads(weights):
        return token_experts.TokenExperts(run, weights, spec)
    return run


def _takes_units(x: torch.Tensor, weights: PackedExperts) -> bool:
    """Whether tensor cores multiply both weights, whose forms may differ, by such inputs."""
    return all(unit_gemm.can_multiply(x, weight.form) for weight in (weights.gate_up, weights.down))


def takes(weights: PackedExperts | ExpertWeights) -> bool:
    """Whether rows consist of 16-byte units, each within a group of inputs."""
    return all(_has_units(weight) for weight in (weights.gate_up, weights.down))


def _has_units(weight: PackedMatrices | torch.Tensor) -> bool:
    if isinstance(weight, torch.Tensor):
        return weight.element_size() == 2 and weight.shape[2] * 2 % _UNIT_BYTES == 0
    has_groups = weight.is_nvfp4 or weight.group % (_UNIT_BYTES * 8 // weight.bits) == 0
    return weight.codes.shape[2] % _UNIT_BYTES == 0 and has_groups


def few_experts(
    x: torch.Tensor,
    chosen: torch.Tensor,
    shares: torch.Tensor,
    weights: PackedExperts | ExpertWeights,
    spec: ExpertSpec,
    up_tile: FewTile | None = None,
    down_tile: FewTile | None = None,
) -> torch.Tensor:
    """The weighted sum of each token's experts; see :data:`octavo.kernels.experts.ExpertsOp`."""
    num_tokens, num_chosen = chosen.shape
    up, down = (_Weight.of(weight) for weight in (weights.gate_up, weights.down))
    hidden, size = down.codes.shape[1], up.codes.shape[1] // 2
    rows = aligned_rows(x)
    inner = x.new_empty(num_tokens * num_chosen, size)
    y = x.new_empty(num_tokens, hidden)
    up_tile = up_tile or choose_up_tile(up.row_bytes, up.form)
    down_tile = down_tile or choose_down_tile(down.row_bytes, down.form, num_chosen)
    few_up_kernel[triton.cdiv(size, up_tile.rows), num_tokens * num_chosen](
        rows,
        chosen,
        shares,
        up.codes,
        up.scales,
        up.zeros,
        up.offsets,
        up.factors,
        weights.gate_up_bias,
        inner,
        size,
        up.row_bytes // _UNIT_BYTES,
        up.codes.stride(1),
        rows.stride(0),
        num_chosen,
        spec.alpha,
        spec.limit,
        ACTIVATION=spec.activation,
        WEIGHS=spec.weighs_inputs,
        FORM=up.form,
        GROUP=up.group,
        ROWS=up_tile.rows,
        UNITS=up_tile.units,
        num_warps=up_tile.num_warps,
        **dependent_launch(x.device),
    )
    few_down_kernel[triton.cdiv(hidden, down_tile.rows), num_tokens](
        inner,
        chosen,
        shares,
        down.codes,
        down.scales,
        down.zeros,
        down.offsets,
        down.factors,
        weights.down_bias,
        y,
        hidden,
        down.row_bytes // _UNIT_BYTES,
        down.codes.stride(1),
        size,
        WEIGHS=not spec.weighs_inputs,
        FORM=down.form,
        GROUP=down.group,
        NUM_CHOSEN=num_chosen,
        AT_ONCE=down_tile.num_experts,
        ROWS=down_tile.rows,
        UNITS=down_tile.units,
        num_warps=down_tile.num_warps,
        **dependent_launch(x.device),
    )
    return y


class _Weight(NamedTuple):
    """A weight as the kernels take it; ``group`` counts units, and is 0 if all share a scale, 1 if halves have one."""

    codes: torch.Tensor
    scales: torch.Tensor | None
    zeros: torch.Tensor | None
    form: str
    group: int
    offsets: torch.Tensor | None = None
    factors: torch.Tensor | None = None

    @classmethod
    def of(cls, weight: PackedMatrices | torch.Tensor) -> "_Weight":
        if isinstance(weight, torch.Tensor):
            return cls(weight, None, None, "plain", 0)
        if weight.is_nvfp4:
            scales = weight.scales.view(torch.uint8)
            return cls(weight.codes, scales, None, weight.form, 1, factors=weight.factors)
        group = weight.group * weight.bits // (8 * _UNIT_BYTES)
        group = 0 if weight.has_one_group else group
        return cls(weight.codes, weight.scales, weight.zeros, weight.form, group, weight.offsets)

    @property
    def row_bytes(self) -> int:
        return self.codes.shape[2] * self.codes.element_size()
