"""Weights from the safetensors files of a Hugging Face folder."""

from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open

from octavo.errors import UnsupportedModelError, WeightsError
from octavo.hub.json_file import read_json
from octavo.models.loading.checkpoint import SlotFiller

_INDEX = "model.safetensors.index.json"


def fill_from_safetensors(folder: Path, filler: SlotFiller) -> Iterator[int]:
    """Copy all tensors; yields the bytes read after each.

    Raises:
        WeightsError: a file is missing, truncated or corrupted.
        UnsupportedModelError: the folder holds no safetensors files.
    """
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  the handle is no mapping
                    destination = filler.slot(name, tuple(file.get_slice(name).get_shape()))
                    if destination is None:
                        continue
                    tensor = file.get_tensor(name)
                    filler.fill(name, destination, tensor)
                    yield tensor.numel() * tensor.element_size()
        except SafetensorError as error:
            raise WeightsError(f"{path} is truncated or corrupted: {error}.") from None
        except OSError as error:
            raise WeightsError(f"{path} cannot be read: {error.strerror or error}.") from None


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files: those that the index names, or all there are.

    Raises:
        WeightsError: the index names files that are not there or lie elsewhere.
        UnsupportedModelError: there are none.
    """
    index = folder / _INDEX
    if index.is_file():
        return _indexed_files(folder, index)
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return files
    pickled = sorted(path.name for kind in ("*.bin", "*.pt", "*.pth") for path in folder.glob(kind))
    if pickled:
        raise UnsupportedModelError(
            f"{folder} holds only {pickled[0]}, a pickle, which can run code when it is loaded; Octavo does not load "
            "such files. Convert it to safetensors, for example with save_pretrained of transformers."
        )
    raise UnsupportedModelError(f"{folder} holds no weights (*.safetensors).")


def total_bytes(files: list[Path]) -> int:
    """Size of the files, for a progress bar."""
    return sum(path.stat().st_size for path in files)


def _indexed_files(folder: Path, index: Path) -> list[Path]:
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        raise WeightsError(f"{index} has no weight_map.")
    files = []
    for name in sorted(set(shards.values())):
        # A name with a path in it could reach any file of this machine.
        if name != Path(name).name or not name.endswith(".safetensors"):
            raise WeightsError(f"{index} names {name!r}, which is not a safetensors file beside it.")
        if not (folder / name).is_file():
            raise WeightsError(f"{index} names {name}, which is missing.")
        files.append(folder / name)
    return files
