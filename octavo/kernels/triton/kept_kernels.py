"""Where compiled kernels are kept from one start to the next. It imports nothing, so that it is known early."""

import os
from pathlib import Path


def kernel_folder(root: str | None) -> Path | None:
    """The folder of kept kernels; None for that of Triton's variable.

    Args:
        root: the setting ``cache_root``.
    """
    if root is None and os.environ.get("TRITON_CACHE_DIR"):
        return None
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    folder = caches / "octavo" if root is None else Path(root)
    return folder.expanduser() / "kernels"


def is_unused(folder: Path) -> bool:
    """Whether no kernel has been kept there yet."""
    return not folder.is_dir() or next(folder.iterdir(), None) is None
