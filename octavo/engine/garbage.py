"""Exempts long-lived objects from garbage collection."""

import atexit
import gc


def freeze_until_exit() -> None:
    """Exempt everything that exists now from garbage collection until the interpreter exits.

    At exit it counts again: an interpreter that leaves frozen cycles behind never finalizes the extension modules in
    them, and their bindings (nanobind, in Triton) report every class and function as leaked.
    """
    atexit.register(gc.unfreeze)
    gc.freeze()
