"""GEMMs with weights of packed integers on GPUs: few rows unpack them in the GEMM, many rows by way of their values.

On Hopper, integers in groups of a multiple of 128 inputs are multiplied by :mod:`grouped_hopper` from 17 to 1,024 rows,
those of 4 bits by :mod:`octavo.kernels.cuda.grouped_gemm` up to 256, and by :mod:`grouped_direct` up to 16; codes of 8
bits by :mod:`grouped_bytes` up to 16 rows; floats of 4 bits by :mod:`unit_gemm` up to 64 rows; other codes of 4 by
:mod:`grouped_stream` up to 8. For what they do not take, such as codes of a table, :mod:`grouped_kernel` multiplies few
rows, and the vendor's library many; on Hopper, float8 values in blocks are multiplied as they are
(:mod:`block_float8`). Each of them adds in an order of its own. Where a row's bits must not depend on the others,
:mod:`grouped_kernel` multiplies all.
"""

import torch
import torch.nn.functional as F

from octavo.errors import UnsupportedModelError
from octavo.kernels import grouped
from octavo.kernels.cuda.gemm import SUMMED_CHANNELS
from octavo.kernels.cuda.grouped_gemm import GroupedGemm
from octavo.kernels.cuda.grouped_gemm_tiles import MAX_ROWS as MAX_CLUSTER_ROWS
from octavo.kernels.cuda.grouped_gemm_tiles import GroupedTile
from octavo.kernels.deferred_norm import DeferredNorm, WeightedRows
from octavo.kernels.grouped import ZERO_STEP, GroupedTensors
from octavo.kernels.linear import GATES, LinearOp
from octavo.kernels.scaled import FLOAT8
from octavo.kernels.triton import (
    grouped_bytes,
    grouped_direct,
    grouped_hopper,
    grouped_hopper_tiles,
    grouped_stream,
    linear,
    unit_gemm,
)
from octavo.kernels.triton.block_float8 import BLOCK, BlockFloat8Linear, block_scales, multiplies_blocks
from octavo.kernels.triton.grouped_bytes import BytesTile, bytes_grouped, count_sharing
from octavo.kernels.triton.grouped_direct import DirectTile, direct_grouped, place_inputs
from octavo.kernels.triton.grouped_hopper import hopper_grouped
from octavo.kernels.triton.grouped_hopper_tiles import HopperTile
from octavo.kernels.triton.grouped_kernel import BLOCK_N, dequantize_kernel, grouped_kernel
from octavo.kernels.triton.grouped_stream import StreamTile, stream_grouped
from octavo.kernels.triton.grouped_terms import kind_of, make_terms
from octavo.kernels.triton.launch import IS_INTERPRETED, aligned_rows, dependent_launch, num_multiprocessors
from octavo.kernels.triton.linear_workspace import Workspace, reserve_workspace
from octavo.kernels.triton.stream_sum import AddedStream, adds_rows
from octavo.kernels.triton.unit_gemm import UnitTile, unit_linear

MAX_ROWS = 64
"""Beyond this M, the portable kernel takes longer than dequantising the weight for the vendor's library."""

Tile = BytesTile | DirectTile | GroupedTile | HopperTile | StreamTile | UnitTile
"""A kernel for Hopper, by its tile."""

_ROW_TYPES = (torch.bfloat16, torch.float16)
_MAX_PARTS = 16
_NUM_DEQUANTIZED = 2048
"""Values that a program dequantises: 128 threads have 16 each, 8 neighbours in both halves of a unit."""
_SCRATCH_ELEMENTS = 1 << 26
"""Values that are dequantised at a time; those of a larger weight follow in the same memory."""


