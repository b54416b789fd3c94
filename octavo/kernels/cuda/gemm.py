"""GEMMs in CUDA C++ for Hopper: some hundred rows by clusters (``gemm.cu``), more in slices (``sliced_gemm.cu``).

See :class:`ClusterGemm`.
"""

import ctypes
import functools
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from octavo.kernels.cuda.driver import Swizzle, TensorMap
from octavo.kernels.cuda.gemm_tiles import MAX_ROWS, STEP_BYTES, GemmTile, SlicedTile, choose_tile
from octavo.kernels.cuda.kernel import CudaKernel
from octavo.kernels.cuda.launch import Launch
from octavo.kernels.cuda.library import driver, library
from octavo.kernels.deferred_norm import DeferredNorm
from octavo.kernels.linear import RoundedRows

if TYPE_CHECKING:
    from octavo.kernels.triton.stream_sum import AddedStream

SOURCE, SLICED_SOURCE = (Path(__file__).with_name(name) for name in ("gemm.cu", "sliced_gemm.cu"))

SUMMED_CHANNELS = 64
"""Of the residual stream, whose squares are summed."""
ACTIVATIONS = {"none": 0, "silu": 1, "gelu_tanh": 2}
OUTPUT_TYPES = (torch.bfloat16, torch.float16)

_MAX_PREPARED = 2048
"""Launches that are kept: prompts make steps of any number of rows."""


class ClusterGemm:
    """``y = (x Wᵀ) · row scales · scales + b`` for one weight, by blocks that load tiles for each other.

    Args:
        weight: ``[N, K]`` float8 (e4m3), bfloat16 or float16; contiguous, address and rows aligned to 16 bytes.
        scales: ``[N]`` float32, contiguous, of a float8 weight; None of others.
        bias: ``[N]`` contiguous, or None.
        num_sms: multiprocessors of the device.
    """

    def __init__(
        self, weight: torch.Tensor, scales: torch.Tensor | None, bias: torch.Tensor | None, *, num_sms: int
    ) -> None:
        self._weight = weight
        self._scales = scales
        self._bias = bias
        self._num_sms = num_sms
        self._meeting = _meeting(weight.device)
        self._maps: dict[tuple[int, int, bool], TensorMap] = {}

    def choose(self, num_rows: int, dtype: torch.dtype, *, is_gated: bool) -> GemmTile | None:
        """The tile for a number of rows; None where the kernel is not there, not suited or not the fastest.

        Args:
            dtype: of the outputs.
        """
        num_weights, num_features = self._weight.shape
        if (
            dtype not in OUTPUT_TYPES
            or num_weights % (16 if is_gated else 8)
            or num_features * self._weight.element_size() < STEP_BYTES
            or not (self._bias is None or self._bias.dtype is dtype)
        ):
            return None
        is_float8 = self._scales is not None
        tile = choose_tile(
            num_rows, num_weights, num_features, is_gated=is_gated, is_float8=is_float8, num_sms=self._num_sms
        )
        source = SLICED_SOURCE if isinstance(tile, SlicedTile) else SOURCE
        return tile if tile is not None and library.has(source) else None

    def choose_rounding(self, num_rows: int, dtype: torch.dtype, *, is_gated: bool) -> GemmTile | None:
        """The tile of :meth:`choose`, if the kernel can round its outputs; else None."""
        tile = self.choose(num_rows, dtype, is_gated=is_gated)
        if tile is None or not tile.can_meet(num_rows, len(self._weight), self._num_sms):
            return None
        return tile if _runs_alone(self._weight.device) else None

    def multiply(
        self,
        x: torch.Tensor,
        row_scales: torch.Tensor | None,
        out: torch.Tensor | None,
        activation: str,
        tile: GemmTile,
        norm: DeferredNorm | None = None,
        added: "AddedStream | None" = None,
        rounded: RoundedRows | None = None,
    ) -> None:
        """Write ``y``, or with an activation ``act(y₁) · y₂`` for the halves of ``y``.

        Args:
            x: ``[M, K]`` of the weight's type; rows contiguous, each aligned to 16 bytes.
            row_scales: ``[M, 1]`` float32, contiguous, of float8 values; None of others.
            out: ``[M, N]``, or ``[M, N / 2]`` with an activation; contiguous, aligned to 16 bytes. None with
                ``rounded``.
            activation: "none", "silu" or "gelu_tanh".
            tile: of :meth:`choose`.
            norm: whose weighted rows ``x`` is, in bfloat16; sums are divided by the rows' root mean squares.
                They have a multiple of 4 sums of squares.
            added: ``out`` is its residual, in bfloat16, to which ``y`` is added; without an activation. N is a multiple
                of 256, and squares are summed over :data:`SUMMED_CHANNELS` each.
            rounded: what gated outputs of float8 values are written to, as if they had been rounded to its ``dtype``
                before; the tile is of :meth:`choose_rounding`.
        """
        assert (row_scales is None) == (self._scales is None), "a float8 weight and its rows have scales"
        num_weights, written = len(self._weight), rounded if out is None else out
        assert written is not None, "outputs go somewhere"
        form = GemmForm(
            activation,
            x.dtype,
            written.dtype,
            is_normed=norm is not None,
            is_added=added is not None,
            is_rounded=rounded is not None,
        )
        assert rounded is None or tile.can_meet(len(x), num_weights, self._num_sms)
        num_outputs = num_weights // (1 if activation == "none" else 2)
        prepared = _prepare(tile, form, x.shape, x.stride(0), num_weights, num_outputs, x.device)
        with prepared.lock:
            operands = prepared.operands
            operands.set(row_scales, self._scales, self._bias, out, norm, added)
            if rounded is not None:
                operands.rounded, operands.rounded_scales = rounded.values.data_ptr(), rounded.scales.data_ptr()
                operands.meeting = self._meeting.data_ptr()
            prepared.run(x, self._weight_map(tile, activation))

    def _weight_map(self, tile: GemmTile, activation: str) -> TensorMap:
        # Weights that were moved to host memory and back may have another address.
        box_rows = tile.num_weights // tile.share_w
        key = self._weight.data_ptr(), box_rows, activation != "none"
        if key not in self._maps:
            self._maps[key] = _weight_map(self._weight, box_rows, is_gated=activation != "none")
        return self._maps[key]


