"""Progress bars for what takes long at start."""

import sys

from tqdm import tqdm

# A bar that appears at once and vanishes at once would only flicker.
_DELAY = 1.0


def start_bar(total: int, description: str, unit: str, *, is_wanted: bool) -> tqdm:
    """A bar on standard error that appears after a second, and only on a terminal.

    Args:
        total: how many units there are.
        is_wanted: what the setting ``use_tqdm_on_load`` says.
    """
    return tqdm(
        total=total,
        desc=description,
        unit=f" {unit}",
        unit_scale=True,
        delay=_DELAY,
        disable=not (is_wanted and sys.stderr.isatty()),
    )
