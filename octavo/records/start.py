"""The phases of an engine's startup."""

import msgspec


class StartPhase(msgspec.Struct, omit_defaults=True):
    """One phase of startup.

    Attributes:
        note: additional information; may be set while the phase runs.
        num_bytes: bytes moved, 0 if not applicable; may be set while the phase runs.
    """

    name: str
    seconds: float = 0.0
    note: str = ""
    num_bytes: int = 0

    def __str__(self) -> str:
        notes = [self.note] if self.note else []
        if self.num_bytes:
            notes.append(f"{self.num_bytes / 1e9:.2f} GB, {self.num_bytes / 1e9 / max(self.seconds, 1e-9):.1f} GB/s")
        return f"{self.name} {self.seconds:.2f} s" + (f" ({', '.join(notes)})" if notes else "")
