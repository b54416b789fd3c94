"""Reads weights from the safetensors files of a Hugging Face folder, with several threads."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from octavo.errors import UnsupportedModelError, WeightsError
from octavo.hub.json_file import read_json
from octavo.models.loading.arrival import TensorArrival, takes_pieces
from octavo.models.loading.files import in_natural_order, read_into
from octavo.models.loading.safetensors_header import SafetensorsEntry, read_header
from octavo.models.loading.staging import Staging
from octavo.platforms import available_cores
from octavo.quantization.slot import Slots, WeightSlot

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"

MAX_THREADS = 8
CHUNK_BYTES = 8 << 20
"""Bytes read at a time: large enough that overheads of disk, copy engine and GIL do not matter."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A tensor or a part of one: its place in a chunk, and in the tensor that arrives (first element and count).

    Attributes:
        is_taken: whether it is a whole tensor that is stored from where it was read.
    """

    start: int
    dtype: torch.dtype
    arrival: TensorArrival
    first: int
    count: int
    is_taken: bool

    @property
    def num_bytes(self) -> int:
        return self.count * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class _FileRange:
    """Contiguous bytes of a file, and the parts of tensors that they contain."""

    path: Path
    offset: int
    parts: list[_Part]

    @property
    def num_bytes(self) -> int:
        return self.parts[-1].start + self.parts[-1].num_bytes


class SafetensorsCheckpoint:
    """The safetensors files of a folder; headers are read at construction, tensors when they are copied.

    Raises:
        WeightsError: a file is missing, truncated or corrupted, or two files have the same tensor.
        UnsupportedModelError: there are no such files, or they have types that weights cannot have.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self._tensors: dict[str, SafetensorsEntry] = {}
        for path in weight_files(folder):
            for tensor in read_header(path):
                if tensor.name in self._tensors:
                    raise WeightsError(f"{path} holds the tensor {tensor.name}, which another file of the folder has.")
                self._tensors[tensor.name] = tensor

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors by name."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def dtypes(self) -> dict[str, torch.dtype]:
        """Types of all tensors by name."""
        return {name: tensor.dtype for name, tensor in self._tensors.items()}

    def raw_types(self) -> dict[str, str]:
        """See :meth:`Checkpoint.raw_types`."""
        return {}

    def copy_into(self, slots: Slots) -> Iterator[int]:
        """See :meth:`Checkpoint.copy_into`. Slots are on one device."""
        needed = [
            part for name, tensor in self._tensors.items() if name in slots for part in _needed(tensor, slots[name])
        ]
        wanted = [(tensor, TensorArrival(places, tensor.shape, tensor.dtype)) for tensor, places in needed]
        if not wanted:
            return
        num_threads = min(available_cores(), MAX_THREADS)
        staging = Staging(wanted[0][1].device, num_threads, CHUNK_BYTES)
        with ThreadPoolExecutor(num_threads) as pool:
            yield from pool.map(partial(_load, staging), list(_chunks(wanted)))
        staging.finish()


