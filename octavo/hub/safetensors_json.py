"""The header of safetensors files as they have it: eight bytes of length, a JSON object, then the tensors.

Source: https://github.com/huggingface/safetensors#format. The library memory-maps the whole file.
"""

import json
from pathlib import Path
from typing import Any

from octavo.errors import WeightsError

_LENGTH_BYTES = 8
_MAX_BYTES = 100_000_000
_METADATA = "__metadata__"


def read_tensor_entries(path: Path) -> tuple[dict[str, Any], int, int]:
    """What a file says of its tensors, by name, where in the file their bytes begin, and the file's size.

    Raises:
        WeightsError: the file cannot be read, is truncated or corrupted.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size < _LENGTH_BYTES:
                raise corrupted(path, "it is too short for a header")
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if length > _MAX_BYTES or _LENGTH_BYTES + length > size:
                raise corrupted(path, f"its header would be {length} bytes long")
            text = file.read(length)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror or error}.") from None
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise corrupted(path, f"its header is no JSON ({error})") from None
    if not isinstance(header, dict):
        raise corrupted(path, "its header is no JSON object")
    header.pop(_METADATA, None)
    return header, _LENGTH_BYTES + length, size


def corrupted(path: Path, reason: str) -> WeightsError:
    """The error for a file of this format that breaks its rules."""
    return WeightsError(f"{path} is truncated or corrupted: {reason}.")
