"""Weights in a GGUF file, dequantised to the compute type as they are loaded."""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

import torch

from octavo.errors import UnsupportedModelError
from octavo.hub.gguf_names import EACH, GGUFConversion, gguf_conversion, hf_name
from octavo.hub.model_config import ModelConfig
from octavo.models.loading.arrival import TensorArrival, conversion, takes_pieces
from octavo.models.loading.dequantize import SUPPORTED, dequantize
from octavo.models.loading.files import read, read_into
from octavo.models.loading.staging import Staging
from octavo.platforms import available_cores
from octavo.quantization.slot import Slots, WeightSlot
from octavo.tokenization.gguf_file import GGUFFile, GGUFTensor

# Values that the converters compute from the configuration and that Octavo computes itself.
_DERIVED = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")

# Elements dequantised at a time, so that the float32 copies stay in the CPU's cache.
_PIECE = 1 << 19
# Buffer size for a piece in the compute type; longer pieces are sent in parts.
_BUFFER_BYTES = 2 << 20
# Pieces per thread between two progress reports.
_BATCH = 16
_MAX_THREADS = 16


class _Loadable(Protocol):
    def load(self, staging: Staging) -> int:
        """Read and store; returns the number of elements."""


@dataclass(frozen=True, slots=True)
class _RawRows:
    """Rows of a tensor whose bytes go to slots as they are; all of its rows if they are reordered."""

    path: Path
    tensor: GGUFTensor
    rows: range
    slots: Sequence[WeightSlot]
    change: GGUFConversion

    @torch.inference_mode()
    def load(self, staging: Staging) -> int:
        """Read and store; returns the number of elements."""
        row_bytes = self.tensor.num_bytes // self.tensor.num_rows
        num_bytes = len(self.rows) * row_bytes
        with staging.lend_host(num_bytes) as memory:
            raw = memory.view(len(self.rows), row_bytes)
            read_into(self.path, self.tensor.offset + self.rows.start * row_bytes, raw.numpy())
            if self.change.permuted_heads:
                raw = _unpermuted(raw, (len(raw), row_bytes), self.change.permuted_heads).reshape(raw.shape)
            raw = raw.to(self.slots[0].view.device)
            with nullcontext() if staging.is_host else conversion:
                for slot in self.slots:
                    slot.fill(raw)
        return len(self.rows) * (math.prod(self.tensor.shape) // self.tensor.num_rows)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Whole rows of a tensor: their place in the file, and in the tensor that arrives.

    Attributes:
        is_taken: whether they are all that arrives, and are stored from where they are dequantised.
    """

    path: Path
    tensor: GGUFTensor
    arrival: TensorArrival
    first_row: int
    num_rows: int
    change: GGUFConversion
    is_taken: bool = False

    @torch.inference_mode()
    def load(self, staging: Staging) -> int:
        """Read, dequantise and store; returns the number of elements."""
        row_bytes = self.tensor.num_bytes // self.tensor.num_rows
        row_size = math.prod(self.tensor.shape) // self.tensor.num_rows
        count = self.num_rows * row_size
        rows = read(self.path, self.tensor.offset + self.first_row * row_bytes, self.num_rows * row_bytes)
        if self.is_taken:
            values = dequantize(rows.reshape(self.num_rows, -1), self.tensor)
            self.arrival.take((values.float() - self.change.offset if self.change.offset else values).flatten())
            return count
        with staging.in_order():
            destination = self.arrival.part(self.first_row * row_size, count).view(self.num_rows, row_size)
        is_changed = bool(self.change.offset or self.change.permuted_heads)
        may_stay = staging.is_host and not is_changed and _is_plain(destination)
        values = dequantize(rows.reshape(self.num_rows, -1), self.tensor, destination if may_stay else None)
        if values is not destination:
            if self.change.offset:
                values = values.float() - self.change.offset
            if self.change.permuted_heads:
                values = _unpermuted(values, self.tensor.shape, self.change.permuted_heads)
            staging.deposit(values.flatten(), destination.view(-1))
        with staging.in_order():
            self.arrival.arrived(count)
        return count


def _is_plain(destination: torch.Tensor) -> bool:
    """Whether float32 values can be written there as they are computed."""
    return destination.dtype is torch.float32 and destination.is_contiguous()


def _unpermuted(values: torch.Tensor, shape: tuple[int, ...], num_heads: int) -> torch.Tensor:
    """Convert interleaved rotary pairs (llama.cpp) to pairs half a head apart (Hugging Face).

    Args:
        values: whole heads of a weight or bias.
        shape: of the whole tensor, of ``num_heads`` heads.
    """
    return values.view(-1, shape[0] // num_heads // 2, 2, math.prod(shape[1:])).transpose(1, 2)


class GGUFCheckpoint:
    """The tensors of a GGUF file, with Hugging Face's names and the converter's changes undone.

    Raises:
        UnsupportedModelError: the file has tensors of a type that cannot be dequantised.
        WeightsError: the file is truncated or corrupted.
    """

    def __init__(self, path: Path, config: ModelConfig) -> None:
        file = GGUFFile.open(path)
        self.path = path
        self._config = config
        self._architecture = str(file.metadata.get("general.architecture"))
        num_stacked = config.raw.get("num_experts", config.raw.get("num_stacked"))
        self._tensors = {
            own_name: part
            for name, tensor in file.tensors.items()
            if name not in _DERIVED
            for own_name, part in _unstacked(hf_name(name, self._architecture), tensor, num_stacked)
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

    def dtypes(self) -> dict[str, torch.dtype]:
        """Types of all tensors once they are dequantised."""
        return dict.fromkeys(self._tensors, torch.float32)

    def raw_types(self) -> dict[str, str]:
        """See :meth:`Checkpoint.raw_types`."""
        return {name: tensor.type_name for name, tensor in self._tensors.items()}

    def copy_into(self, slots: Slots) -> Iterator[int]:
        """See :meth:`Checkpoint.copy_into`."""
        pieces = self._pieces(slots)
        num_threads = min(available_cores(), _MAX_THREADS)
        device = next(iter(slots.values()))[0].view.device
        staging = Staging(device, num_threads, _BUFFER_BYTES)
        with ThreadPoolExecutor(num_threads) as pool:
            while batch := list(islice(pieces, _BATCH * num_threads)):
                yield from pool.map(lambda piece: piece.load(staging), batch)
        staging.finish()

    def _pieces(self, slots: Slots) -> Iterator[_Loadable]:
        for name, tensor in self._tensors.items():
            if name in slots:
                change = gguf_conversion(name, self._architecture, self._config)
                raw = [slot for slot in slots[name] if slot.raw_type]
                others = [slot for slot in slots[name] if not slot.raw_type]
                if raw:
                    yield from _split_raw(self.path, tensor, raw, change)
                if others:
                    yield from _split(self.path, tensor, others, change)


def _unstacked(name: str, tensor: GGUFTensor, count: int | None) -> Iterator[tuple[str, GGUFTensor]]:
    """A tensor, or each of those that it stacks, under its name."""
    if EACH not in name or count is None or tensor.shape[0] != count or len(tensor.shape) < 2:
        yield name, tensor
        return
    size = tensor.num_bytes // count
    for index in range(count):
        own = replace(tensor, shape=tensor.shape[1:], offset=tensor.offset + index * size, num_bytes=size)
        yield name.replace(EACH, str(index)), own


def _split_raw(
    path: Path, tensor: GGUFTensor, slots: Sequence[WeightSlot], change: GGUFConversion
) -> Iterator[_RawRows]:
    """Split a tensor into pieces that fit a buffer, if it can be; threads store them side by side."""
    rows = range(tensor.num_rows)
    if change.permuted_heads or not takes_pieces(slots):
        yield _RawRows(path, tensor, rows, slots, change)
        return
    for piece in slots[0].pieces(tensor.num_rows, tensor.num_bytes // tensor.num_rows, _BUFFER_BYTES):
        yield _RawRows(path, tensor, piece, [slots[0].piece(piece)], change)


def _split(path: Path, tensor: GGUFTensor, slots: Sequence[WeightSlot], change: GGUFConversion) -> Iterator[_Piece]:
    """Split a tensor into pieces of whole rows, or whole heads if rows are permuted; a vector is one row."""
    arrival = TensorArrival(slots, tensor.shape, torch.float32)
    if arrival.can_take and not change.permuted_heads:
        for rows in slots[0].pieces(tensor.num_rows, tensor.shape[-1], _PIECE):
            part = TensorArrival([slots[0].piece(rows)], (len(rows), tensor.shape[-1]), torch.float32)
            yield _Piece(path, tensor, part, rows.start, len(rows), change, is_taken=True)
        return
    step = max(1, _PIECE // tensor.shape[-1])
    if change.permuted_heads:
        head_dim = tensor.shape[0] // change.permuted_heads
        step = -(-step // head_dim) * head_dim
    for start in range(0, tensor.num_rows, step):
        yield _Piece(path, tensor, arrival, start, min(step, tensor.num_rows - start), change)
