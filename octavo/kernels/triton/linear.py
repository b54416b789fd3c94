"""Small-M GEMMs ``y = x Wᵀ``, bound by the memory bandwidth at which ``W`` can be read.

:class:`SmallBatchLinear` holds one weight and chooses a kernel by the number of rows: :mod:`linear_stream` up to 16 or
32, :mod:`octavo.kernels.cuda.gemm` up to a few hundred, :mod:`linear_kernel` for wide or deterministic GEMMs, else the
vendor's library.
"""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from triton.tools.tensor_descriptor import TensorDescriptor

from octavo.kernels.cuda.gemm import SUMMED_CHANNELS, ClusterGemm
from octavo.kernels.cuda.gemm_tiles import GemmTile
from octavo.kernels.deferred_norm import DeferredNorm, WeightedRows
from octavo.kernels.linear import GATES, LinearOp
from octavo.kernels.triton.launch import (
    IS_INTERPRETED,
    aligned_rows,
    dependent_launch,
    is_hopper,
    num_multiprocessors,
)
from octavo.kernels.triton.linear_kernel import linear_kernel
from octavo.kernels.triton.linear_normed_rows import normed_rows_linear, norms_rows
from octavo.kernels.triton.linear_plan import WIDE_CHANNELS, LinearPlan, choose_plan
from octavo.kernels.triton.linear_stream import (
    MAX_ADDED_ROWS,
    MAX_FLOAT8_ROWS,
    StreamGemmTile,
    choose_tile,
    stream_linear,
)
from octavo.kernels.triton.linear_workspace import Workspace, reserve_workspace
from octavo.kernels.triton.stream_sum import AddedStream, adds_rows
from octavo.platforms import compute_capability

KernelChoice = LinearPlan | StreamGemmTile | GemmTile
Choice = KernelChoice | None
"""The kernel's configuration for a GEMM; None is the vendor's library."""

_MAX_CLUSTER_ROWS = 256
"""That clusters add to the residual stream; with more, a norm is a small part."""
_MAX_WIDE_ROWS = 128
"""With more rows of wide GEMMs, clusters are no faster than the library."""


@functools.cache
def is_supported(device: torch.device) -> bool:
    """Whether the kernels suit a device: they are tuned for Hopper's tensor cores and shared memory."""
    return IS_INTERPRETED or compute_capability(device)[0] == 9


def defers_norms(device: torch.device, x: torch.Tensor) -> bool:
    """Whether GEMMs norm ``x`` as they read or round it; see :func:`octavo.kernels.deferred_norm.defers_norms`."""
    has_kernels = is_supported(device) and not IS_INTERPRETED  # which does not run Gluon kernels
    # Float8 GEMMs norm rows as they round them, but for a few, which they multiply as they are.
    has_normed = len(x) == 1 or len(x) > MAX_FLOAT8_ROWS
    return has_kernels and ((has_normed and x.dtype in (torch.bfloat16, torch.float16)) or norms_rows(x.shape, x.dtype))


