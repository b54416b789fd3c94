"""Huge pages for weights that a library packs, on Linux with glibc; others have :mod:`octavo.platforms.weight_memory`.

Libraries that pack weights allocate each of them with malloc, which maps large blocks one by one, too small or
misaligned for 2 MiB pages. So malloc is told to allocate them from its contiguous heap, the heap is extended ahead of
time, and the kernel is asked to back it with huge pages as it fills.
"""

import ctypes
import re

from octavo.glibc import glibc

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_LARGEST_FROM_HEAP = 32 << 20
_MADV_HUGEPAGE = 14
_PAGE = 4096


def reserve_huge_heap(num_bytes: int) -> bool:
    """Extend the heap by ``num_bytes`` of huge pages; the system provides them only as they are used.

    Returns:
        Whether it was possible. If not, only speed is lost.
    """
    libc = glibc()
    if libc is None:
        return False
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    pad = min(num_bytes, (1 << 31) - _PAGE)
    if not libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_FROM_HEAP):
        return False
    libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
    libc.mallopt(_M_TOP_PAD, pad)
    # Allocating a block larger than the rest of the heap makes malloc extend it by the block and the pad.
    libc.free(libc.malloc(_LARGEST_FROM_HEAP - _PAGE))
    libc.mallopt(_M_TOP_PAD, 1 << 20)
    heap = _heap_range()
    return heap is not None and libc.madvise(heap[0], heap[1] - heap[0], _MADV_HUGEPAGE) == 0


def _heap_range() -> tuple[int, int] | None:
    """First address and end of the heap, page-aligned."""
    try:
        with open("/proc/self/maps") as maps:
            for line in maps:
                if line.rstrip().endswith("[heap]"):
                    match = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
                    return (int(match[1], 16), int(match[2], 16)) if match else None
    except OSError:
        return None
    return None
