"""Reads parts of files, and puts a folder's files in order.

Files are never memory-mapped: a disk error would then kill the process with a signal.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import WeightsError


def in_natural_order(names: Iterable[str]) -> list[str]:
    """Different names, sorted with numbers by their value: ``model-2`` before ``model-10``."""

    def key(name: str) -> tuple[list[tuple[int, str]], str]:
        pieces = re.split(r"([0-9]+)", name)
        pieces[1::2] = [digits.lstrip("0") for digits in pieces[1::2]]  # the longer number is the larger one
        return [(index % 2 and len(piece), piece) for index, piece in enumerate(pieces)], name

    return sorted(set(names), key=key)


def read_into(path: Path, offset: int, memory: NDArray[Any]) -> None:
    """Fill contiguous memory with a file's bytes from ``offset`` on; releases the GIL while reading.

    Raises:
        WeightsError: the file ends too early or cannot be read.
    """
    target = memory.reshape(-1).view(np.uint8).data
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            while target:
                num_read = file.readinto(target)
                if not num_read:
                    raise WeightsError(f"{path} is truncated: it ends before byte {offset + memory.nbytes}.")
                target, offset = target[num_read:], offset + num_read
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror or error}.") from None


def read(path: Path, offset: int, num_bytes: int) -> NDArray[np.uint8]:
    """Bytes of a file, ``[num_bytes]``; raises what :func:`read_into` raises."""
    buffer = np.empty(num_bytes, np.uint8)
    read_into(path, offset, buffer)
    return buffer
