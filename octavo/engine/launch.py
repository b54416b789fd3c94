"""The startup message from the supervisor to an engine process."""

import msgspec

from octavo.config import EngineConfig
from octavo.engine.state import EngineState

START_FAILED = 2
"""Exit status of an engine process whose start failed, and would fail again."""


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
