"""Where the time of an engine's start went."""

import msgspec


class StartPhase(msgspec.Struct, omit_defaults=True):
    """One phase of a start.

    Attributes:
        words: what else is worth saying about it; may be filled in while it runs.
        num_bytes: bytes it moved, 0 if that says nothing; likewise.
    """

    name: str
    seconds: float = 0.0
    words: str = ""
    num_bytes: int = 0

    def __str__(self) -> str:
        notes = [self.words] if self.words else []
        if self.num_bytes:
            notes.append(f"{self.num_bytes / 1e9:.2f} GB, {self.num_bytes / 1e9 / max(self.seconds, 1e-9):.1f} GB/s")
        return f"{self.name} {self.seconds:.2f} s" + (f" ({', '.join(notes)})" if notes else "")
