"""``python -m octavo.compat script.py [args]``: run code written for vLLM, unchanged; ``-m module`` for a module."""

import runpy
import sys
from pathlib import Path

from octavo.compat.mirror import install

_USAGE = "usage: python -m octavo.compat script.py [arguments]\n       python -m octavo.compat -m module [arguments]"


def main(arguments: list[str]) -> int:
    """Run what the arguments name; returns the exit status if there is nothing to run."""
    is_module = arguments[:1] == ["-m"]
    rest = arguments[1:] if is_module else arguments
    if not rest or rest[0].startswith("-"):
        print(_USAGE, file=sys.stderr)
        return 0 if rest[:1] in (["-h"], ["--help"]) else 2
    try:
        install()
    except ImportError as error:
        print(error, file=sys.stderr)
        return 1
    sys.argv = rest
    if is_module:
        # As "python -m" does it, whose own entry at the front stands for the current folder already.
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return 0
    if not Path(rest[0]).exists():
        print(f"There is no file {rest[0]!r}.", file=sys.stderr)
        return 2
    sys.path[0] = str(Path(rest[0]).resolve().parent)
    runpy.run_path(rest[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
