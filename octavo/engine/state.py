"""What owners made of an engine, for the one that comes after it."""

import hashlib
from pathlib import Path
from typing import Self

import msgspec


class UpdatedWeights(msgspec.Struct, frozen=True):
    """Weights that were read from a folder of the owner's.

    Attributes:
        folder: where they lie.
        fingerprint: of the names, sizes and times of the files there.
    """

    folder: str
    fingerprint: str

    @classmethod
    def found_in(cls, folder: Path) -> Self:
        """What lies in a folder now."""
        return cls(str(folder), _fingerprint(folder))

    @property
    def are_there(self) -> bool:
        """Whether the same files still lie there."""
        return _fingerprint(Path(self.folder)) == self.fingerprint


class EngineState(msgspec.Struct, frozen=True):
    """An engine as its owners set it.

    Attributes:
        weights: in place of the model's own; None if there were no others.
        weight_version: their name.
        is_updating: a weight update was started and not finished.
        is_paused: no step is begun.
        sleep_level: as of :class:`~octavo.engine.core.EngineCore`; an engine that sleeps takes no memory to come back.
        num_blocks: size of the cache, for the one that cannot measure what is left for it.
    """

    weights: UpdatedWeights | None = None
    weight_version: str = "default"
    is_updating: bool = False
    is_paused: bool = False
    sleep_level: int = 0
    num_blocks: int = 0

    @property
    def in_words(self) -> str:
        """What differs from an engine that nobody has touched."""
        words = ["paused"] if self.is_paused else []
        if self.sleep_level:
            words.append(f"asleep at level {self.sleep_level}")
        if self.weights is not None:
            words.append(f"with the weights of {self.weights.folder}")
        return ", ".join([*words, f"weight version {self.weight_version!r}"])


AS_CONFIGURED = EngineState()
"""No owner has changed anything."""


def _fingerprint(folder: Path) -> str:
    digest = hashlib.sha256()
    for pattern in ("*.safetensors*", "*/*.safetensors*"):  # modules of pooling models have folders of their own
        for path in sorted(folder.glob(pattern)):
            try:
                status = path.stat()
            except OSError:
                continue  # gone meanwhile
            digest.update(f"{path.relative_to(folder)}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()
