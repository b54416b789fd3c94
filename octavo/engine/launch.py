"""What the supervisor hands to an engine process."""

import msgspec

from octavo.config import EngineConfig
from octavo.engine.state import EngineState

START_FAILED = 2
"""Exit status of an engine process that could not start and could not the next time either."""


class Launch(msgspec.Struct):
    """How an engine process is to start.

    Attributes:
        settings: the engine's settings.
        addresses: where each frontend listens, by its index.
        generation: counts the engine processes of this server, from 1.
        reports: file descriptor for its :class:`EngineState`, a line of JSON each time that an owner has changed it.
        state: what the last one reported.
    """

    settings: EngineConfig
    addresses: list[str]
    generation: int
    reports: int
    state: EngineState
