"""The GGUF container: metadata and the table of tensors, read without trusting a byte of it.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.errors import ModelNotFoundError, UnsupportedModelError, WeightsError

_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 20
_MAX_DIMS = 4
_MAX_NESTING = 4
_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, struct.Struct] = {
    number: struct.Struct(f"<{code}")
    for number, code in {
        0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
    }.items()
}  # fmt: skip
_U32, _U64 = _SCALARS[4], _SCALARS[10]


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where one tensor lies.

    Attributes:
        shape: as numpy and torch count, the slowest dimension first.
        type_id: ggml's number of the type.
        type_name: its name, such as ``Q4_1``.
        offset: of its first byte in the file.
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
        metadata: key → value; arrays are lists.
        tensors: name → place.
    """

    def __init__(self, path: Path, metadata: dict[str, Any], tensors: dict[str, GGUFTensor]) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors

    @classmethod
    def open(cls, path: Path) -> "GGUFFile":
        """Read a file's header.

        Raises:
            ModelNotFoundError: there is no such file.
            UnsupportedModelError: it is no GGUF file, or of a version or tensor type that is not known.
            WeightsError: it is truncated or its header contradicts itself.
        """
        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                reader = _Reader(path, data)
                try:
                    return cls(path, *reader.read())
                except (struct.error, IndexError):
                    raise WeightsError(f"{path} is truncated or corrupted: its header runs past the end.") from None
                except UnicodeDecodeError:
                    raise WeightsError(f"{path} is corrupted: a name in its header is not UTF-8.") from None
                finally:
                    reader.release()
        except FileNotFoundError:
            raise ModelNotFoundError(f"There is no file {path}.") from None
        except ValueError as error:
            if isinstance(error, (WeightsError, UnsupportedModelError)):
                raise
            raise WeightsError(f"{path} is empty.") from None
        except OSError as error:
            raise WeightsError(f"{path} cannot be read: {error.strerror or error}.") from None


class _Reader:
    """Walks through a header once, from front to back."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = memoryview(data)
        self._size = len(data)
        self._at = 0

    def release(self) -> None:
        """Let go of the mapping."""
        self._data.release()

    def read(self) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
        """The metadata and the tensors."""
        if bytes(self._data[:4]) != b"GGUF":
            raise UnsupportedModelError(f"{self._path} is not a GGUF file.")
        self._at = 4
        version = self._number(_U32)
        if version not in (2, 3):
            raise UnsupportedModelError(f"{self._path} is of GGUF version {version}; versions 2 and 3 are supported.")
        num_tensors = self._count("tensors", _MAX_TENSORS)
        num_keys = self._count("keys", _MAX_KEYS)
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string()
            metadata[key] = self._value(self._number(_U32), 0)
        infos = [self._tensor_info() for _ in range(num_tensors)]
        return metadata, self._place(infos, metadata)

    def _number(self, kind: struct.Struct) -> Any:
        (value,) = kind.unpack_from(self._data, self._at)
        self._at += kind.size
        return value

    def _count(self, what: str, limit: int) -> int:
        count: int = self._number(_U64)
        if count > limit:
            raise WeightsError(f"{self._path} is corrupted: its header claims {count} {what}.")
        return count

    def _string(self) -> str:
        length = self._number(_U64)
        end = self._at + length
        if end > self._size:
            raise IndexError
        text = str(self._data[self._at : end], "utf-8")
        self._at = end
        return text

    def _value(self, kind: int, depth: int) -> Any:
        if kind == _STRING:
            return self._lenient_string()
        if kind == _ARRAY:
            return self._array(depth)
        scalar = _SCALARS.get(kind)
        if scalar is None:
            raise WeightsError(f"{self._path} is corrupted: its header holds a value of unknown type {kind}.")
        return self._number(scalar)

    def _lenient_string(self) -> str:
        """A value need not be UTF-8: tokens of some vocabularies are not."""
        return self._strings(1)[0]

    def _array(self, depth: int) -> list[Any]:
        kind, count = self._number(_U32), self._number(_U64)
        scalar = _SCALARS.get(kind)
        least = scalar.size if scalar is not None else 8
        if depth >= _MAX_NESTING or count > (self._size - self._at) // least:
            raise WeightsError(f"{self._path} is corrupted: its header claims an array of {count} values.")
        if scalar is not None:
            values = struct.unpack_from(f"<{count}{scalar.format[-1]}", self._data, self._at)
            self._at += count * scalar.size
            return list(values)
        if kind == _STRING:
            return self._strings(count)
        return [self._value(kind, depth + 1) for _ in range(count)]

    def _strings(self, count: int) -> list[str]:
        """A vocabulary: hundreds of thousands of strings, so the loop does as little as it can."""
        data, at, size, read_length = self._data, self._at, self._size, _U64.unpack_from
        strings = []
        for _ in range(count):
            (length,) = read_length(data, at)
            at += 8
            end = at + length
            if end > size:
                raise IndexError
            strings.append(str(data[at:end], "utf-8", "replace"))
            at = end
        self._at = at
        return strings

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        num_dims = self._number(_U32)
        if not 1 <= num_dims <= _MAX_DIMS:
            raise WeightsError(f"{self._path} is corrupted: tensor {name!r} claims {num_dims} dimensions.")
        shape = tuple(self._number(_U64) for _ in range(num_dims))[::-1]
        return name, shape, self._number(_U32), self._number(_U64)

    def _place(
        self, infos: list[tuple[str, tuple[int, ...], int, int]], metadata: dict[str, Any]
    ) -> dict[str, GGUFTensor]:
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise WeightsError(f"{self._path} is corrupted: its alignment is {alignment!r}.")
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, type_id, offset in infos:
            if name in tensors:
                raise WeightsError(f"{self._path} is corrupted: it holds the tensor {name!r} twice.")
            type_name, num_bytes = _size_of(self._path, name, shape, type_id)
            if start + offset + num_bytes > self._size:
                raise WeightsError(
                    f"{self._path} is truncated: tensor {name!r} ends at byte {start + offset + num_bytes}, the file "
                    f"at {self._size}."
                )
            tensors[name] = GGUFTensor(name, shape, type_id, type_name, start + offset, num_bytes)
        return tensors


def _size_of(path: Path, name: str, shape: tuple[int, ...], type_id: int) -> tuple[str, int]:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(type_id)
        block, block_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise UnsupportedModelError(f"{path}: tensor {name!r} is of type {type_id}, which is not known.") from None
    if shape[-1] % block:
        raise WeightsError(f"{path} is corrupted: rows of tensor {name!r} do not divide into {kind.name} blocks.")
    return kind.name, math.prod(shape) // block * block_bytes
