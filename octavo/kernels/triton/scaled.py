"""GEMMs of 8-bit values on NVIDIA GPUs: activations are rounded by Triton (:mod:`.quantize`).

Float8 (compute capability 8.9 and above) is multiplied by torch, and where rows are few by :mod:`.token_linear`,
:mod:`.linear_stream`, :mod:`.linear_specialised` and :mod:`octavo.kernels.cuda.gemm`; int8 by the kernel in
:mod:`.int8_kernel`.
"""

import torch

from octavo.kernels import scaled
from octavo.kernels.cuda.gemm import ClusterGemm
from octavo.kernels.cuda.gemm_tiles import GemmTile
from octavo.kernels.deferred_norm import DeferredNorm, WeightedRows
from octavo.kernels.linear import GATES, ComposedLinear, LinearOp, RoundedRows, RoundingLinearOp
from octavo.kernels.scaled import FLOAT8, INT8
from octavo.kernels.triton import linear_float8, linear_stream, token_linear
from octavo.kernels.triton.grouped import choose_parts
from octavo.kernels.triton.int8_kernel import BLOCK_K, int8_kernel
from octavo.kernels.triton.launch import aligned_rows, dependent_launch, is_hopper, num_multiprocessors
from octavo.kernels.triton.linear_specialised import SpecialisedTile, specialised_linear
from octavo.kernels.triton.linear_stream import StreamGemmTile
from octavo.kernels.triton.linear_workspace import Workspace, reserve_workspace
from octavo.kernels.triton.quantize import quantize_normed, quantize_rows
from octavo.kernels.triton.stream_sum import AddedStream, adds_rows

_LEAST_ROUNDED = 8192
"""Outputs of a row that a GEMM rounds; a launch that rounds fewer takes less than the GEMM's blocks need to meet."""


