"""What the supervisor hands to an engine process."""

import msgspec

from octavo.config import EngineConfig


class Launch(msgspec.Struct):
    """How an engine process is to start.

    Attributes:
        settings: the engine's settings.
        addresses: where each frontend listens, by its index.
        generation: counts the engine processes of this server, from 1.
    """

    settings: EngineConfig
    addresses: list[str]
    generation: int
