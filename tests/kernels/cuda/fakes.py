"""A compiler and a driver, for tests of what surrounds them."""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from octavo.kernels.cuda.driver import LaunchConfig, Swizzle, TensorMap
from octavo.kernels.cuda.nvrtc import Compiled, CompileError


class FakeCompiler:
    """Compiles each source to its options, unless it has the word ``error``; keeps what it was asked for."""

    version = 13, 0

    def __init__(self) -> None:
        self.options: list[tuple[str, ...]] = []

    def compile(self, name: str, source: str, headers: dict[str, str], options: tuple[str, ...]) -> Compiled:
        self.options.append(options)
        if "error" in source:
            raise CompileError(f"{name}(1): error: it has one")
        return Compiled(" ".join(options).encode(), "")


class FakeDriver:
    """Loads kernels by numbers, and keeps what is launched.

    Attributes:
        loaded: device code.
        launched: function, stream and the first 32 bits of each argument.
        is_alone: whether no other process's kernels run beside this one's.
        encoded: address, shape, strides and box of tensor maps; the first word of a map is its number here.
    """

    def __init__(self) -> None:
        self.loaded: list[bytes] = []
        self.is_alone = True
        self.launched: list[tuple[int, int, list[int]]] = []
        self.encoded: list[tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = []

    def load(self, cubin: bytes, name: str, *, shared_bytes: int, cluster_size: int) -> int:
        self.loaded.append(cubin)
        return len(self.loaded)

    def runs_alone(self, device: int) -> bool:
        return self.is_alone

    def encode_tiles(self, tensor_map: TensorMap, x: torch.Tensor, box: Sequence[int], swizzle: Swizzle) -> None:
        tensor_map.words[0] = len(self.encoded)
        self.encoded.append((x.data_ptr(), tuple(x.shape), x.stride(), tuple(box)))

    def move_tiles(self, tensor_map: TensorMap, address: int) -> None:
        number = tensor_map.words[0]
        self.encoded[number] = (address, *self.encoded[number][1:])

    def launch(self, config: LaunchConfig, function: int, arguments: Any) -> None:
        values = [ctypes.cast(address, ctypes.POINTER(ctypes.c_int32))[0] for address in arguments]
        self.launched.append((function, config.stream, values))
