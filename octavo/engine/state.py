"""What an engine process is started with: settings, and the state set by owners, which a restarted engine restores."""

import hashlib
from pathlib import Path
from typing import Self

import msgspec

from octavo.config import EngineConfig

START_FAILED = 2
"""Exit status of an engine process whose start failed, and would fail again."""


class UpdatedWeights(msgspec.Struct, frozen=True):
    """Weights that were loaded from the owner's folder.

    Attributes:
        fingerprint: hash of the names, sizes and modification times of its files.
    """

    folder: str
    fingerprint: str

    @classmethod
    def found_in(cls, folder: Path) -> Self:
        """The weights that are in a folder now."""
        return cls(str(folder), _fingerprint(folder))

    @property
    def are_there(self) -> bool:
        """Whether the folder still has the same files."""
        return _fingerprint(Path(self.folder)) == self.fingerprint


class EngineState(msgspec.Struct, frozen=True):
    """State of an engine that owners can change.

    Attributes:
        weights: updated weights; None for the model's own.
        is_updating: a weight update was started and not finished.
        is_paused: no step is started.
        sleep_level: see :class:`~octavo.engine.core.EngineCore`; an engine restarted asleep allocates no memory.
        num_blocks: size of the cache, for an engine that restarts asleep and so cannot measure the memory left.
    """

    weights: UpdatedWeights | None = None
    weight_version: str = "default"
    is_updating: bool = False
    is_paused: bool = False
    sleep_level: int = 0
    num_blocks: int = 0

    @property
    def summary(self) -> str:
        """A description of the state for the log."""
        notes = ["paused"] if self.is_paused else []
        if self.sleep_level:
            notes.append(f"asleep at level {self.sleep_level}")
        if self.weights is not None:
            notes.append(f"with the weights of {self.weights.folder}")
        return ", ".join([*notes, f"weight version {self.weight_version!r}"])


AS_CONFIGURED = EngineState()
"""The state in which no owner has changed anything."""


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


class Launch(msgspec.Struct):
    """Startup parameters of an engine process.

    Attributes:
        addresses: the frontends' addresses, by frontend index.
        generation: number of this engine process in this server, from 1.
        reports: file descriptor to which the engine writes its :class:`EngineState`, a line of JSON per change.
        state: the state last reported by its predecessor.
    """

    settings: EngineConfig
    addresses: list[str]
    generation: int
    reports: int
    state: EngineState
