"""Progress bars for the long phases of startup."""

import sys

from tqdm import tqdm

# Show no bar for phases shorter than this: it would only flicker.
_DELAY = 1.0


def start_bar(total: int, description: str, unit: str, *, is_wanted: bool) -> tqdm:
    """A bar on standard error that appears after a second, and only on a terminal.

    Args:
        is_wanted: the setting ``use_tqdm_on_load``.
    """
    return tqdm(
        total=total,
        desc=description,
        unit=f" {unit}",
        unit_scale=True,
        delay=_DELAY,
        disable=not (is_wanted and sys.stderr.isatty()),
    )
