"""A small kernel in CUDA C++, ``share_tile.cu``: TMA copies each tile to all blocks of a cluster at once."""

import ctypes
from pathlib import Path

import torch

from octavo.kernels.cuda.driver import Swizzle, TensorMap
from octavo.kernels.cuda.kernel import CudaKernel
from octavo.kernels.cuda.launch import Launch
from octavo.kernels.cuda.library import driver

SOURCE = Path(__file__).with_name("share_tile.cu")
ROWS, COLUMNS = 64, 256


def share_tile_kernel(cluster_size: int, source: Path = SOURCE) -> CudaKernel:
    constants = (("ROWS", ROWS), ("COLUMNS", COLUMNS), ("CLUSTER", cluster_size))
    return CudaKernel(source, "share_tile", constants, shared_bytes=ROWS * COLUMNS * 4, cluster_size=cluster_size)


class ShareTile:
    """``out[tile, block] = tile · factor`` for tiles of ``x``, ``[M, N]`` float32."""

    def __init__(self, kernel: CudaKernel, x: torch.Tensor, factor: float, *, is_dependent: bool = True) -> None:
        tiles = TensorMap.new()
        driver().encode_tiles(tiles, x, (ROWS, COLUMNS), Swizzle.NONE)
        self._tiles, self._out = tiles, ctypes.c_void_p()
        self._shape = x.numel() // (ROWS * COLUMNS), kernel.cluster_size, ROWS, COLUMNS
        self._launch = Launch(
            kernel,
            x.device,
            (self._shape[0] * kernel.cluster_size, 1, 1),
            128,
            [tiles, self._out, ctypes.c_float(factor), ctypes.c_int32(x.shape[1])],
            cluster=(kernel.cluster_size, 1, 1),
            is_dependent=is_dependent,
        )

    def run(self, x: torch.Tensor) -> torch.Tensor:
        """``[tiles, blocks of a cluster, ROWS, COLUMNS]`` of an ``x`` of the same shape."""
        out = x.new_empty(self._shape)
        driver().move_tiles(self._tiles, x.data_ptr())
        self._out.value = out.data_ptr()
        self._launch.run()
        return out


def expected(x: torch.Tensor, factor: float, cluster_size: int) -> torch.Tensor:
    """The same by torch."""
    tiles = x.unflatten(0, (-1, ROWS)).unflatten(2, (-1, COLUMNS)).transpose(1, 2).flatten(0, 1)
    return (tiles * factor)[:, None].expand(-1, cluster_size, -1, -1)
