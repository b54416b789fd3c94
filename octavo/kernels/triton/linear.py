"""Matrix products of small batches, at the speed at which their weights can be read."""

import functools
import itertools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from triton.tools.tensor_descriptor import TensorDescriptor

from octavo.kernels.linear import GATES
from octavo.kernels.triton.launch import IS_INTERPRETED, dependent_launch, num_multiprocessors
from octavo.kernels.triton.linear_kernel import linear_kernel
from octavo.kernels.triton.linear_plan import ROW_CLASSES, Plan, choose_plan
from octavo.kernels.triton.linear_vector import MAX_FEATURES, SMALL_WEIGHT, vector_linear


@dataclass(frozen=True, slots=True)
class Workspace:
    """What the programs of one launch share; launches of one stream follow each other and can use the same.

    Attributes:
        partials: float32, parts of sums.
        arrivals: int32, zero between launches: how many programs of a tile are done.
    """

    partials: torch.Tensor
    arrivals: torch.Tensor


# Enough for most models, so that one workspace serves all of a model's products.
_LEAST_PARTIALS = 8 << 20
_LEAST_TILES = 4096

_workspaces: dict[torch.device, Workspace] = {}


def reserve_workspace(
    device: torch.device, num_partials: int, num_tiles: int, *, at_hand: Workspace | None = None
) -> Workspace:
    """A workspace of at least this size: the one at hand, else the device's.

    A larger need makes a new one; whoever holds the old one (a product that is part of a captured graph) keeps it.
    """
    current = _workspaces.get(device)
    for space in (at_hand, current):
        if space is not None and space.partials.numel() >= num_partials and space.arrivals.numel() >= num_tiles:
            return space
    if current is not None:
        num_partials = max(num_partials, current.partials.numel())
        num_tiles = max(num_tiles, current.arrivals.numel())
    _workspaces[device] = Workspace(
        partials=torch.empty(max(num_partials, _LEAST_PARTIALS), dtype=torch.float32, device=device),
        arrivals=torch.zeros(max(num_tiles, _LEAST_TILES), dtype=torch.int32, device=device),
    )
    return _workspaces[device]


@functools.cache
def is_supported(device: torch.device) -> bool:
    """Whether the plans fit a device: they are made for Hopper's tensor cores and shared memory."""
    return IS_INTERPRETED or (device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9)


