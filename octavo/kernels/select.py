"""Binds a platform's kernel set."""

from importlib import import_module

import octavo.kernels.cpu.register  # noqa: F401  bound from the start
from octavo.kernels.dispatch import bind, keep_compiled
from octavo.platforms import Platform

_MODULES = {"cpu": "octavo.kernels.cpu.register", "cuda": "octavo.kernels.triton.register"}
"""Kernel set → the module that registers its implementations, imported only where the set is used."""


def bind_kernels(platform: Platform, cache_root: str | None = None) -> None:
    """Use a platform's kernel set for tensors on its devices; call it before the first step, or before loading.

    Args:
        cache_root: the setting; where kernels that are compiled on this machine are kept.
    """
    import_module(_MODULES[platform.kernel_set])
    bind(platform.device, platform.kernel_set)
    keep_compiled(platform.device, cache_root)


def import_kernels(platform: type[Platform]) -> None:
    """Import a platform's kernel set, which :func:`bind_kernels` needs, while the device starts."""
    import_module(_MODULES[platform.kernel_set])


def expect_to_compile(platform: type[Platform], cache_root: str | None = None) -> None:
    """A hint that an engine starts: where no kernels are kept yet, start what compiles them, which takes a second.

    Args:
        platform: the type of the engine's, which need not exist yet.
        cache_root: see :func:`bind_kernels`.
    """
    if platform.kernel_set == "cuda":
        from octavo.kernels.triton import compile_workers

        compile_workers.expect_to_compile(cache_root)
