"""``octavo bench kernels --group-sizes``: attention with each number of query heads per key/value head (GQA).

The number of key/value heads, and so the bytes of keys and values, is the same for all group sizes. So decode should
reach the same bandwidth with each, and prefill the same rate.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from octavo.bench.kernels import figures_of
from octavo.bench.kernels_attention import attention_work
from octavo.bench.kernels_case import KernelCase, Phase, Setting
from octavo.bench.limits import Ceilings
from octavo.kernels import compile_together
from octavo.platforms import runtime_of

HEAD_SIZES = (64, 128)
_CASE = KernelCase("attention with norms, rotation and cache", attention_work, per_layer=1)


@dataclass(frozen=True, slots=True)
class Load:
    """A step: rows that decode a token at the end of ``context`` tokens each, or fresh prompts of that length."""

    phase: Phase
    num_rows: int
    context: int

    @property
    def title(self) -> str:
        """How a table names it."""
        return f"{self.phase}, {self.num_rows} × {self.context:,}"

    def setting(self, base: Setting, head_dim: int, group_size: int) -> Setting:
        """The step with some heads; ``base`` provides the number of key/value heads."""
        config = replace(base.config, num_heads=group_size * base.config.num_kv_heads, head_dim=head_dim)
        return replace(base, config=config, phase=self.phase, num_rows=self.num_rows, context=self.context)


LOADS = (
    Load("decode", 1, 32_768),
    Load("decode", 8, 32_768),
    Load("decode", 128, 1024),
    Load("prefill", 2, 4096),
)


def measure_group_sizes(
    base: Setting, group_sizes: Sequence[int], ceilings: Ceilings, report: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The figures of each head size, load and group size, as :func:`octavo.bench.kernels.measure` returns them.

    Args:
        base: provides device, type, and number of key/value heads.
        report: called with the name of each load when it is measured.
    """
    _compile(base, group_sizes)
    parts = []
    for head_dim in HEAD_SIZES:
        loads = []
        for load in LOADS:
            sizes = [
                {"group_size": size, **figures_of(_CASE, load.setting(base, head_dim, size), ceilings)}
                for size in group_sizes
            ]
            loads.append({"title": load.title, "phase": load.phase, "sizes": sizes})
            gc.collect()
            with suppress(RuntimeError):  # an error of an earlier launch, which every later call repeats
                runtime_of(base.device).return_memory()
            report(f"head size {head_dim}: {load.title}")
        parts.append({"head_dim": head_dim, "loads": loads})
    return parts


def _compile(base: Setting, group_sizes: Sequence[int]) -> None:
    """Compile all kernels in parallel. One that does not compile fails again, and is recorded, when it is measured."""
    if runtime_of(base.device).is_host:
        return
    with suppress(Exception), compile_together(base.device) as compile_only, compile_only():
        for setting in _settings(base, group_sizes):
            with suppress(Exception):
                attention_work(setting).run(0)


def _settings(base: Setting, group_sizes: Sequence[int]) -> Iterator[Setting]:
    for load in LOADS:
        for head_dim in HEAD_SIZES:
            for size in group_sizes:
                yield load.setting(base, head_dim, size)
