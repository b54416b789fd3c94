"""Weights in a GGUF file, dequantised to the compute type as they are loaded."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.errors import UnsupportedModelError, WeightsError
from octavo.hub.model_config import ModelConfig
from octavo.models.loading.dequantize import SUPPORTED, dequantize
from octavo.models.loading.gguf_names import Conversion, conversion, hf_name
from octavo.platforms import available_cores
from octavo.tokenization.gguf_file import GGUFFile, GGUFTensor

# Values that the converters compute from the configuration and that Octavo computes itself.
_DERIVED = ("rope_freqs.weight",)

# Elements dequantised at a time: the float32 copies stay in the processor's cache, and few of them exist at once.
_PIECE = 1 << 19
# Copies of fewer elements than 32768 are not split by torch over threads of its own, which would fight with ours.
_SERIAL_COPY = (1 << 15) - 1
# Pieces a thread between two looks at the progress.
_BATCH = 16
_MAX_THREADS = 16


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some whole rows of one tensor: bytes to read, and the place for their values."""

    tensor: GGUFTensor
    rows: NDArray[np.uint8]
    destination: torch.Tensor
    offset: float

    def load(self) -> int:
        """Dequantise and store; returns the number of elements."""
        values = dequantize(self.rows, self.tensor).flatten()
        if self.offset:
            values = values.float() - self.offset
        destination = self.destination.view(-1)
        for target, part in zip(destination.split(_SERIAL_COPY), values.split(_SERIAL_COPY), strict=True):
            target.copy_(part)
        return values.numel()


class GGUFCheckpoint:
    """The tensors of a GGUF file under Hugging Face's names, as they were before the conversion to GGUF.

    Raises:
        UnsupportedModelError: the file holds tensors of a type that cannot be dequantised.
        WeightsError: the file is truncated or corrupted.
    """

    def __init__(self, path: Path, config: ModelConfig) -> None:
        file = GGUFFile.open(path)
        self.path = path
        self._config = config
        self._architecture = str(file.metadata.get("general.architecture"))
        self._tensors = {
            hf_name(name, self._architecture): tensor for name, tensor in file.tensors.items() if name not in _DERIVED
        }
        for tensor in file.tensors.values():
            if tensor.type_name not in SUPPORTED:
                raise UnsupportedModelError(
                    f"{path}: the tensor {tensor.name} is of the type {tensor.type_name}; supported are "
                    f"{', '.join(SUPPORTED)}."
                )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors by Hugging Face's names."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def copy_into(self, slots: dict[str, torch.Tensor]) -> Iterator[int]:
        """See :meth:`Checkpoint.copy_into`."""
        try:
            data = np.memmap(self.path, mode="c", dtype=np.uint8)
        except (OSError, ValueError) as error:
            raise WeightsError(f"{self.path} cannot be read: {error}.") from None
        pieces = self._pieces(data, slots)
        num_threads = min(available_cores(), _MAX_THREADS)
        with ThreadPoolExecutor(num_threads) as pool:
            while batch := list(islice(pieces, _BATCH * num_threads)):
                yield from pool.map(_Piece.load, batch)

    def _pieces(self, data: NDArray[np.uint8], slots: dict[str, torch.Tensor]) -> Iterator[_Piece]:
        for name, tensor in self._tensors.items():
            if name in slots:
                change = conversion(name, self._architecture, self._config)
                yield from _split(tensor, _rows(data, tensor, change), slots[name], change)


def _rows(data: NDArray[np.uint8], tensor: GGUFTensor, change: Conversion) -> NDArray[np.uint8]:
    """A tensor's bytes, ``[rows, bytes a row]``, in the order of the checkpoint before its conversion."""
    raw = data[tensor.offset : tensor.offset + tensor.num_bytes]
    if not change.permuted_heads:
        return raw.reshape(tensor.num_rows, -1)
    # Rows are quantised one by one, so that moving them needs no dequantising. A bias is one number a row.
    num_rows = tensor.shape[0]
    pairs = raw.reshape(change.permuted_heads, num_rows // change.permuted_heads // 2, 2, -1)
    rows = np.ascontiguousarray(pairs.swapaxes(1, 2))
    return rows.reshape(num_rows, -1) if len(tensor.shape) > 1 else rows.reshape(1, -1)


def _split(
    tensor: GGUFTensor, rows: NDArray[np.uint8], destination: torch.Tensor, change: Conversion
) -> Iterator[_Piece]:
    flat = destination.view(len(rows), -1)
    step = max(1, _PIECE // tensor.shape[-1])
    for start in range(0, len(rows), step):
        yield _Piece(tensor, rows[start : start + step], flat[start : start + step], change.offset)
