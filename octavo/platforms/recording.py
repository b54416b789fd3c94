"""Records the operations of the compiled kernels, to run them again without Python."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from octavo.platforms.combine import can_copy, combine, combined, promoted
from octavo.platforms.native import NativeKernels
from octavo.platforms.tape_memory import TapeMemory

_ALLOCATIONS = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
}
_DETACH = torch.ops.aten.detach.default
_DROPOUT = torch.ops.aten.dropout.default


class Recording(TorchDispatchMode):
    """A tape of the compiled kernels' operations inside the ``with`` block, which are run as well.

    The memory of the tensors that are made meanwhile stays the tape's, so a replay finds it.

    Args:
        memory: where these tensors lie; None for memory of this tape's own.

    Attributes:
        others: names of PyTorch's operations that computed something inside the block. If there are any, the tape is
            not the whole work and must not be replayed.
    """

    def __init__(self, native: NativeKernels, memory: TapeMemory | None = None) -> None:
        super().__init__()
        self.others: set[str] = set()
        self._native = native
        self._memory = memory or TapeMemory()
        self._alive: list[object] = []  # what the tape uses of other memory
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
        if func in _ALLOCATIONS:
            return self._memory.place(func(*args, **kwargs))
        if func is _DROPOUT and not args[2]:  # outside of training
            return args[0]
        if not kwargs:
            args = promoted(self._native, func, args, self._memory.place)
        result = None if kwargs else combined(self._native, func, args, self._memory.place)
        if result is None:
            result = func(*args, **kwargs)
            if func.is_view:
                self._note_copy(func, args[0], result)
            elif func is not _DETACH:
                self.others.add(str(func))
        self._keep([*args, result])
        return result

    def _note_copy(self, func: Any, x: torch.Tensor, result: Any) -> None:
        """Have what ``to``, ``reshape`` and the like copied, where no view would do, copied again in a replay."""
        if not isinstance(result, torch.Tensor) or not result.numel() or _share_memory(x, result):
            return
        same = result.view(x.shape) if result.shape != x.shape else result  # a reshaped copy is contiguous
        if can_copy(x, same):
            combine(self._native, "copy", x, same)
        else:
            self.others.add(str(func))

    def _keep(self, values: Sequence[Any]) -> None:
        """Keep tensors alive that are not in the tape's memory."""
        for value in values:
            if isinstance(value, (list, tuple)):
                self._keep(value)
            elif isinstance(value, torch.Tensor) and not self._memory.holds(value):
                self._alive.append(value)


def _share_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
