"""Weights in the safetensors files of a Hugging Face folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from octavo.errors import UnsupportedModelError, WeightsError
from octavo.hub.json_file import read_json

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_DTYPES = {"F64", "F32", "F16", "BF16"}


class SafetensorsCheckpoint:
    """The safetensors files of a folder; headers are read at construction, tensors when they are copied.

    Raises:
        WeightsError: a file is missing, truncated or corrupted, or two hold the same tensor.
        UnsupportedModelError: there are no such files, or they hold types that are no weights.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._names: dict[Path, list[str]] = {}
        for path in weight_files(folder):
            with _Opened(path) as file:
                self._names[path] = list(file.keys())
                for name in self._names[path]:
                    self._add(path, name, file.get_slice(name))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors by name."""
        return self._shapes

    def copy_into(self, slots: dict[str, torch.Tensor]) -> Iterator[int]:
        """See :meth:`Checkpoint.copy_into`."""
        for path, names in self._names.items():
            with _Opened(path) as file:
                for name in names:
                    if name in slots:
                        slots[name].copy_(file.get_tensor(name))
                        yield slots[name].numel()

    def _add(self, path: Path, name: str, entry: Any) -> None:
        if name in self._shapes:
            raise WeightsError(f"{path} holds the tensor {name}, which another file of the folder holds too.")
        if entry.get_dtype() not in _DTYPES:
            raise UnsupportedModelError(
                f"{path}: {name} is of the type {entry.get_dtype()}; supported are {', '.join(sorted(_DTYPES))}."
            )
        self._shapes[name] = tuple(entry.get_shape())


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files: the one of the usual name, those that the index names, or all there are.

    Raises:
        WeightsError: the index names files that are not there or lie elsewhere.
        UnsupportedModelError: there are none.
    """
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    if (folder / _INDEX).is_file():
        return _indexed_files(folder, folder / _INDEX)
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return files
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
    for name in sorted(set(shards.values())):
        # A name with a path in it could reach any file of this machine.
        if name != Path(name).name or "\\" in name or not name.endswith(".safetensors"):
            raise WeightsError(f"{index} names {name[:200]!r}, which is not a safetensors file beside it.")
        if not (folder / name).is_file():
            raise WeightsError(f"{index} names {name}, which is missing.")
        files.append(folder / name)
    return files


class _Opened:
    """``safe_open`` whose errors are sentences, also those raised while it is in use."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Any:
        try:
            self._file = safe_open(self._path, framework="pt")
            return self._file.__enter__()
        except (SafetensorError, OSError) as error:
            raise self._sentence(error) from None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._file.__exit__(kind, error, trace)
        if isinstance(error, (SafetensorError, OSError)) and not isinstance(error, WeightsError):
            raise self._sentence(error) from None

    def _sentence(self, error: Exception) -> WeightsError:
        if isinstance(error, OSError):
            return WeightsError(f"{self._path} cannot be read: {error.strerror or error}.")
        return WeightsError(f"{self._path} is truncated or corrupted: {error}.")
