"""Which NUMA nodes weights and cache lie on: those of the threads that read them.

A page lies on the node of the thread that first writes it, and weights are written by whoever reads the files. So
mappings for weights and cache are bound to the nodes of the computing threads before they are written.
"""

import ctypes
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from platform import machine

logger = logging.getLogger(__name__)

_PREFERRED, _INTERLEAVE = 1, 3  # from linux/mempolicy.h
_MBIND = {"x86_64": 237, "aarch64": 235, "riscv64": 235, "ppc64le": 259, "s390x": 268}
_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


@dataclass(slots=True)
class _Preference:
    nodes: tuple[int, ...] = ()


_preferred = _Preference()


def prefer_nodes(nodes: tuple[int, ...]) -> None:
    """Place mappings of this process that are made from now on; none leaves it to the system."""
    _preferred.nodes = nodes


def bind_memory(address: int, num_bytes: int) -> bool:
    """Have pages of a mapping come from the preferred nodes, in turns if they are several, as far as they have room.

    Args:
        address: of the mapping's first page.

    Returns:
        Whether the system does so. If not, pages lie where they are first written.
    """
    nodes = _preferred.nodes
    call = _mbind() if nodes else None
    if call is None:
        return False
    mask = (ctypes.c_ulong * (max(nodes) // _BITS + 1))()
    for node in nodes:
        mask[node // _BITS] |= 1 << node % _BITS
    mode = _INTERLEAVE if len(nodes) > 1 else _PREFERRED
    arguments = (address, num_bytes, mode, ctypes.addressof(mask), ctypes.sizeof(mask) * 8 + 1, 0)
    if call(*(ctypes.c_ulong(value) for value in arguments)) == 0:
        return True
    _say_why_not(ctypes.get_errno())
    return False


@cache
def _mbind() -> Callable[..., int] | None:
    """The system call; None if this system has none."""
    number = _MBIND.get(machine())
    if number is None or not sys.platform.startswith("linux"):
        return None
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return lambda *arguments: call(ctypes.c_long(number), *arguments)


@cache
def _say_why_not(error: int) -> None:
    logger.info("Memory lies on the NUMA nodes of the threads that load it: binding it failed (errno %d).", error)
