"""Checks what the header of a safetensors file says: the tensors follow it without gaps.

Source: https://github.com/huggingface/safetensors#format. The library does not report the offsets of tensors.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from octavo.errors import UnsupportedModelError
from octavo.hub.safetensors_json import corrupted, read_tensor_entries

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
}
# Tables and causal masks that older models store next to their weights, in these types; they are never read.
_TABLES = ("position_ids", "token_type_ids", "attn.bias", "attention.bias", "causal_mask")
_OF_SAME_SIZE = {"I64": "F64", "BOOL": "F8_E4M3", "U8": "F8_E4M3"}


@dataclass(frozen=True, slots=True)
class SafetensorsEntry:
    """A tensor's place in a file.

    Attributes:
        offset: offset of its first byte in the file.
    """

    name: str
    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def num_bytes(self) -> int:
        """The tensor's size in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(path: Path) -> list[SafetensorsEntry]:
    """The tensors of a file, in file order.

    Raises:
        WeightsError: the file cannot be read, is truncated or corrupted.
        UnsupportedModelError: a tensor has a type that weights cannot have.
    """
    entries, start, size = read_tensor_entries(path)
    tensors = [_tensor(path, start, name, entry) for name, entry in entries.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.num_bytes))
    end = start
    for tensor in tensors:
        if tensor.offset != end:
            raise corrupted(path, f"{tensor.name[:200]} does not begin where the tensor before it ends")
        end += tensor.num_bytes
    if end != size:
        raise corrupted(path, f"its tensors end at byte {end}, the file at byte {size}")
    return tensors


def _tensor(path: Path, start: int, name: str, entry: Any) -> SafetensorsEntry:
    if not isinstance(entry, dict):
        raise corrupted(path, f"the header's entry for {name[:200]} is no object")
    dtype, shape, place = entry.get("dtype"), _counts(entry.get("shape")), _counts(entry.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or place is None or len(place) != 2:
        raise corrupted(path, f"the header does not say type, shape and place of {name[:200]}")
    if dtype in _OF_SAME_SIZE and name.endswith(_TABLES):
        dtype = _OF_SAME_SIZE[dtype]
    if dtype not in _DTYPES:
        raise UnsupportedModelError(
            f"{path}: {name} is of the type {dtype}; supported are {', '.join(sorted(_DTYPES))}."
        )
    tensor = SafetensorsEntry(name, path, _DTYPES[dtype], shape, start + place[0])
    if tensor.num_bytes != place[1] - place[0]:
        raise corrupted(path, f"the shape of {name[:200]} does not go with its {place[1] - place[0]} bytes")
    return tensor


def _counts(value: Any) -> tuple[int, ...] | None:
    """The value if it is a list of non-negative integers, else None."""
    is_one = isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
    return tuple(value) if is_one else None
