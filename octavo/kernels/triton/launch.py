"""How Triton kernels are launched here.

Kernels use programmatic dependent launch where the device has it (compute capability 9): a kernel may start while
the one before it still runs. So every kernel takes a constexpr ``PDL`` and, if it is set, calls
``tl.extra.cuda.gdc_wait()`` before it touches anything that the kernel before it may have written, or writes what that
one may still read; and right behind that ``tl.extra.cuda.gdc_launch_dependents()``, to let its successor start.

As no program lets a successor start before it has waited itself, a kernel that runs knows that all launches but the
last before it are complete. So before the wait it may read weights, and whatever was written two or more launches ago.
A program with nothing to do may leave without a wait as long as another one of its launch waits.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl

IS_INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether kernels run in Triton's interpreter, on CPU tensors (``TRITON_INTERPRET=1`` at import)."""

MIN_DOT_SIZE = 16
"""Least extent of a tile that Triton's matrix products take."""


@triton.jit
def wait_in_loop():
    """What ``gdc_wait`` and ``gdc_launch_dependents`` do, for loops: Triton 3.9 pipelines none that has those in it."""
    tl.inline_asm_elementwise(
        "griddepcontrol.wait; griddepcontrol.launch_dependents; // $0", "=r", [], tl.int32, is_pure=False, pack=1
    )


def dependent_launch(device: torch.device) -> dict[str, Any]:
    """Keyword arguments for a launch on a device: the constexpr ``PDL``, and the launcher's option to match."""
    if IS_INTERPRETED:
        return {"PDL": False}
    has_it = _has_dependent_launch(device.index)
    return {"PDL": has_it, "launch_pdl": has_it}


@functools.cache
def num_multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a device; a small number in the interpreter."""
    return 4 if IS_INTERPRETED else torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def _has_dependent_launch(index: int | None) -> bool:
    return torch.cuda.get_device_capability(index) >= (9, 0)