class Float8Linear(RoundingLinearOp):
    """The GEMM of one float8 weight: few rows of bfloat16 and float16 by Octavo's kernels on Hopper, else by torch's.

    Up to 8 rows are multiplied as they are: reading the weight takes so long that rounding them would save nothing. A
    single row may take a kernel of its own, which adds up products in another order.

    Args:
        weight: ``[out, in]`` float8.
        scales: ``[out]`` float32.
        bias: ``[out]`` or None.
        deterministic: whether all rows go one way, so that a row's bits do not depend on others: torch's.
    """

    writes_strided = True

    def __init__(
        self, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, *, deterministic: bool
    ) -> None:
        self._weight = weight
        self._scales = scales
        self._bias = bias
        # With a scale per row, torch's GEMM returns bfloat16 only, which has fewer bits than the other types.
        self._one = torch.ones((), device=weight.device)
        self._uses_kernels = (
            not deterministic
            and is_hopper(weight.device)
            and weight.is_contiguous()
            and scales.is_contiguous()
            and weight.shape[1] % 16 == 0
            and weight.data_ptr() % 16 == 0
        )
        self._num_sms = num_multiprocessors(weight.device) if self._uses_kernels else 0
        self._cluster_gemm = ClusterGemm(weight, scales, bias, num_sms=self._num_sms)
        num_weights, num_features = weight.shape
        self._takes_one = self._uses_kernels and token_linear.suits(num_weights, num_features, self._num_sms)
        self._space: Workspace | None = None

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """``[..., in] → [..., out]``, into ``out`` if it is given."""
        y = self._multiply(x.reshape(-1, x.shape[-1]), "none").view(*x.shape[:-1], len(self._scales))
        return y if out is None else out.copy_(y)

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """``act(y₁) · y₂`` for the two halves of the outputs: ``[T, in] → [T, out / 2]``."""
        y = self._multiply(x.reshape(-1, x.shape[-1]), activation)
        return y.view(*x.shape[:-1], len(self._scales) // 2)

    def normed(self, norm: DeferredNorm, activation: str = "none") -> torch.Tensor | None:
        """See :meth:`octavo.kernels.linear.LinearOp.normed`."""
        if norm.is_single:
            return self._stream(norm.x, activation, norm)
        is_few = norm.num_rows <= linear_stream.MAX_FLOAT8_ROWS
        if is_few and norm.weighted is not None:
            return self._stream(norm.weighted.values, activation, norm)
        if not self._uses_kernels or is_few or norm.is_computed or norm.dtype is not torch.bfloat16:
            return None
        x = _round(norm)
        return self._multiply_rounded(x.values, x.scales, x.dtype, activation)

    def added(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> WeightedRows | None:
        """See :meth:`octavo.kernels.linear.LinearOp.added`."""
        tile = self._choose_stream(x, "none") if adds_rows(x, residual, linear_stream.MAX_FLOAT8_ROWS) else None
        if tile is None:
            return None
        added = AddedStream.of(residual, weight, tile.num_programs(len(self._scales)))
        linear_stream.stream_linear(
            aligned_rows(x), self._weight, self._bias, residual, "none", tile, self._scales, added=added
        )
        return added.rows()

    def of_rounded(self, x: RoundedRows) -> torch.Tensor:
        """See :meth:`octavo.kernels.linear.RoundingLinearOp.of_rounded`."""
        return self._multiply_rounded(x.values, x.scales, x.dtype, "none")

    def gated_rounded(self, x: torch.Tensor | DeferredNorm, activation: str) -> RoundedRows | None:
        """See :meth:`octavo.kernels.linear.RoundingLinearOp.gated_rounded`."""
        rows, num_outputs = x.x if isinstance(x, DeferredNorm) else x, len(self._scales) // 2
        if not self._uses_kernels or num_outputs < _LEAST_ROUNDED or rows.dtype is not torch.bfloat16:
            return None
        tile = self._cluster_gemm.choose_rounding(len(rows), rows.dtype, is_gated=True)
        if tile is None:
            return None
        rounded = _round(x)
        y = RoundedRows.empty(len(rows), num_outputs, rows.dtype, rows.device)
        self._cluster_gemm.multiply(rounded.values, rounded.scales, None, activation, tile, rounded=y)
        return y

    def _multiply(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """``[M, in] → [M, out]``, or ``[M, out / 2]`` with an activation."""
        y = self._stream(x, activation)
        if y is not None:
            return y
        is_half = x.dtype is torch.float16
        if x.dtype is torch.bfloat16 or (is_half and self._choose(len(x), x.dtype, activation) is not None):
            return self._multiply_rounded(*quantize_rows(x), x.dtype, activation)
        y = scaled.in_parts(self._in_float32, x)
        return y if activation == "none" else GATES[activation](y)

    def _stream(self, x: torch.Tensor, activation: str, norm: DeferredNorm | None = None) -> torch.Tensor | None:
        """The same of few rows as they are; None of more."""
        tile = self._choose_stream(x, activation)
        if tile is None:
            return None
        y = x.new_empty(len(x), len(self._scales) // (1 if activation == "none" else 2))
        if len(x) == 1 and self._takes_one and x.dtype is torch.bfloat16:
            token_linear.token_linear(x.contiguous(), self._weight, self._scales, self._bias, y, activation, norm)
            return y
        linear_stream.stream_linear(aligned_rows(x), self._weight, self._bias, y, activation, tile, self._scales, norm)
        return y

    def _choose_stream(self, x: torch.Tensor, activation: str) -> StreamGemmTile | None:
        """The tile of the kernel for a few rows as they are; None if others multiply them."""
        if not self._uses_kernels or x.dtype not in (torch.bfloat16, torch.float16):
            return None
        is_gated = activation != "none"
        num_channels = len(self._scales) // (2 if is_gated else 1)
        return linear_stream.choose_float8_tile(
            len(x), num_channels, x.shape[1], is_gated=is_gated, num_sms=self._num_sms
        )

    def _choose(self, num_rows: int, dtype: torch.dtype, activation: str) -> GemmTile | SpecialisedTile | None:
        """The tile of Octavo's kernel for rounded rows and outputs of a type; None if torch multiplies them."""
        is_gated = activation != "none"
        if not self._uses_kernels or (is_gated and len(self._weight) % 16):
            return None
        return self._cluster_gemm.choose(num_rows, dtype, is_gated=is_gated) or linear_float8.choose_tile(
            num_rows, *self._weight.shape, num_sms=self._num_sms
        )

    def _multiply_rounded(
        self, values: torch.Tensor, row_scales: torch.Tensor, dtype: torch.dtype, activation: str
    ) -> torch.Tensor:
        """``[M, in] → [M, out]``, or ``[M, out / 2]`` with an activation, of rounded rows."""
        tile = self._choose(len(values), dtype, activation)
        if tile is None:
            assert dtype is torch.bfloat16, "torch's GEMM with a scale per row returns nothing else"
            y = torch._scaled_mm(
                values,
                self._weight.T,
                row_scales,
                self._scales[None],
                bias=self._bias,
                out_dtype=dtype,
                use_fast_accum=True,
            )
            return y if activation == "none" else GATES[activation](y)
        num_rows, num_weights = len(values), len(self._weight)
        y = values.new_empty(num_rows, num_weights // (1 if activation == "none" else 2), dtype=dtype)
        if isinstance(tile, GemmTile):
            self._cluster_gemm.multiply(values, row_scales, y, activation, tile)
            return y
        needed = tile.workspace(num_rows, num_weights)
        space = self._space = reserve_workspace(values.device, *needed, at_hand=self._space)
        specialised_linear(values, row_scales, self._weight, self._scales, self._bias, y, activation, tile, space)
        return y

    def _in_float32(self, x: torch.Tensor) -> torch.Tensor:
        values, row_scales = quantize_rows(x)
        y = torch._scaled_mm(
            values, self._weight.T, self._one, self._one, out_dtype=torch.float32, use_fast_accum=False
        )
        y = y.mul_(row_scales).mul_(self._scales)
        return (y if self._bias is None else y.add_(self._bias)).to(x.dtype)


def _round(x: torch.Tensor | DeferredNorm) -> RoundedRows:
    """Rows, or the rows of a norm, rounded by a launch."""
    if isinstance(x, torch.Tensor):
        return RoundedRows(*quantize_rows(x), x.dtype)
    if x.is_computed:
        return RoundedRows(*quantize_rows(x.rows()), x.dtype)
    return RoundedRows(*quantize_normed(x), x.dtype)


def float8_linear(
    weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, *, deterministic: bool
) -> tuple[LinearOp, bool]:
    """A GEMM of float8 values; see :func:`octavo.kernels.scaled.float8_linear`."""
    if weight.dtype is not FLOAT8:
        return scaled.float8_linear.reference(weight, scales, bias, deterministic=deterministic)
    return Float8Linear(weight, scales, bias, deterministic=deterministic), False


_MAX_PARTED_ROWS = 64
"""Beyond so many rows, there are tiles enough for all multiprocessors, and each program adds up whole sums."""


class Int8Linear:
    """The GEMM of one int8 weight, ``[..., in] → [..., out]``. Sums are exact, however they are divided."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._scales = scales
        self._bias = bias
        num_outputs, num_inputs = weight.shape
        self._num_parts = choose_parts(num_outputs, -(-num_inputs // BLOCK_K), num_multiprocessors(weight.device))
        self._space: Workspace | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        values, row_scales = quantize_rows(x.reshape(-1, x.shape[-1]), INT8)
        num_rows, num_inputs = values.shape
        num_outputs = len(self._weight)
        y = x.new_empty(num_rows, num_outputs)
        if num_rows:
            is_few = num_rows <= _MAX_PARTED_ROWS
            block_m = 16 if num_rows <= 16 else 32 if num_rows <= 32 else 64 if is_few else 128
            block_n = 64 if is_few else 128
            tiles_n, tiles_m = -(-num_outputs // block_n), -(-num_rows // block_m)
            num_parts = self._num_parts if is_few else 1
            needed = (num_parts * num_rows * tiles_n * block_n, tiles_n * tiles_m) if num_parts > 1 else (0, 0)
            space = self._space = reserve_workspace(x.device, *needed, at_hand=self._space)
            int8_kernel[(tiles_m * tiles_n, num_parts)](
                values,
                row_scales,
                self._weight,
                self._scales,
                self._bias,
                y,
                space.partials.view(torch.int32),
                space.arrivals,
                num_rows,
                num_outputs,
                num_inputs,
                num_parts,
                BLOCK_M=block_m,
                BLOCK_N=block_n,
                BLOCK_K=BLOCK_K,
                IS_EVEN=num_inputs % BLOCK_K == 0,
                SPLIT=num_parts > 1,
                num_warps=4 if is_few else 8,
                num_stages=4,
                **dependent_launch(x.device),
            )
        return y.view(*x.shape[:-1], num_outputs)


def int8_linear(weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> tuple[LinearOp, bool]:
    """A GEMM of int8 values; see :func:`octavo.kernels.scaled.int8_linear`."""
    return ComposedLinear(Int8Linear(weight, scales, bias)), False