class SmallBatchLinear:
    """``y = x Wᵀ (+ bias)`` for a weight that stays where it is; few rows by our kernel, many by the vendor's library.

    Up to ``SHARED_ORDER_ROWS`` rows a row's result has the same bits whatever else is in the batch; beyond, the sums
    are cut anew where that is faster.

    Args:
        weight: ``[N, K]`` contiguous; bfloat16 and float16 use the kernel.
        bias: ``[N]`` or None.
        deterministic: keep a row's bits the same for any number of rows, at some cost beyond ``SHARED_ORDER_ROWS``.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, *, deterministic: bool = False) -> None:
        self.weight = weight
        self.bias = bias
        self.deterministic = deterministic
        # Rows of whole 16-byte pieces are what prefetches and asynchronous copies need.
        self._uses_kernel = (
            is_supported(weight.device)
            and weight.dtype in (torch.bfloat16, torch.float16)
            and weight.is_contiguous()
            and weight.shape[1] % 8 == 0
            and weight.data_ptr() % 16 == 0
        )
        self._num_sms = num_multiprocessors(weight.device) if self._uses_kernel else 0
        self._plans: dict[tuple[int, bool], Plan | None] = {}
        self._space = self._reserve()

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """``[..., K] → [..., N]``, into the contiguous ``out`` if it is given."""
        rows = x.reshape(-1, x.shape[-1])
        if self._is_vector(len(rows)):
            return self._multiply_vector(rows, "none", out).view(*x.shape[:-1], self.weight.shape[0])
        plan = self.plan(len(rows), is_gated=False)
        if plan is None:
            return self._by_library(x, out)
        return self.launch(rows, plan, "none", out).view(*x.shape[:-1], self.weight.shape[0])

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """``act(x W₁ᵀ) · (x W₂ᵀ)`` for a weight of two halves: ``[..., K] → [..., N / 2]``.

        Args:
            activation: "silu" or "gelu_tanh".
        """
        rows = x.reshape(-1, x.shape[-1])
        if self._is_vector(len(rows)):
            return self._multiply_vector(rows, activation, None).view(*x.shape[:-1], self.weight.shape[0] // 2)
        plan = self.plan(len(rows), is_gated=True)
        if plan is None:
            return GATES[activation](F.linear(x, self.weight, self.bias))
        return self.launch(rows, plan, activation).view(*x.shape[:-1], self.weight.shape[0] // 2)

    def plan(self, num_rows: int, *, is_gated: bool) -> Plan | None:
        """How a product of so many rows is computed; None is the vendor's library."""
        if not self._uses_kernel or num_rows == 0:
            return None
        key = (num_rows, is_gated)
        if key not in self._plans:
            self._plans[key] = choose_plan(
                num_rows,
                self.weight.shape[0] // (2 if is_gated else 1),
                self.weight.shape[1],
                is_gated=is_gated,
                is_deterministic=self.deterministic,
                num_sms=self._num_sms,
            )
        return self._plans[key]

    def launch(self, x: torch.Tensor, plan: Plan, activation: str, out: torch.Tensor | None = None) -> torch.Tensor:
        """One launch of the kernel: ``[M, K] → [M, N]``, or ``[M, N / 2]`` with an activation."""
        x = self._loadable(x, plan)
        y = x.new_empty(len(x), self.weight.shape[0] // (1 if activation == "none" else 2)) if out is None else out
        assert y.is_contiguous()
        grid, args, kwargs = self._arguments(x, y, plan, activation)
        linear_kernel[grid](*args, **kwargs)
        return y

    def variants(self, max_rows: int, activation: str = "none") -> dict[Hashable, Callable[[], None]]:
        """What must be compiled for batches of up to ``max_rows`` rows.

        Returns:
            A function for each kernel that compiles it without launching it. Products that share a kernel give it the
            same key, so that the dictionaries of a whole model, merged, hold each once.
        """
        found: dict[Hashable, Callable[[], None]] = {}
        for num_rows, plan in self._plans_up_to(max_rows, activation):
            constants = (plan.block_m, plan.block_n, plan.block_k, plan.mode, plan.num_stages, plan.num_warps)
            kind = (self.weight.dtype, self.bias is None, plan.use_descriptors, self._is_even(plan), activation)
            found.setdefault((constants, kind), functools.partial(self._compile, num_rows, plan, activation))
        return found

    def warmup(self, max_rows: int, activation: str = "none") -> None:
        """Compile, load and run once what batches of up to ``max_rows`` rows use, as must be before a capture."""
        for num_rows, plan in self._plans_up_to(max_rows, activation):
            self.launch(self.weight.new_zeros(num_rows, self.weight.shape[1]), plan, activation)

    def _plans_up_to(self, max_rows: int, activation: str) -> Iterator[tuple[int, Plan]]:
        """A number of rows of each class that ``max_rows`` rows reach, with its plan."""
        for smaller, num_rows in itertools.pairwise((0, *ROW_CLASSES)):
            plan = self.plan(num_rows, is_gated=activation != "none")
            if plan is not None and smaller < max_rows:
                yield num_rows, plan

    def _is_vector(self, num_rows: int) -> bool:
        """Whether so few rows are best multiplied without tensor cores; small weights leave time for a second row."""
        if not self._uses_kernel or self.deterministic or self.weight.shape[1] > MAX_FEATURES:
            return False
        return num_rows == 1 or (num_rows == 2 and self.weight.numel() <= SMALL_WEIGHT)

    def _multiply_vector(self, rows: torch.Tensor, activation: str, out: torch.Tensor | None) -> torch.Tensor:
        num_channels = self.weight.shape[0] // (1 if activation == "none" else 2)
        y = rows.new_empty(len(rows), num_channels) if out is None else out
        vector_linear(rows, self.weight, self.bias, y, activation)
        return y

    def _by_library(self, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        if out is None:
            return F.linear(x, self.weight, self.bias)
        rows, out_rows = x.flatten(0, -2), out.flatten(0, -2)
        if self.bias is None:
            torch.mm(rows, self.weight.T, out=out_rows)
        else:
            torch.addmm(self.bias, rows, self.weight.T, out=out_rows)
        return out

    def _compile(self, num_rows: int, plan: Plan, activation: str) -> None:
        x = self.weight.new_empty(num_rows, self.weight.shape[1])
        y = self.weight.new_empty(num_rows, self.weight.shape[0] // (1 if activation == "none" else 2))
        grid, args, kwargs = self._arguments(x, y, plan, activation)
        linear_kernel.warmup(*args, grid=grid, **kwargs)

    def _arguments(
        self, x: torch.Tensor, y: torch.Tensor, plan: Plan, activation: str
    ) -> tuple[tuple[int, int, int], list[Any], dict[str, Any]]:
        num_rows, num_features = x.shape
        num_channels = y.shape[1]
        is_gated = activation != "none"
        tiles: tuple[TensorDescriptor, TensorDescriptor] | tuple[None, None] = (None, None)
        if plan.use_descriptors:
            tiles = (
                TensorDescriptor.from_tensor(x, [plan.block_m, plan.block_k]),
                TensorDescriptor.from_tensor(self.weight, [plan.block_n, plan.block_k]),
            )
        needed = plan.workspace(num_rows, num_channels, is_gated=is_gated)
        space = self._space = reserve_workspace(x.device, *needed, at_hand=self._space)
        row_bytes = plan.block_n * (2 if is_gated else 1) * self.weight.element_size()
        args = [
            x,
            self.weight,
            *tiles,
            self.bias,
            y,
            space.partials,
            space.arrivals,
            num_rows,
            num_channels,
            num_features,
            x.stride(0),
            plan.num_parts,
            plan.prefetch_bytes // row_bytes // 8 * 8,
        ]
        constants = {
            "BLOCK_M": plan.block_m,
            "BLOCK_N": plan.block_n,
            "BLOCK_K": plan.block_k,
            "STAGES": plan.num_stages,
            "ACTIVATION": activation,
            "MODE": plan.mode,
            "EVEN_K": self._is_even(plan),
            "num_warps": plan.num_warps,
            "num_stages": plan.num_stages,
        }
        return plan.grid(num_rows, num_channels), args, constants | dependent_launch(x.device)

    def _is_even(self, plan: Plan) -> bool:
        return self.weight.shape[1] % plan.block_k == 0

    def _loadable(self, x: torch.Tensor, plan: Plan) -> torch.Tensor:
        """``x`` itself where its layout serves the kernel, else a copy."""
        is_aligned = x.data_ptr() % 16 == 0 and x.stride(0) % 8 == 0
        if x.stride(1) != 1 or (plan.use_descriptors and not is_aligned):
            return x.clone(memory_format=torch.contiguous_format)
        return x

    def _reserve(self) -> Workspace | None:
        """A workspace for the most that any number of rows needs, gated or not."""
        if not self._uses_kernel:
            return None
        needs = [(0, 0)]
        for num_rows, is_gated in itertools.product(ROW_CLASSES, (False, True)):
            plan = self.plan(num_rows, is_gated=is_gated)
            if plan is not None:
                num_channels = self.weight.shape[0] // (2 if is_gated else 1)
                needs.append(plan.workspace(num_rows, num_channels, is_gated=is_gated))
        return reserve_workspace(self.weight.device, max(need[0] for need in needs), max(need[1] for need in needs))
