"""GEMMs with packed weights for Hopper, by thread-block clusters (``grouped_gemm.cu``); see :class:`GroupedGemm`."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from octavo.kernels.cuda.driver import Swizzle, TensorMap
from octavo.kernels.cuda.gemm import OUTPUT_TYPES, GemmForm, PreparedGemm, shared_constants
from octavo.kernels.cuda.grouped_gemm_tiles import UNIT, GroupedTile, choose_tile
from octavo.kernels.cuda.kernel import CudaKernel
from octavo.kernels.cuda.library import driver, library
from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.grouped import GroupedTensors

if TYPE_CHECKING:
    from octavo.kernels.triton.stream_sum import AddedStream

SOURCE = Path(__file__).with_name("grouped_gemm.cu")

_TERM_BYTES = 32
"""Of eight rows of W and a group: a word each."""


class GroupedGemm:
    """``y = x Wᵀ + b`` for one weight of 4-bit codes in groups of a multiple of 128 inputs.

    Args:
        weight: ``[N, K]``; addresses are aligned to 16 bytes.
        terms: its :data:`octavo.kernels.triton.grouped_terms.TermKind` ``wide`` ones, ``[N / 8, groups, 8, 1]``.
        bias: ``[N]`` contiguous, or None.
        num_sms: multiprocessors of the device.
    """

    def __init__(self, weight: GroupedTensors, terms: torch.Tensor, bias: torch.Tensor | None, *, num_sms: int) -> None:
        self._weight = weight
        self._terms = terms
        self._bias = bias
        self._num_sms = num_sms
        self._maps: dict[tuple[int, int, bool], tuple[TensorMap, TensorMap]] = {}

    def choose(self, num_rows: int, dtype: torch.dtype, *, is_gated: bool) -> GroupedTile | None:
        """The tile for a number of rows; None where the kernel is not there, not suited or not the fastest.

        Args:
            dtype: of rows and outputs.
        """
        num_weights, num_features = len(self._weight.codes), self._weight.num_inputs
        if (
            dtype not in OUTPUT_TYPES
            or num_weights % (16 if is_gated else 8)
            or not (self._bias is None or self._bias.dtype is dtype)
        ):
            return None
        tile = choose_tile(num_rows, num_weights, num_features, is_gated=is_gated, num_sms=self._num_sms)
        return tile if tile is not None and library.has(SOURCE) else None

    def multiply(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        activation: str,
        tile: GroupedTile,
        norm: DeferredNorm | None = None,
        added: "AddedStream | None" = None,
    ) -> None:
        """Write ``y``, or with an activation ``act(y₁) · y₂`` for the halves of ``y``.

        Args:
            x: ``[M, K]`` bfloat16 or float16; rows contiguous, each aligned to 16 bytes.
            out, activation, norm, added: see :meth:`octavo.kernels.cuda.gemm.ClusterGemm.multiply`.
        """
        form = GemmForm(activation, x.dtype, out.dtype, is_normed=norm is not None, is_added=added is not None)
        group_units = self._weight.group // UNIT
        num_weights = len(self._weight.codes)
        prepared = _prepare(tile, form, x.shape, x.stride(0), num_weights, out.shape[1], group_units, x.device)
        with prepared.lock:
            prepared.operands.set(None, None, self._bias, out, norm, added)
            prepared.run(x, *self._weight_maps(tile, is_gated=activation != "none"))

    def _weight_maps(self, tile: GroupedTile, *, is_gated: bool) -> tuple[TensorMap, TensorMap]:
        box_rows = tile.num_weights // tile.share_w
        key = self._weight.codes.data_ptr(), box_rows, is_gated
        if key not in self._maps:
            terms = self._terms.view(torch.uint8).flatten(1)
            code_box: tuple[int, ...] = (box_rows, UNIT // 2)
            term_box: tuple[int, ...] = (box_rows // 8, _TERM_BYTES)
            codes = self._weight.codes
            if is_gated:
                codes = codes.unflatten(0, (2, -1, 8)).transpose(0, 1)  # [N / 16, 2, 8, K / 2]
                terms = terms.unflatten(0, (2, -1)).transpose(0, 1)[:, :, None]  # [N / 16, 2, 1, bytes]
                code_box = (box_rows // 16, 2, 8, UNIT // 2)
                term_box = (box_rows // 16, 2, 1, _TERM_BYTES)
            code_map, term_map = TensorMap.new(), TensorMap.new()
            driver().encode_tiles(code_map, codes, code_box, Swizzle.BYTES_64)
            driver().encode_tiles(term_map, terms, term_box, Swizzle.NONE)
            self._maps[key] = code_map, term_map
        return self._maps[key]


@functools.cache
def _prepare(
    tile: GroupedTile,
    form: GemmForm,
    x_shape: torch.Size,
    x_stride: int,
    num_weights: int,
    num_outputs: int,
    group_units: int,
    device: torch.device,
) -> PreparedGemm:
    sizes = x_shape[1] // UNIT, group_units
    kernel = grouped_gemm_kernel(tile, form)
    return PreparedGemm.of(kernel, tile, x_shape, num_weights, num_outputs, sizes, 2, device)


def grouped_gemm_kernel(tile: GroupedTile, form: GemmForm) -> CudaKernel:
    """The kernel for a tile."""
    constants = (
        *shared_constants(tile, form),
        ("CODES", 4),
        ("CODE_STAGES", tile.num_code_stages),
        ("CHUNK", tile.chunk),
        ("SHARE_W", tile.share_w),
        ("PARTS", tile.num_parts),
        ("NORMED", int(form.is_normed)),
        ("ADDED", int(form.is_added)),
    )
    return CudaKernel(SOURCE, "grouped_gemm", constants, shared_bytes=tile.shared_bytes, cluster_size=tile.cluster_size)
