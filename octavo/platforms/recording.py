"""Records the operations of the compiled kernels, to run them again without Python."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from octavo.platforms.native import TYPE_NUMBERS, NativeKernels

_ALLOCATIONS = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
    torch.ops.aten.detach.default,
}


class Recording(TorchDispatchMode):
    """A tape of the compiled kernels' operations inside the ``with`` block, which are run as well.

    All tensors that are made meanwhile stay alive, so a replay finds its memory.

    Attributes:
        others: names of PyTorch's operations that computed something inside the block. If there are any, the tape is
            not the whole work and must not be replayed.
    """

    def __init__(self, native: NativeKernels) -> None:
        super().__init__()
        self.others: set[str] = set()
        self._native = native
        self._alive: list[object] = []
        self._tape: object = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Leave the compiler alone: telling it to skip this mode would import it, which takes seconds."""
        return False

    def __enter__(self) -> "Recording":
        self._native.start_tape(self._alive)
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._tape = self._native.end_tape()

    def replay(self) -> None:
        """Run the operations again, on the same memory."""
        self._native.replay(self._tape)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = self._sum(*args) if func is torch.ops.aten.add.Tensor and not kwargs else None
        if result is None:
            if not (func.is_view or func in _ALLOCATIONS):
                self.others.add(str(func))
            result = func(*args, **kwargs)
        self._alive.append(result)
        return result

    def _sum(self, x: torch.Tensor, y: Any) -> torch.Tensor | None:
        """``x + y`` by the compiled kernel, which has PyTorch's bits; None for operands that it does not take."""
        is_plain = isinstance(y, torch.Tensor) and x.shape == y.shape and x.dtype == y.dtype in TYPE_NUMBERS
        if not (is_plain and x.is_contiguous() and y.is_contiguous()):
            return None
        result = torch.empty_like(x)
        self._alive += [x, y]
        self._native.add(x.data_ptr(), y.data_ptr(), result.data_ptr(), x.numel(), TYPE_NUMBERS[x.dtype])
        return result
