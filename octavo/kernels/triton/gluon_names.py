"""Operations of Gluon that have other names since Triton 3.6 or 3.9, under one name for all versions."""

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import tma

copy_async = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
"""Values at pointers into shared memory, by ``cp.async``."""

load_async = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
"""A block of a tensor descriptor into shared memory, by TMA."""

store_async = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
"""Shared memory into a block of a tensor descriptor, by TMA."""

barrier = getattr(gl, "barrier", None) or gl.thread_barrier
"""All warps of a program, or of a partition of its warps, wait for each other."""

_Memory = gl.shared_memory_descriptor
reinterpret = getattr(_Memory, "reinterpret", None) or _Memory._reinterpret
"""Shared memory with another type, shape and layout."""