def _weight_map(weight: torch.Tensor, num_rows: int, *, is_gated: bool) -> TensorMap:
    """Boxes of some rows; with a gate eight rows of the one half, eight of the other, and so on.

    So a thread has the sums of both halves.
    """
    tensor_map, step = TensorMap.new(), STEP_BYTES // weight.element_size()
    if is_gated:
        blocks = weight.unflatten(0, (2, -1, 8)).transpose(0, 1)  # [N / 16, 2, 8, K]
        driver().encode_tiles(tensor_map, blocks, (num_rows // 16, 2, 8, step), Swizzle.BYTES_128)
    else:
        driver().encode_tiles(tensor_map, weight, (num_rows, step), Swizzle.BYTES_128)
    return tensor_map


@functools.cache
def _runs_alone(device: torch.device) -> bool:
    return driver().runs_alone(device.index)


@functools.cache
def _meeting(device: torch.device) -> torch.Tensor:
    """``Meeting`` of ``gemm.cu``, for all launches on a device: those of one stream run one after another."""
    return torch.zeros(32 + 2 * MAX_ROWS, dtype=torch.int32, device=device)


class Operands(ctypes.Structure):
    """``Outputs`` of ``gemm.cu``: addresses, sizes and the norm's epsilon."""

    _fields_ = (
        ("row_scales", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("norm_weight", ctypes.c_void_p),
        ("weighted", ctypes.c_void_p),
        ("squares", ctypes.c_void_p),
        ("rounded", ctypes.c_void_p),
        ("rounded_scales", ctypes.c_void_p),
        ("meeting", ctypes.c_void_p),
        ("num_rows", ctypes.c_int32),
        ("num_outputs", ctypes.c_int32),
        ("num_squares", ctypes.c_int32),
        ("num_features", ctypes.c_int32),
        ("eps", ctypes.c_float),
    )

    def set(
        self,
        row_scales: torch.Tensor | None,
        scales: torch.Tensor | None,
        bias: torch.Tensor | None,
        out: torch.Tensor | None,
        norm: DeferredNorm | None,
        added: "AddedStream | None",
    ) -> None:
        """Take the tensors of a launch; see :meth:`ClusterGemm.multiply`."""
        self.row_scales = None if row_scales is None else row_scales.data_ptr()
        self.scales = None if scales is None else scales.data_ptr()
        self.bias = None if bias is None else bias.data_ptr()
        self.out = None if out is None else out.data_ptr()
        if norm is not None:
            assert norm.weighted is not None, "x is its weighted rows"
            squares = norm.weighted.squares
            self.row_scales, self.num_squares, self.eps = squares.data_ptr(), squares.shape[1], norm.eps
        if added is not None:
            self.norm_weight, self.weighted = added.weight.data_ptr(), added.weighted.data_ptr()
            self.squares = added.squares.data_ptr()


@dataclass(frozen=True, slots=True)
class GemmForm:
    """What a GEMM computes; see :meth:`ClusterGemm.multiply`.

    Attributes:
        dtype: of the values; float8 has scales.
        out_dtype: of outputs and bias, and of the values but for float8.
    """

    activation: str
    dtype: torch.dtype
    out_dtype: torch.dtype
    is_normed: bool = False
    is_added: bool = False
    is_rounded: bool = False


@dataclass
class PreparedGemm:
    """A launch for fixed sizes, shared by all weights that have them.

    Attributes:
        lock: held from the change of an argument to the launch: engines of one process have threads of their own.
        x_map: of rows at ``address``; 0 before the first launch.
    """

    tile: GemmTile
    launch: Launch
    operands: Operands
    x_map: TensorMap
    address: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(
        cls,
        kernel: CudaKernel,
        tile: GemmTile,
        x_shape: torch.Size,
        num_weights: int,
        num_outputs: int,
        sizes: tuple[int, ...],
        num_maps: int,
        device: torch.device,
    ) -> "PreparedGemm":
        """A launch for these sizes.

        Args:
            num_weights: rows of W.
            sizes: what the kernel takes before the division of rows.
            num_maps: tensor maps of the weight.
        """
        num_rows, num_features = x_shape
        operands = Operands(num_rows=num_rows, num_outputs=num_outputs, num_features=num_features)
        division = tile.num_tile_rows(num_rows), tile.num_row_groups(num_rows), tile.num_weight_tiles(num_weights)
        x_map = TensorMap.new()
        weight_maps = [TensorMap.new() for _ in range(num_maps)]
        launch = Launch(
            kernel,
            device,
            (tile.num_blocks(num_rows), 1, 1),
            tile.num_threads,
            [x_map, *weight_maps, operands, *map(ctypes.c_int32, (*sizes, *division))],
            cluster=(tile.cluster_size, 1, 1),
        )
        return cls(tile, launch, operands, x_map)

    def run(self, x: torch.Tensor, *weight_maps: TensorMap) -> None:
        """Launch it for other tensors of these sizes."""
        address = x.data_ptr()
        if not self.address:
            box = self.tile.num_tile_rows(len(x)), STEP_BYTES // x.element_size()
            driver().encode_tiles(self.x_map, x, box, Swizzle.BYTES_128)
        elif address != self.address:
            driver().move_tiles(self.x_map, address)
        self.address = address
        for i, weight_map in enumerate(weight_maps, 1):
            self.launch.arguments[i] = ctypes.addressof(weight_map)
        self.launch.run()


@functools.lru_cache(_MAX_PREPARED)
def _prepare(
    tile: GemmTile,
    form: GemmForm,
    x_shape: torch.Size,
    x_stride: int,
    num_weights: int,
    num_outputs: int,
    device: torch.device,
) -> PreparedGemm:
    num_steps = -(-x_shape[1] * form.dtype.itemsize // STEP_BYTES)
    return PreparedGemm.of(gemm_kernel(tile, form), tile, x_shape, num_weights, num_outputs, (num_steps,), 1, device)


def gemm_kernel(tile: GemmTile, form: GemmForm) -> CudaKernel:
    """The kernel for a tile."""
    if isinstance(tile, SlicedTile):
        return _sliced_kernel(tile, form)
    constants = (
        *shared_constants(tile, form),
        ("SHARE_W", tile.share_w),
        ("PARTS", tile.num_parts),
        ("FLOAT8", int(form.dtype is torch.float8_e4m3fn)),
        ("NORMED", int(form.is_normed)),
        ("ADDED", int(form.is_added)),
        ("ROUNDED", int(form.is_rounded)),
    )
    return CudaKernel(SOURCE, "gemm", constants, shared_bytes=tile.shared_bytes, cluster_size=tile.cluster_size)


def shared_constants(tile: GemmTile, form: GemmForm) -> tuple[tuple[str, int], ...]:
    """The constants that all GEMMs in CUDA C++ have."""
    return (
        ("GROUPS", tile.num_groups),
        ("ROWS", tile.num_rows),
        ("STAGES", tile.num_stages),
        ("HALF", int(form.out_dtype is torch.float16)),
        ("ACTIVATION", ACTIVATIONS[form.activation]),
    )


def _sliced_kernel(tile: SlicedTile, form: GemmForm) -> CudaKernel:
    assert not (form.is_normed or form.is_added or form.is_rounded) and form.dtype is form.out_dtype, "it has one form"
    constants = (*shared_constants(tile, form), ("SLICE", tile.slice_tiles))
    return CudaKernel(SLICED_SOURCE, "sliced_gemm", constants, shared_bytes=tile.shared_bytes)