class GroupedLinear(LinearOp):
    """The GEMM of one weight, ``[..., in] → [..., out]``.

    With ``deterministic``, the portable kernel computes any number of rows: a row's bits do not depend on the others.
    """

    writes_strided = True

    def __init__(
        self,
        weight: GroupedTensors,
        bias: torch.Tensor | None,
        *,
        deterministic: bool,
        rounds_inputs: bool = False,
        rows_dtype: torch.dtype | None = None,
    ) -> None:
        device = weight.codes.device
        self._weight = weight
        self._bias = bias
        self._deterministic = deterministic
        self._rows_dtype = rows_dtype
        self.has_rows = rows_dtype is not None
        self._is_hopper = not (deterministic or IS_INTERPRETED) and linear.is_supported(device)
        self._num_sms = num_multiprocessors(device)
        num_units = weight.num_inputs // weight.unit
        self._num_parts = choose_parts(len(weight.codes), num_units, self._num_sms)
        self._choices: dict[tuple[int, torch.dtype], Tile | None] = {}
        self._term_kind = kind_of(weight) if self._is_hopper else None
        self._terms = None if self._term_kind is None else make_terms(weight, self._term_kind)
        self._cluster_gemm: GroupedGemm | None = None
        if self._terms is not None and self._term_kind == "wide" and weight.bits == 4:
            self._cluster_gemm = GroupedGemm(weight, self._terms, bias, num_sms=self._num_sms)
        self._has_units = self._is_hopper and unit_gemm.reads(weight)
        has_blocks = rounds_inputs and not deterministic and multiplies_blocks(device)
        scales = block_scales(weight) if has_blocks else None
        self._blocks = None if scales is None else BlockFloat8Linear(weight.codes, scales, bias)
        self._num_sharing = count_sharing(weight) if self._is_hopper and grouped_bytes.reads(weight) else 0
        self._space: Workspace | None = None
        # Made here, since a recorded step would have none but its own memory.
        self._tables = {} if weight.table is None else {dtype: weight.table.to(dtype) for dtype in _ROW_TYPES}

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        if x.dtype not in _ROW_TYPES:
            y = F.linear(x, grouped.dequantize(self._weight, x.dtype), self._bias)
        else:
            rows = x.reshape(-1, x.shape[-1])
            y = self._multiply(rows).view(*x.shape[:-1], len(self._weight.codes))
        return y if out is None else out.copy_(y)

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        blocks = self._choose_blocks(len(x), x.dtype)
        if blocks is not None:
            return blocks(x, activation)
        has_tile = x.dtype in _ROW_TYPES
        tile = self.choose(len(x), x.dtype, is_gated=True) if has_tile else None
        if tile is None or (isinstance(tile, HopperTile) and not grouped_hopper.gates(self._weight)):
            return GATES[activation](self(x))
        return self._launch(x, activation, tile)

    def normed(self, norm: DeferredNorm, activation: str = "none") -> torch.Tensor | None:
        """See :meth:`octavo.kernels.linear.LinearOp.normed`."""
        blocks = self._choose_blocks(norm.num_rows, norm.dtype)
        if blocks is not None:
            return blocks.normed(norm, activation)
        tile = self.choose(norm.num_rows, norm.dtype, is_gated=activation != "none")
        if isinstance(tile, GroupedTile) and norm.weighted is not None and norm.weighted.squares.shape[1] % 4 == 0:
            return self._launch(norm.weighted.values, activation, tile, norm)
        if not isinstance(tile, BytesTile | DirectTile):
            return None
        is_few = norm.num_rows <= grouped_direct.MAX_ADDED_ROWS
        if norm.weighted is not None and isinstance(tile, DirectTile) and is_few:
            return self._launch(norm.weighted.values, activation, tile, norm)
        if not norm.is_single:
            return None
        if isinstance(tile, BytesTile):
            takes_norm = grouped_bytes.norms(self._weight, tile, has_terms=self._term_kind == "small")
        else:
            _, _, takes_norm = place_inputs(norm.num_rows, self._weight.num_inputs, tile.num_stages)
        return self._launch(norm.x, activation, tile, norm) if takes_norm else None

    def added(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> WeightedRows | None:
        """See :meth:`octavo.kernels.linear.LinearOp.added`."""
        tile = self.choose(len(x), x.dtype) if adds_rows(x, residual, MAX_CLUSTER_ROWS) else None
        if isinstance(tile, GroupedTile):
            if weight.dtype is not x.dtype or len(weight) % 256:
                return None
            assert self._cluster_gemm is not None, "it chose the tile"
            added = AddedStream.of(residual, weight, len(weight) // SUMMED_CHANNELS)
            self._cluster_gemm.multiply(aligned_rows(x), residual, "none", tile, added=added)
            return added.rows()
        if not isinstance(tile, DirectTile) or len(x) > grouped_direct.MAX_ADDED_ROWS:
            return None
        assert self._terms is not None, "the weight has a form that the kernel reads"
        added = AddedStream.of(residual, weight, tile.num_tiles(len(self._weight.codes)))
        direct_grouped(aligned_rows(x), self._weight, self._terms, self._bias, residual, "none", tile, added=added)
        return added.rows()

    def refresh(self) -> None:
        if self._has_units and not unit_gemm.reads(self._weight):
            # Recorded steps keep the kernel that was chosen.
            raise UnsupportedModelError(
                f"A scale of new MXFP4 weights is larger than 2**{unit_gemm.LARGEST_EXPONENT - 127}, which the GPU's "
                "kernels do not take, and such weights are probably damaged."
            )
        if self._terms is not None and self._term_kind is not None:
            if kind_of(self._weight) != self._term_kind:
                raise UnsupportedModelError(
                    "A scale of new weights in groups of 32 inputs or fewer is larger than 127, or its minimum than "
                    "65504, which the GPU's kernels do not take, and such weights are probably damaged."
                )
            self._terms.copy_(make_terms(self._weight, self._term_kind))
        had_blocks = self._num_sharing > 1 or self._blocks is not None
        if had_blocks and count_sharing(self._weight) == 1:
            raise UnsupportedModelError(
                "New float8 weights have scales that differ within a block of 128 outputs; those they replace had "
                "one for each block, for which the kernels in use were chosen."
            )
        if self._blocks is not None:
            self._blocks.refresh(self._weight.scales[::BLOCK])

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        if self._rows_dtype is None:
            return super().rows(index)
        return dequantize(self._weight, len(index), self._rows_dtype, index=index)

    def choose(self, num_rows: int, dtype: torch.dtype = torch.bfloat16, *, is_gated: bool = False) -> Tile | None:
        """The kernel for Hopper that multiplies so many rows; None for the portable kernel or the library."""
        if not self._is_hopper or num_rows <= 0:
            return None
        if self._cluster_gemm is not None:
            clusters = self._cluster_gemm.choose(num_rows, dtype, is_gated=is_gated)
            if clusters is not None:
                return clusters
        key = num_rows, dtype
        if key not in self._choices:
            self._choices[key] = self._choose_few(num_rows, dtype) or self._choose_many(num_rows, dtype)
        return self._choices[key]

    def _choose_few(self, num_rows: int, dtype: torch.dtype) -> Tile | None:
        """The kernel for Hopper whose multiprocessors read a weight once for so few rows."""
        arguments = self._weight, num_rows, self._num_sms
        if self._has_units and dtype is torch.bfloat16:
            most = unit_gemm.MAX_ROWS if self._terms is None else unit_gemm.FEW_ROWS
            return unit_gemm.choose_tile(num_rows, len(self._weight.codes), self._num_sms) if num_rows <= most else None
        if self._term_kind == "small":
            return grouped_bytes.choose_small_tile(*arguments)
        if self._num_sharing:
            return grouped_bytes.choose_tile(*arguments)
        if self._term_kind == "wide" and self._weight.bits == 4:
            return grouped_direct.choose_tile(*arguments)
        return grouped_stream.choose_tile(*arguments)

    def _choose_many(self, num_rows: int, dtype: torch.dtype) -> HopperTile | None:
        """The kernel of specialised warps, if it takes the weight and such rows."""
        takes_rows = self._term_kind is not None and (self._term_kind != "powers" or dtype is torch.bfloat16)
        return grouped_hopper_tiles.choose_tile(self._weight, num_rows, self._num_sms) if takes_rows else None

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        """``[M, in] → [M, out]``."""
        tile = self.choose(len(x), x.dtype)
        if tile is not None:
            return self._launch(x, "none", tile)
        blocks = self._choose_blocks(len(x), x.dtype)
        if blocks is not None:
            return blocks(x)
        is_few = len(x) <= MAX_ROWS
        return self._by_kernel(x, is_few) if is_few or self._deterministic else self._by_values(x)

    def _choose_blocks(self, num_rows: int, dtype: torch.dtype) -> BlockFloat8Linear | None:
        """The GEMM beside rounded rows: of float8 values in blocks, of bfloat16 rows that no other kernel takes."""
        takes_rows = num_rows > 0 and dtype is torch.bfloat16
        return self._blocks if takes_rows and self.choose(num_rows) is None else None

    def _launch(self, x: torch.Tensor, activation: str, tile: Tile, norm: DeferredNorm | None = None) -> torch.Tensor:
        """One launch of a kernel for Hopper: ``[M, in] → [M, out]``, or ``[M, out / 2]`` with an activation.

        Args:
            norm: of ``x``, for a :class:`BytesTile`, :class:`DirectTile` or :class:`GroupedTile`.
        """
        num_rows, num_channels = len(x), len(self._weight.codes) // (1 if activation == "none" else 2)
        y, x = x.new_empty(num_rows, num_channels), aligned_rows(x)
        if isinstance(tile, BytesTile):
            terms = self._terms if self._term_kind == "small" else None
            bytes_grouped(x, self._weight, max(self._num_sharing, 1), self._bias, y, activation, tile, norm, terms)
        elif isinstance(tile, DirectTile):
            assert self._terms is not None, "the weight has a form that the kernel reads"
            direct_grouped(x, self._weight, self._terms, self._bias, y, activation, tile, norm)
        elif isinstance(tile, GroupedTile):
            assert self._cluster_gemm is not None, "it chose the tile"
            self._cluster_gemm.multiply(x, y, activation, tile, norm)
        elif isinstance(tile, UnitTile):
            unit_linear(x, self._weight, self._bias, y, activation, tile)
        elif isinstance(tile, StreamTile):
            stream_grouped(x, self._weight, self._bias, y, activation, tile)
        else:
            assert self._terms is not None and self._term_kind is not None, (
                "the weight has a form that the kernel reads"
            )
            needed = grouped_hopper_tiles.workspace_size(num_rows, len(self._weight.codes), tile)
            space = self._space = reserve_workspace(x.device, *needed, at_hand=self._space)
            hopper_grouped(x, self._weight, self._terms, self._term_kind, self._bias, y, activation, tile, space)
        return y

    def _by_kernel(self, x: torch.Tensor, is_few: bool) -> torch.Tensor:
        num_rows, num_channels = len(x), len(self._weight.codes)
        y = x.new_empty(num_rows, num_channels)
        if num_rows == 0:
            return y
        x = aligned_rows(x)
        block_m = 16 if num_rows <= 16 else 32 if num_rows <= 32 else 64
        tiles_n, tiles_m = -(-num_channels // BLOCK_N), -(-num_rows // block_m)
        splits = is_few and self._num_parts > 1
        needed = (self._num_parts * num_rows * tiles_n * BLOCK_N, tiles_n * tiles_m) if splits else (0, 0)
        space = self._space = reserve_workspace(x.device, *needed, at_hand=self._space)
        grouped_kernel[(tiles_n, self._num_parts if splits else 1, tiles_m)](
            x,
            # The compiler would copy 32-bit values of a table to shared memory one by one, ahead of their use.
            *_pointers(self._weight._replace(table=self._tables.get(x.dtype))),
            self._bias,
            y,
            space.partials,
            space.arrivals,
            num_rows,
            num_channels,
            x.shape[1],
            x.stride(0),
            self._num_parts,
            **_constants(self._weight),
            BLOCK_M=block_m,
            BLOCK_N=BLOCK_N,
            STAGES=4,
            SPLIT=splits,
            num_warps=4,
            **dependent_launch(x.device),
        )
        return y

    def _by_values(self, x: torch.Tensor) -> torch.Tensor:
        num_inputs, num_outputs = x.shape[1], len(self._weight.codes)
        step = max(_SCRATCH_ELEMENTS // num_inputs // BLOCK_N, 1) * BLOCK_N
        y = x.new_empty(len(x), num_outputs)
        for start in range(0, num_outputs, step):
            outputs = slice(start, min(start + step, num_outputs))
            values = dequantize(self._weight, outputs.stop - start, x.dtype, first=start)
            if self._bias is None:
                torch.mm(x, values.T, out=y[:, outputs])
            else:
                torch.addmm(self._bias[outputs], x, values.T, out=y[:, outputs])
        return y


def grouped_linear(
    codes: torch.Tensor,
    weight: GroupedTensors,
    bias: torch.Tensor | None,
    *,
    deterministic: bool,
    rounds_inputs: bool = False,
    rows_dtype: torch.dtype | None = None,
) -> tuple[LinearOp, bool]:
    """A GEMM with packed integers; see :func:`octavo.kernels.grouped.grouped_linear`."""
    op = GroupedLinear(weight, bias, deterministic=deterministic, rounds_inputs=rounds_inputs, rows_dtype=rows_dtype)
    return op, False


def dequantize(
    weight: GroupedTensors, num_outputs: int, dtype: torch.dtype, *, first: int = 0, index: torch.Tensor | None = None
) -> torch.Tensor:
    """The values of some outputs, ``[n, in]``: those from the first one on, or those of ``index``, ``[n]`` int64."""
    own = _pointers(weight.of_outputs(slice(first, None)))
    values = torch.empty(num_outputs, weight.num_inputs, dtype=dtype, device=weight.codes.device)
    constants = _constants(weight)
    block_n = _NUM_DEQUANTIZED // constants["UNIT"]
    dequantize_kernel[(weight.num_inputs // constants["UNIT"], -(-num_outputs // block_n))](
        *own,
        index,
        values,
        num_outputs,
        weight.num_inputs,
        **constants,
        BLOCK_N=block_n,
        num_warps=4,
        **dependent_launch(values.device),
    )
    return values


def choose_parts(num_channels: int, num_units: int, num_sms: int) -> int:
    """The power of two of parts that gives each multiprocessor about four programs; a part has at least four units.

    It does not depend on the number of rows, so neither do the bits of a row.
    """
    num_tiles = -(-num_channels // BLOCK_N)
    num_parts = 1
    while num_parts * num_tiles < 3 * num_sms and 2 * num_parts <= min(num_units // 4, _MAX_PARTS):
        num_parts *= 2
    return num_parts


def _pointers(weight: GroupedTensors) -> tuple[torch.Tensor | None, ...]:
    scales = weight.scales.view(torch.uint8) if weight.scales.dtype is FLOAT8 else weight.scales
    return weight.codes, scales, weight.zeros, weight.offsets, weight.table, weight.factors


def _constants(weight: GroupedTensors) -> dict[str, int]:
    unit = weight.unit
    return {
        "BITS": weight.bits,
        "IS_FLOAT": weight.is_float4,
        "MIDDLE": round(weight.middle / ZERO_STEP) if weight.bits == 4 else weight.middle,
        "UNIT": unit,
        "GROUP_UNITS": weight.group // unit,
    }
