"""Reads the header of GGUF files: metadata and the table of tensors. The file is untrusted, so everything is checked.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import itertools
import math
import mmap
import os
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, overload

from octavo.errors import ModelNotFoundError, UnsupportedModelError, WeightsError

# Limits on the counts and lengths that a header may claim, so that a damaged file costs little memory and time. The
# largest headers in use (262,144 tokens, half a million merges) have 20 MB.
_MAX_HEADER = 128 << 20
_MAX_ARRAY = 1 << 23
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 20
_MAX_NAME = 256
_MAX_DIMS = 4
_MAX_NESTING = 4
_LONGEST_LIST = 1024
"""Numbers of an array that are read as objects; longer arrays describe vocabularies."""
_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, struct.Struct] = {
    number: struct.Struct(f"<{code}")
    for number, code in {
        0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
    }.items()
}  # fmt: skip
_U32, _U64 = _SCALARS[4], _SCALARS[10]

_BLOCKS: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2),
    2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
}  # fmt: skip
"""Type number → name, values and bytes of a block. The common ones; the others are looked up in ``gguf``, which is
slow to import."""


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """A tensor's place in a file.

    Attributes:
        shape: in NumPy's order, the slowest dimension first.
        type_id: ggml's number of the type.
        type_name: the type's name, such as ``Q4_1``.
        offset: offset of its first byte in the file.
        num_bytes: its size.
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    type_name: str
    offset: int
    num_bytes: int

    @property
    def num_rows(self) -> int:
        """Product of all dimensions but the last."""
        return math.prod(self.shape[:-1])


class GGUFFile:
    """An opened GGUF file.

    Attributes:
        path: the file.
        metadata: key → value; arrays are lists, those of strings :class:`GGUFStrings`, long ones of numbers
            :class:`array.array`.
        tensors: name → place in the file.
    """

    def __init__(self, path: Path, metadata: dict[str, Any], tensors: dict[str, GGUFTensor]) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors

    @classmethod
    def open(cls, path: Path) -> "GGUFFile":
        """Read a file's header, or take the last one that was read if the file has not changed since.

        Raises:
            ModelNotFoundError: there is no such file.
            UnsupportedModelError: it is not a GGUF file, or has an unknown version or tensor type.
            WeightsError: it is truncated or its header contradicts itself.
        """
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
        except FileNotFoundError:
            raise ModelNotFoundError(f"There is no file {path}.") from None
        except OSError as error:
            raise _unreadable(path, error) from None
        return _read_header(path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))


# A start reads configuration, tokenizer, generation settings and weights one after another.
@lru_cache(maxsize=1)
def _read_header(path: Path, version: tuple[int, ...]) -> GGUFFile:
    """Read a file's header.

    Args:
        version: what tells this content of the file from others.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise WeightsError(f"{path} is empty.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return GGUFFile(path, *_GGUFReader(path, data, size).read())
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> WeightsError:
    return WeightsError(f"{path} cannot be read: {error.strerror or error}.")


class GGUFStrings(Sequence[str]):
    """An array of strings, read from the file on each access: only tokenizers need the vocabularies of a header.

    Args:
        path: the file.
        start, end: where it holds the strings, each after its length.
    """

    def __init__(self, path: Path, start: int, end: int, count: int) -> None:
        self._path = path
        self._start = start
        self._end = end
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self.texts()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts())

    def texts(self) -> list[str]:
        """All of them.

        Raises:
            WeightsError: the file has changed since its header was read.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._start)
                data = file.read(self._end - self._start)
            return self._decode(data)
        except OSError as error:
            raise _unreadable(self._path, error) from None
        except struct.error:
            raise WeightsError(f"{self._path} has changed while it was read.") from None

    def _decode(self, data: bytes) -> list[str]:
        at, length_at = 0, _U64.unpack_from
        texts: list[str] = []
        for _ in range(self._count):
            (length,) = length_at(data, at)
            start = at + 8
            at = start + length
            # A value need not be UTF-8: tokens of some vocabularies are not.
            texts.append(data[start:at].decode("utf-8", "replace"))
        return texts


