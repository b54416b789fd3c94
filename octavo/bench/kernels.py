"""``octavo bench kernels``: times each kernel of a step, the library's kernel, and the device's limit.

To add a kernel, add an entry to ``CASES`` in one of the ``kernels_*.py`` files.
"""

import gc
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from octavo.bench import kernels_attention, kernels_gemm, kernels_rest
from octavo.bench.kernels_case import KernelCase, Setting, Work, median, time_run
from octavo.bench.limits import Ceilings
from octavo.platforms import runtime_of

CASES: tuple[KernelCase, ...] = (*kernels_gemm.CASES, *kernels_attention.CASES, *kernels_rest.CASES)


def cases_for(setting: Setting, name_part: str) -> list[KernelCase]:
    """The cases of a setting's phase and cache whose names contain a text."""
    return [
        case
        for case in CASES
        if setting.phase in case.phases
        and name_part.lower() in case.name.lower()
        and (case.quantizes or setting.kv_dtype is None)
    ]


def is_possible(case: KernelCase, setting: Setting) -> bool:
    """Whether the device's kernel set has the kernel."""
    return case.kernel_set in (None, setting.platform.kernel_set)


def measure(case: KernelCase, setting: Setting, ceilings: Ceilings) -> dict[str, Any]:
    """One kernel's figures; its memory goes back to the device."""
    figures = figures_of(case, setting, ceilings)
    gc.collect()
    runtime_of(setting.device).return_memory()
    return figures


def figures_of(case: KernelCase, setting: Setting, ceilings: Ceilings) -> dict[str, Any]:
    """One kernel's figures, in seconds, with all samples; a failure is recorded as ``error``."""
    figures: dict[str, Any] = {
        "name": case.name,
        "times": case.per_layer * setting.config.num_layers + case.per_step,
        "seconds": None,
        "limit": None,
        "library": None,
        "library_seconds": None,
        "error": None,
    }
    try:
        figures |= _measure(case.make(setting), setting, ceilings)
    except Exception as error:
        figures["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return figures


def _measure(work: Work, setting: Setting, ceilings: Ceilings) -> dict[str, Any]:
    runtime = runtime_of(setting.device)
    samples = time_run(work.run, work.num_copies, runtime)
    libraries, failures = {}, {}
    for name, run in work.libraries.items():
        try:
            libraries[name] = time_run(run, work.num_copies, runtime)
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    best = min(libraries, key=lambda name: median(libraries[name]), default=None)
    return {
        "seconds": median(samples),
        "limit": ceilings.seconds(work.num_bytes, work.num_operations),
        "library": best,
        "library_seconds": median(libraries[best]) if best else None,
        "num_bytes": work.num_bytes,
        "num_operations": work.num_operations,
        "num_copies": work.num_copies,
        "samples": samples,
        "library_samples": libraries,
        "library_errors": failures,
    }


def settings_of(base: Setting, batches: Iterable[int], prefill_tokens: int) -> list[Setting]:
    """A decode step of each batch size, and a step of fresh prompts.

    Args:
        base: the setting that provides model, types and context.
        prefill_tokens: tokens of all prompts together, 0 for no such step; a prompt is at most as long as the context.
    """
    settings = [replace(base, phase="decode", num_rows=batch) for batch in batches]
    if prefill_tokens:
        length = min(base.context, prefill_tokens)
        num_rows = max(1, prefill_tokens // length)
        settings.append(replace(base, phase="prefill", num_rows=num_rows, context=length))
    return settings