class SmallBatchLinear(LinearOp):
    """``y = x Wᵀ (+ bias)`` for a constant weight: few rows by Octavo's kernels, many by the vendor's library.

    Args:
        weight: ``[N, K]`` contiguous; bfloat16 and float16 use the kernels.
        bias: ``[N]`` or None.
        deterministic: split sums in the same way for any number of rows, so that a row's bits do not depend on others.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, *, deterministic: bool = False) -> None:
        self.weight = weight
        self.bias = bias
        self.deterministic = deterministic
        # Prefetches and asynchronous copies need rows aligned to 16 bytes.
        self._uses_kernels = (
            is_supported(weight.device)
            and weight.dtype in (torch.bfloat16, torch.float16)
            and weight.is_contiguous()
            and weight.shape[1] % 8 == 0
            and weight.data_ptr() % 16 == 0
        )
        self._num_sms = num_multiprocessors(weight.device) if self._uses_kernels else 0
        self._cluster_gemm: ClusterGemm | None = None
        if self._uses_kernels and is_hopper(weight.device) and not deterministic:
            self._cluster_gemm = ClusterGemm(weight, None, bias, num_sms=self._num_sms)
        self._choices: dict[tuple[int, bool], Choice] = {}
        self._space: Workspace | None = None

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """``[..., K] → [..., N]``, into the contiguous ``out`` if it is given."""
        rows = x.reshape(-1, x.shape[-1])
        choice = self.choose(len(rows), is_gated=False)
        if choice is None:
            return self._by_library(x, out)
        return self.launch(rows, choice, "none", out).view(*x.shape[:-1], self.weight.shape[0])

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """``act(x W₁ᵀ) · (x W₂ᵀ)`` for a weight of two halves: ``[..., K] → [..., N / 2]``.

        Args:
            activation: "silu" or "gelu_tanh".
        """
        rows = x.reshape(-1, x.shape[-1])
        choice = self.choose(len(rows), is_gated=True)
        if choice is None:
            return GATES[activation](F.linear(x, self.weight, self.bias))
        return self.launch(rows, choice, activation).view(*x.shape[:-1], self.weight.shape[0] // 2)

    def normed(self, norm: DeferredNorm, activation: str = "none") -> torch.Tensor | None:
        """See :meth:`.linear.LinearOp.normed`."""
        choice = self.choose(norm.num_rows, is_gated=activation != "none")
        if isinstance(choice, GemmTile) and norm.weighted is not None and norm.weighted.squares.shape[1] % 4 == 0:
            return self.launch(norm.weighted.values, choice, activation, norm=norm)
        if not isinstance(choice, StreamGemmTile):  # a deterministic GEMM's, or a vocabulary's
            return None
        if norm.is_single:
            return self.launch(norm.x, choice, activation, norm=norm)
        if norm.weighted is not None and norm.num_rows <= MAX_ADDED_ROWS:
            return self.launch(norm.weighted.values, choice, activation, norm=norm)
        if not norms_rows((norm.num_rows, len(norm.weight)), norm.dtype) or norm.dtype != self.weight.dtype:
            return None
        x = aligned_rows(norm.x)
        y = x.new_empty(len(x), self.weight.shape[0] // (1 if activation == "none" else 2))
        normed_rows_linear(norm, x, self.weight, self.bias, y, activation)
        return y

    def added(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> WeightedRows | None:
        """See :meth:`.linear.LinearOp.added`."""
        choice = self.choose(len(x), is_gated=False)
        if isinstance(choice, GemmTile) and adds_rows(x, residual, _MAX_CLUSTER_ROWS):
            if weight.dtype is not x.dtype or len(weight) % 256:
                return None
            num_tiles = len(weight) // SUMMED_CHANNELS
        elif isinstance(choice, StreamGemmTile) and adds_rows(x, residual, MAX_ADDED_ROWS):
            num_tiles = choice.num_programs(len(self.weight))
        else:
            return None
        added = AddedStream.of(residual, weight, num_tiles)
        self.launch(x, choice, "none", residual, added=added)
        return added.rows()

    def choose(self, num_rows: int, *, is_gated: bool) -> Choice:
        """The configuration for a GEMM with ``num_rows`` rows; None is the vendor's library."""
        if not self._uses_kernels or num_rows == 0:
            return None
        if self._cluster_gemm is not None and (len(self.weight) < WIDE_CHANNELS or num_rows <= _MAX_WIDE_ROWS):
            tile = self._cluster_gemm.choose(num_rows, self.weight.dtype, is_gated=is_gated)
            if tile is not None:
                return tile
        key = (num_rows, is_gated)
        if key not in self._choices:
            num_channels, num_features = self.weight.shape[0] // (2 if is_gated else 1), self.weight.shape[1]
            if self.deterministic or num_channels >= WIDE_CHANNELS:
                self._choices[key] = choose_plan(
                    num_rows,
                    num_channels,
                    num_features,
                    is_gated=is_gated,
                    is_deterministic=self.deterministic,
                    num_sms=self._num_sms,
                )
            elif not IS_INTERPRETED:  # the interpreter does not run Gluon kernels
                self._choices[key] = choose_tile(
                    num_rows, num_channels, num_features, is_gated=is_gated, num_sms=self._num_sms
                )
        return self._choices.setdefault(key, None)

    def launch(
        self,
        x: torch.Tensor,
        choice: KernelChoice,
        activation: str,
        out: torch.Tensor | None = None,
        norm: DeferredNorm | None = None,
        added: AddedStream | None = None,
    ) -> torch.Tensor:
        """One launch of a kernel: ``[M, K] → [M, N]``, or ``[M, N / 2]`` with an activation.

        Args:
            norm, added: see :func:`stream_linear` and :meth:`.ClusterGemm.multiply`.
        """
        x = aligned_rows(x)
        y = x.new_empty(len(x), self.weight.shape[0] // (1 if activation == "none" else 2)) if out is None else out
        assert y.is_contiguous()
        if isinstance(choice, StreamGemmTile):
            stream_linear(x, self.weight, self.bias, y, activation, choice, norm=norm, added=added)
        elif isinstance(choice, GemmTile):
            assert self._cluster_gemm is not None, "it chose the tile"
            self._cluster_gemm.multiply(x, None, y, activation, choice, norm, added)
        else:
            grid, args, kwargs = self._arguments(x, y, choice, activation)
            linear_kernel[grid](*args, **kwargs)
        return y

    def _by_library(self, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        if out is None:
            return F.linear(x, self.weight, self.bias)
        rows, out_rows = x.flatten(0, -2), out.flatten(0, -2)
        if self.bias is None:
            torch.mm(rows, self.weight.T, out=out_rows)
        else:
            torch.addmm(self.bias, rows, self.weight.T, out=out_rows)
        return out

    def _arguments(
        self, x: torch.Tensor, y: torch.Tensor, plan: LinearPlan, activation: str
    ) -> tuple[tuple[int, int, int], list[Any], dict[str, Any]]:
        num_rows, num_features = x.shape
        num_channels = y.shape[1]
        is_gated = activation != "none"
        tiles: tuple[TensorDescriptor, TensorDescriptor] | tuple[None, None] = (None, None)
        if plan.use_descriptors:
            tiles = (
                TensorDescriptor.from_tensor(x, [plan.block_m, plan.block_k]),
                TensorDescriptor.from_tensor(self.weight, [plan.block_n, plan.block_k]),
            )
        needed = plan.workspace(num_rows, num_channels, is_gated=is_gated)
        space = self._space = reserve_workspace(x.device, *needed, at_hand=self._space)
        row_bytes = plan.block_n * (2 if is_gated else 1) * self.weight.element_size()
        args = [
            x,
            self.weight,
            *tiles,
            self.bias,
            y,
            space.partials,
            space.arrivals,
            num_rows,
            num_channels,
            num_features,
            x.stride(0),
            plan.num_parts,
            plan.prefetch_bytes // row_bytes // 8 * 8,
        ]
        constants = {
            "BLOCK_M": plan.block_m,
            "BLOCK_N": plan.block_n,
            "BLOCK_K": plan.block_k,
            "STAGES": plan.num_stages,
            "ACTIVATION": activation,
            "MODE": plan.mode,
            "EVEN_K": num_features % plan.block_k == 0,
            "num_warps": plan.num_warps,
            "num_stages": plan.num_stages,
        }
        return plan.grid(num_rows, num_channels), args, constants | dependent_launch(x.device)
