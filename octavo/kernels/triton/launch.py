"""How Triton kernels are launched here.

Kernels use programmatic dependent launch where the device has it (compute capability 9): a kernel may start while
the one before it still runs. So every kernel takes a constexpr ``PDL`` and, if it is set, calls
``tl.extra.cuda.gdc_wait()`` before it touches anything that an earlier kernel may have written or may still read;
only weights may be read before. ``tl.extra.cuda.gdc_launch_dependents()``, called as soon as a program has nothing
better to do than to let its successor start, ends the courtesy.
"""

import functools
from typing import Any

import torch
import triton

IS_INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether kernels run in Triton's interpreter, on CPU tensors (``TRITON_INTERPRET=1`` at import)."""


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
