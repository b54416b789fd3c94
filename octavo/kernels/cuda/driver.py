"""As much of CUDA's driver API as kernels of this package need: load a cubin, describe tiles for TMA, launch.

Called through ctypes, with the structures of ``cuda.h``. The caller's thread has a context: torch's, once it has used
the device.
"""

import ctypes
import functools
from collections.abc import Sequence
from enum import IntEnum

import torch

_CLUSTER_DIMENSION, _PROGRAMMATIC_STREAM_SERIALIZATION = 4, 6
"""Of ``CUlaunchAttributeID``."""
_MAX_DYNAMIC_SHARED_SIZE_BYTES, _NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 8, 14
"""Of ``CUfunction_attribute``."""
_MAX_PORTABLE_CLUSTER = 8
_MPS_ENABLED = 133
"""Of ``CUdevice_attribute``."""

_ELEMENTS = {
    torch.float8_e4m3fn: 0,
    torch.uint8: 0,
    torch.float16: 6,
    torch.float32: 7,
    torch.bfloat16: 9,
}
"""``CUtensorMapDataType`` by type; TMA only moves bytes, so it has none for float8."""
_L2_PROMOTION = 3
"""``CU_TENSOR_MAP_L2_PROMOTION_L2_256B``: what a copy misses, the L2 cache reads 256 bytes at a time."""


class Swizzle(IntEnum):
    """``CUtensorMapSwizzle``: how 16-byte pieces of a tile's row are permuted in shared memory, by bytes of the row."""

    NONE = 0
    BYTES_32 = 1
    BYTES_64 = 2
    BYTES_128 = 3


class _LaunchAttribute(ctypes.Structure):
    """``CUlaunchAttribute``; a value that is one number uses the first of the three."""

    _fields_ = (("id", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_uint * 16))


class LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("num_attributes", ctypes.c_uint),
    )


class TensorMap(ctypes.Structure):
    """``CUtensorMap``: how TMA copies tiles of one tensor; a kernel's argument, passed by value."""

    _fields_ = (("words", ctypes.c_uint64 * 16),)

    @classmethod
    def new(cls) -> "TensorMap":
        """One in memory that is aligned as the driver demands."""
        size = ctypes.sizeof(cls)
        memory = (ctypes.c_char * (2 * size))()
        return cls.from_buffer(memory, -ctypes.addressof(memory) % size)


class DriverError(RuntimeError):
    """A call of the driver failed."""


class Driver:
    """The driver's functions; each raises :class:`DriverError` if it fails.

    Args:
        library: ``libcuda``.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._launch = library.cuLaunchKernelEx
        self._launch.argtypes = [ctypes.c_void_p] * 4

    def load(self, cubin: bytes, name: str, *, shared_bytes: int, cluster_size: int) -> int:
        """Load device code onto the current device, where it stays; the function of this name.

        Args:
            shared_bytes: the most dynamic shared memory that it is launched with.
            cluster_size: the most blocks of a cluster.
        """
        call, module, function = self._library, ctypes.c_void_p(), ctypes.c_void_p()
        self._check(call.cuModuleLoadData(ctypes.byref(module), cubin))
        self._check(call.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
        self._check(call.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes))
        if cluster_size > _MAX_PORTABLE_CLUSTER:
            self._check(call.cuFuncSetAttribute(function, _NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1))
        assert function.value is not None
        return function.value

    def runs_alone(self, device: int) -> bool:
        """Whether no other process's kernels run beside this one's on a device, as they do with NVIDIA's MPS."""
        has_others = ctypes.c_int()
        error = self._library.cuDeviceGetAttribute(ctypes.byref(has_others), _MPS_ENABLED, device)
        return not error and not has_others.value

    def encode_tiles(self, tensor_map: TensorMap, x: torch.Tensor, box: Sequence[int], swizzle: Swizzle) -> None:
        """Describe tiles of a tensor; what of a tile lies beyond the tensor is read as zeros.

        Args:
            x: its last dimension is contiguous; address and other strides are multiples of 16 bytes.
            box: a tile's extents, as many as ``x`` has; its rows have at most the swizzle's bytes.
        """
        rank, size = x.dim(), x.element_size()
        sizes = (ctypes.c_uint64 * rank)(*reversed(x.shape))
        strides = (ctypes.c_uint64 * rank)(*(stride * size for stride in reversed(x.stride()[:-1])))
        steps = (ctypes.c_uint32 * rank)(*[1] * rank)
        self._check(
            self._library.cuTensorMapEncodeTiled(
                ctypes.byref(tensor_map),
                _ELEMENTS[x.dtype],
                rank,
                ctypes.c_void_p(x.data_ptr()),
                sizes,
                strides,
                (ctypes.c_uint32 * rank)(*reversed(box)),
                steps,
                0,
                swizzle,
                _L2_PROMOTION,
                0,
            )
        )

    def move_tiles(self, tensor_map: TensorMap, address: int) -> None:
        """Describe the same tiles of a tensor at another address."""
        self._check(self._library.cuTensorMapReplaceAddress(ctypes.byref(tensor_map), ctypes.c_void_p(address)))

    def launch(self, config: LaunchConfig, function: int, arguments: "ctypes.Array[ctypes.c_void_p]") -> None:
        """Launch a kernel, whose arguments are copied now.

        Args:
            arguments: the addresses of them.
        """
        error = self._launch(ctypes.addressof(config), function, ctypes.addressof(arguments), None)
        if error:
            self._check(error)

    def _check(self, error: int) -> None:
        if error:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(error, ctypes.byref(text))
            raise DriverError(f"CUDA's driver reports error {error}: {(text.value or b'unknown').decode()}")


def launch_config(
    grid: tuple[int, int, int],
    num_threads: int,
    *,
    shared_bytes: int,
    cluster: tuple[int, int, int],
    is_dependent: bool,
) -> LaunchConfig:
    """How a kernel is launched.

    Args:
        grid: blocks; multiples of the cluster's.
        num_threads: of a block.
        is_dependent: whether it may start while its predecessor runs (programmatic dependent launch).
    """
    attributes = (_LaunchAttribute * 2)()
    attributes[0].id = _CLUSTER_DIMENSION
    attributes[0].value[:3] = cluster
    attributes[1].id = _PROGRAMMATIC_STREAM_SERIALIZATION
    attributes[1].value[0] = is_dependent
    return LaunchConfig(grid, (num_threads, 1, 1), shared_bytes, None, attributes, len(attributes))


@functools.cache
def find_driver() -> Driver | None:
    """The driver of NVIDIA's GPUs; None where it is not installed."""
    try:
        return Driver(ctypes.CDLL("libcuda.so.1"))
    except OSError:
        return None
