"""Ends a child process when its parent ends, for whatever reason."""

import os
import threading
from collections.abc import Callable


def end_with_parent(clean_up: Callable[[], None] | None = None) -> None:
    """End this process at once when its standard input, a pipe from the parent, closes.

    Args:
        clean_up: called before the end; must not fail.
    """
    threading.Thread(target=_wait_for_end, args=(clean_up,), daemon=True).start()


def _wait_for_end(clean_up: Callable[[], None] | None) -> None:
    # Do not use sys.stdin: a thread that holds its lock makes the interpreter abort at exit.
    while os.read(0, 1):
        pass
    if clean_up is not None:
        clean_up()
    os._exit(0)
