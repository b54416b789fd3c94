"""The launch protocol of all Triton kernels: programmatic dependent launch (PDL).

On devices that have it (compute capability 9), a kernel may start while its predecessor still runs. So every kernel
takes a constexpr ``PDL``. If it is set, the kernel calls ``tl.extra.cuda.gdc_wait()`` before it reads anything that the
predecessor may write and before it writes anything that the predecessor may read. Right after that it calls
``tl.extra.cuda.gdc_launch_dependents()``, which lets its successor start.

Invariant: no program lets a successor start before it has waited itself. So while a kernel runs, all launches except
its direct predecessor are complete, and before the wait it may read weights and whatever was written two or more
launches ago. A program with nothing to do may return without waiting if another program of its launch waits.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from octavo import platforms

IS_INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether kernels run in Triton's interpreter, on CPU tensors (``TRITON_INTERPRET=1`` at import)."""

MIN_DOT_SIZE = 16
"""Smallest tile extent that ``tl.dot`` accepts."""


@triton.jit
def wait_in_loop():
    """``gdc_wait`` and ``gdc_launch_dependents`` for loops: Triton 3.9 does not pipeline a loop that calls those."""
    tl.inline_asm_elementwise(
        "griddepcontrol.wait; griddepcontrol.launch_dependents; // $0", "=r", [], tl.int32, is_pure=False, pack=1
    )


def dependent_launch(device: torch.device) -> dict[str, Any]:
    """Keyword arguments for a launch on a device: the constexpr ``PDL``, and the launcher's option to match."""
    if IS_INTERPRETED:
        return {"PDL": False}
    has_it = _has_dependent_launch(device)
    return {"PDL": has_it, "launch_pdl": has_it}


def aligned_rows(x: torch.Tensor) -> torch.Tensor:
    """``[M, K]`` of 16-bit values as small-M GEMMs read them, 16 bytes at a time: ``x`` itself, or a copy."""
    if x.stride(1) != 1 or x.data_ptr() % 16 or x.stride(0) % 8:
        return x.clone(memory_format=torch.contiguous_format)
    return x


@functools.cache
def num_multiprocessors(device: torch.device) -> int:
    """Number of multiprocessors of a device; 4 in the interpreter."""
    return 4 if IS_INTERPRETED else platforms.num_multiprocessors(device)


def has_tma(device: torch.device) -> bool:
    """Whether a device loads tiles by descriptors; the interpreter does."""
    return IS_INTERPRETED or _has_dependent_launch(device)


@functools.cache
def is_hopper(device: torch.device) -> bool:
    """Whether Gluon kernels for compute capability 9.0 run on a device."""
    return not IS_INTERPRETED and platforms.compute_capability(device) == (9, 0)


@functools.cache
def _has_dependent_launch(device: torch.device) -> bool:
    return platforms.compute_capability(device) >= (9, 0)