def _needed(
    tensor: SafetensorsEntry, slots: tuple[WeightSlot, ...]
) -> Iterator[tuple[SafetensorsEntry, tuple[WeightSlot, ...]]]:
    """The parts of a tensor to read, and their slots.

    Of a tensor whose only slot takes some rows, no others are read. One that can be stored in pieces has several parts.
    """
    slot = slots[0]
    rows = slot.whole_rows if len(slots) == 1 else None
    if rows is not None:
        yield _rows_of(tensor, range(rows.start, rows.stop)), (WeightSlot(slot.view),)
    elif takes_pieces(slots):
        for piece in slot.pieces(tensor.shape[0], tensor.num_bytes // tensor.shape[0], CHUNK_BYTES):
            yield _rows_of(tensor, piece), (slot.piece(piece),)
    else:
        yield tensor, slots


def _rows_of(tensor: SafetensorsEntry, rows: range) -> SafetensorsEntry:
    offset = tensor.offset + rows.start * (tensor.num_bytes // tensor.shape[0])
    return replace(tensor, shape=(len(rows), *tensor.shape[1:]), offset=offset)


def _chunks(wanted: list[tuple[SafetensorsEntry, TensorArrival]]) -> Iterator[_FileRange]:
    """Split tensors, given in file order, into chunks; small adjacent tensors share one.

    A tensor that a buffer can be stored from lies in one chunk if it fits.
    """
    chunk: _FileRange | None = None
    for tensor, arrival in wanted:
        itemsize, done = tensor.dtype.itemsize, 0
        if chunk is not None and arrival.can_take and chunk.num_bytes + tensor.num_bytes > CHUNK_BYTES:
            yield chunk
            chunk = None
        while done < tensor.num_bytes:
            offset = tensor.offset + done
            if chunk is not None and not _follows(chunk, tensor.path, offset, itemsize):
                yield chunk
                chunk = None
            if chunk is None:
                chunk = _FileRange(tensor.path, offset, [])
            start = offset - chunk.offset
            size = min(tensor.num_bytes - done, (CHUNK_BYTES - start) // itemsize * itemsize)
            is_taken = arrival.can_take and size == tensor.num_bytes
            chunk.parts.append(_Part(start, tensor.dtype, arrival, done // itemsize, size // itemsize, is_taken))
            done += size
    if chunk is not None:
        yield chunk


def _follows(chunk: _FileRange, path: Path, offset: int, itemsize: int) -> bool:
    """Whether values at ``offset`` of a file can be added to a chunk: no gap, aligned, and room for one at least."""
    start = offset - chunk.offset
    return path == chunk.path and start == chunk.num_bytes and start % itemsize == 0 and start + itemsize <= CHUNK_BYTES


@torch.inference_mode()
def _load(staging: Staging, chunk: _FileRange) -> int:
    """Read a chunk and send its parts; returns the number of elements."""
    if staging.is_host and all(part.dtype is part.arrival.dtype and not part.is_taken for part in chunk.parts):
        for part in chunk.parts:
            memory = part.arrival.part(part.first, part.count).view(torch.uint8)
            read_into(chunk.path, chunk.offset + part.start, memory.numpy())
            part.arrival.arrived(part.count)
    else:
        with staging.lend() as memory:
            read_into(chunk.path, chunk.offset, memory[: chunk.num_bytes].numpy())
            for part in chunk.parts:
                values = memory[part.start : part.start + part.num_bytes].view(part.dtype)
                if part.is_taken:
                    part.arrival.take(values)
                    continue
                staging.send(values, part.arrival.part(part.first, part.count))
                part.arrival.arrived(part.count)
    return sum(part.count for part in chunk.parts)


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files: the one with the usual name, those in the index, or all.

    Their order is that of their names, numbers by value, whatever the index or the file system says.

    Raises:
        WeightsError: the index names files that are missing or outside the folder.
        UnsupportedModelError: there are none.
    """
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    if (folder / _INDEX).is_file():
        return _indexed_files(folder, folder / _INDEX)
    names = in_natural_order(path.name for path in folder.glob("*.safetensors"))
    if names:
        return [folder / name for name in names]
    pickled = sorted(path.name for kind in ("*.bin", "*.pt", "*.pth") for path in folder.glob(kind))
    if pickled:
        raise UnsupportedModelError(
            f"{folder} holds only {pickled[0]}, a pickle, which can run code when it is loaded; Octavo does not load "
            "such files. Convert it to safetensors, for example with save_pretrained of transformers."
        )
    in_gguf = sorted(folder.glob("*.gguf"))
    hint = f" To load its GGUF weights, name the file: {in_gguf[0]}." if in_gguf else ""
    raise UnsupportedModelError(f"{folder} holds no weights (*.safetensors).{hint}")


def _indexed_files(folder: Path, index: Path) -> list[Path]:
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        raise WeightsError(f"{index} has no weight_map from tensors to files.")
    files = []
    for name in in_natural_order(shards.values()):
        # A name with a path could refer to any file of this machine.
        if name != Path(name).name or "\\" in name or not name.endswith(".safetensors"):
            raise WeightsError(f"{index} names {name[:200]!r}, which is not a safetensors file beside it.")
        if not (folder / name).is_file():
            raise WeightsError(f"{index} names {name}, which is missing.")
        files.append(folder / name)
    return files