class _GGUFReader:
    """Parses a header sequentially."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self._path = path
        self._data = data
        self._size = size
        self._limit = min(size, _MAX_HEADER)
        self._at = 0

    def read(self) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
        """The metadata and the tensors."""
        self._check_kind()
        try:
            num_tensors = self._count("tensors", _MAX_TENSORS)
            num_keys = self._count("keys", _MAX_KEYS)
            metadata = self._metadata(num_keys)
            infos = [self._tensor_info() for _ in range(num_tensors)]
        except (struct.error, IndexError):
            raise self._corrupted("its header runs past the end", "truncated or corrupted") from None
        except UnicodeDecodeError:
            raise self._corrupted("a name in its header is not text") from None
        return metadata, self._place(infos, metadata)

    def _check_kind(self) -> None:
        if self._data[:4] != b"GGUF":
            raise UnsupportedModelError(f"{self._path} is not a GGUF file.")
        if self._size < 8:
            raise self._corrupted("its header runs past the end", "truncated or corrupted")
        self._at = 4
        version: int = self._number(_U32)
        if version not in (2, 3):
            if version.to_bytes(4, "big") in (b"\2\0\0\0", b"\3\0\0\0"):
                raise UnsupportedModelError(
                    f"{self._path} is a big-endian GGUF file; only little-endian ones are read."
                )
            raise UnsupportedModelError(f"{self._path} is of GGUF version {version}; versions 2 and 3 are supported.")

    def _corrupted(self, reason: str, state: str = "corrupted") -> WeightsError:
        return WeightsError(f"{self._path} is {state}: {reason}.")

    def _number(self, kind: struct.Struct) -> Any:
        (value,) = kind.unpack_from(self._data, self._at)
        self._at += kind.size
        return value

    def _count(self, what: str, limit: int) -> int:
        count: int = self._number(_U64)
        if count > limit:
            raise self._corrupted(f"its header claims {count} {what}")
        return count

    def _bytes(self) -> bytes:
        length = self._number(_U64)
        start, self._at = self._at, self._at + length
        if self._at > self._limit:
            raise IndexError
        return self._data[start : self._at]

    def _name(self) -> str:
        """Read a key or a tensor's name; implausible ones are rejected, so that they do not get into messages."""
        raw = self._bytes()
        if len(raw) > _MAX_NAME:
            raise self._corrupted(f"a name in its header has {len(raw)} bytes")
        name = raw.decode()
        if not name.isprintable():
            raise self._corrupted("a name in its header is not text")
        return name

    def _metadata(self, num_keys: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._name()
            if key in metadata:
                raise self._corrupted(f"it holds the key {key!r} twice")
            metadata[key] = self._value(self._number(_U32), 0)
        return metadata

    def _value(self, kind: int, depth: int) -> Any:
        if kind == _STRING:
            # Values need not be UTF-8: tokens of some vocabularies are not.
            return self._bytes().decode("utf-8", "replace")
        if kind == _ARRAY:
            return self._array(depth)
        return self._number(self._scalar(kind))

    def _scalar(self, kind: int) -> struct.Struct:
        scalar = _SCALARS.get(kind)
        if scalar is None:
            raise self._corrupted(f"its header holds a value of unknown type {kind}")
        return scalar

    def _array(self, depth: int) -> Sequence[Any]:
        kind, count = self._number(_U32), self._count("values in an array", _MAX_ARRAY)
        if kind == _STRING:
            return self._strings(count)
        if kind == _ARRAY:
            if depth >= _MAX_NESTING:
                raise self._corrupted(f"its header nests arrays deeper than {_MAX_NESTING} levels")
            return [self._array(depth + 1) for _ in range(count)]
        scalar = self._scalar(kind)
        if self._at + count * scalar.size > self._limit:
            raise IndexError
        start, self._at = self._at, self._at + count * scalar.size
        code = scalar.format[-1]
        if count <= _LONGEST_LIST or code == "?":
            return list(struct.unpack_from(f"<{count}{code}", self._data, start))
        numbers = array(code, self._data[start : self._at])
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers

    def _strings(self, count: int) -> "GGUFStrings":
        """Skip the body of an array of strings, which is most of a header; it is decoded on access."""
        data, at, limit, length_at = self._data, self._at, self._limit, _U64.unpack_from
        start = at
        for _ in range(count):
            at += 8 + length_at(data, at)[0]
            if at > limit:
                raise IndexError
        self._at = at
        return GGUFStrings(self._path, start, at, count)

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._name()
        num_dims = self._number(_U32)
        if not 1 <= num_dims <= _MAX_DIMS:
            raise self._corrupted(f"tensor {name!r} claims {num_dims} dimensions")
        shape = tuple(self._number(_U64) for _ in range(num_dims))[::-1]
        return name, shape, self._number(_U32), self._number(_U64)

    def _place(
        self, infos: list[tuple[str, tuple[int, ...], int, int]], metadata: dict[str, Any]
    ) -> dict[str, GGUFTensor]:
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._corrupted(f"its alignment is {alignment!r}")
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, type_id, offset in infos:
            if name in tensors:
                raise self._corrupted(f"it holds the tensor {name!r} twice")
            if offset % alignment:
                raise self._corrupted(f"tensor {name!r} starts at {offset}, which is no multiple of {alignment}")
            type_name, num_bytes = _size_of(self._path, name, shape, type_id)
            end = start + offset + num_bytes
            if end > self._size:
                raise self._corrupted(f"tensor {name!r} ends at byte {end}, the file at {self._size}", "truncated")
            tensors[name] = GGUFTensor(name, shape, type_id, type_name, start + offset, num_bytes)
        self._check_overlaps(tensors)
        return tensors

    def _check_overlaps(self, tensors: dict[str, GGUFTensor]) -> None:
        in_order = sorted(tensors.values(), key=lambda tensor: tensor.offset)
        for tensor, follower in itertools.pairwise(in_order):
            if tensor.offset + tensor.num_bytes > follower.offset:
                raise self._corrupted(f"the tensors {tensor.name!r} and {follower.name!r} overlap")


def _size_of(path: Path, name: str, shape: tuple[int, ...], type_id: int) -> tuple[str, int]:
    known = _BLOCKS.get(type_id) or _rare_block(type_id)
    if known is None:
        raise UnsupportedModelError(f"{path}: tensor {name!r} is of type {type_id}, which is not known.")
    type_name, block, block_bytes = known
    if shape[-1] % block:
        raise WeightsError(f"{path} is corrupted: rows of tensor {name!r} do not divide into {type_name} blocks.")
    return type_name, math.prod(shape) // block * block_bytes


def _rare_block(type_id: int) -> tuple[str, int, int] | None:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(type_id)
    except ValueError:
        return None
    return kind.name, *GGML_QUANT_SIZES[kind]
