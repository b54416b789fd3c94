"""Definitions for kernel cases: the step (setting), the work, and the case."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch

from octavo.hub.model_config import ModelConfig
from octavo.platforms import Platform

Phase = Literal["decode", "prefill"]
Run = Callable[[int], object]
"""Runs once, on the copy of the memory with the given index."""

_CACHES_EXCEEDED = 3
_MOST_COPIES = 64


@dataclass(frozen=True, slots=True)
class Setting:
    """A step of one model.

    Attributes:
        num_rows: number of requests; all decode a token, or all are fresh prompts.
        context: tokens per request, including the step's.
        cache_bytes: size of the device's last-level cache.
    """

    config: ModelConfig
    dtype: torch.dtype
    platform: Platform
    phase: Phase
    num_rows: int
    context: int
    cache_bytes: int

    @property
    def device(self) -> torch.device:
        """Where the step's tensors are."""
        return self.platform.device

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the step."""
        return self.num_rows if self.phase == "decode" else self.num_rows * self.context

    def random(self, *shape: int) -> torch.Tensor:
        """Normally distributed values of the model's type."""
        return torch.randn(*shape, dtype=self.dtype, device=self.device)

    def weight(self, num_outputs: int, num_inputs: int) -> torch.Tensor:
        """A random weight that preserves the scale of its input."""
        return self.random(num_outputs, num_inputs).mul_(num_inputs**-0.5)

    def indices(self, values: list[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Integers on the device."""
        return torch.tensor(values, dtype=dtype, device=self.device)

    def copies(self, num_bytes: int) -> int:
        """Number of copies to alternate between so that none of them is in the cache."""
        return max(1, min(_MOST_COPIES, -(-_CACHES_EXCEEDED * self.cache_bytes // max(num_bytes, 1))))


@dataclass(frozen=True, slots=True)
class Work:
    """A kernel with its memory, ready to run.

    Attributes:
        run: Octavo's kernel.
        num_bytes: minimum number of bytes to read and write.
        num_operations: minimum number of GEMM operations.
        libraries: other implementations of the same result, by name.
        num_copies: copies of weights or caches to alternate between.
    """

    run: Run
    num_bytes: float
    num_operations: float = 0.0
    libraries: dict[str, Run] = field(default_factory=dict)
    num_copies: int = 1


@dataclass(frozen=True, slots=True)
class KernelCase:
    """One entry of the list of kernels.

    Attributes:
        make: allocates and returns the work.
        times: how often a step runs it, given the number of layers; 0 if another case includes it.
        phases: phases in which it occurs.
        kernel_set: the only set that has it; None if all have it.
    """

    name: str
    make: Callable[[Setting], Work]
    times: Callable[[int], int]
    phases: tuple[Phase, ...] = ("decode", "prefill")
    kernel_set: str | None = None


def each_layer(num_layers: int) -> int:
    """Once per layer."""
    return num_layers


def each_step(num_layers: int) -> int:
    """Once per step."""
    return 1


def included(num_layers: int) -> int:
    """Part of another kernel's time."""
    return 0
