"""Formats sizes for messages."""


def size(num_bytes: int) -> str:
    """A size in binary units, such as ``1.50 GiB``."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"
