"""What a kernel is measured on."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch

from octavo.hub.model_config import ModelConfig

Phase = Literal["decode", "prefill"]
Run = Callable[[int], object]
"""Runs once, on the copy of the memory with the given number."""

_CACHES_EXCEEDED = 3
_MOST_COPIES = 64


@dataclass(frozen=True, slots=True)
class Setting:
    """A step of one model.

    Attributes:
        num_rows: requests: each decodes a token, or each is a fresh prompt.
        context: tokens of each request, the step's included.
        cache_bytes: size of the device's last cache.
    """

    config: ModelConfig
    dtype: torch.dtype
    device: torch.device
    phase: Phase
    num_rows: int
    context: int
    cache_bytes: int

    @property
    def num_tokens(self) -> int:
        """Tokens of the step."""
        return self.num_rows if self.phase == "decode" else self.num_rows * self.context

    def random(self, *shape: int) -> torch.Tensor:
        """Normal numbers of the model's type."""
        return torch.randn(*shape, dtype=self.dtype, device=self.device)

    def weight(self, num_outputs: int, num_inputs: int) -> torch.Tensor:
        """A weight that keeps the size of what it is applied to."""
        return self.random(num_outputs, num_inputs).mul_(num_inputs**-0.5)

    def indices(self, values: list[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Whole numbers on the device."""
        return torch.tensor(values, dtype=dtype, device=self.device)

    def copies(self, num_bytes: int) -> int:
        """How many copies of so much memory must take turns so that none is found in the cache."""
        return max(1, min(_MOST_COPIES, -(-_CACHES_EXCEEDED * self.cache_bytes // max(num_bytes, 1))))


@dataclass(frozen=True, slots=True)
class Work:
    """A kernel with its memory, ready to run.

    Attributes:
        run: Octavo's kernel.
        num_bytes: least bytes to read and write.
        num_operations: least operations in matrix products.
        libraries: other implementations by name, for the same result.
        num_copies: copies of weights or caches that take turns.
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
        times: how often a step runs it, by the number of layers; 0 where another case includes it.
        phases: in which it occurs.
        needs_gpu: whether there is none for the CPU.
    """

    name: str
    make: Callable[[Setting], Work]
    times: Callable[[int], int]
    phases: tuple[Phase, ...] = ("decode", "prefill")
    needs_gpu: bool = False


def each_layer(num_layers: int) -> int:
    """Once a layer."""
    return num_layers


def each_step(num_layers: int) -> int:
    """Once a step."""
    return 1


def included(num_layers: int) -> int:
    """Part of another kernel's time."""
    return 0
