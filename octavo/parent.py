"""Ends a child process when its parent ends, for whatever reason."""

import os
import threading


def end_with_parent() -> None:
    """End this process at once when its standard input, a pipe from the parent, closes."""
    threading.Thread(target=_wait_for_end, daemon=True).start()


def _wait_for_end() -> None:
    # Do not use sys.stdin: a thread that holds its lock makes the interpreter abort at exit.
    while os.read(0, 1):
        pass
    os._exit(0)
