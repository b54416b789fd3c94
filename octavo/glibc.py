"""The C library's own functions, where it is glibc."""

import ctypes
import platform
import sys


def glibc() -> ctypes.CDLL | None:
    """The C library of this process, None unless it is glibc on Linux."""
    is_glibc = sys.platform.startswith("linux") and platform.libc_ver()[0] == "glibc"
    return ctypes.CDLL(None, use_errno=True) if is_glibc else None
