"""Follows tensors through a run on the meta device: which module's result is added to what, and read how often."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

_ADD = torch.ops.aten.add.Tensor
_CAT = torch.ops.aten.cat.default


@dataclass(frozen=True, slots=True)
class LeafCall:
    """A call of a module that has no others inside.

    Attributes:
        start, end: numbers of operations that ran before the call and before its end.
    """

    path: str
    input: torch.Tensor
    output: torch.Tensor
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Sum:
    """An addition of two tensors of the same form.

    Attributes:
        place: number of operations that ran before it.
    """

    operands: tuple[torch.Tensor, torch.Tensor]
    place: int


@dataclass(frozen=True, slots=True)
class _Read:
    """A read of a tensor's memory.

    Attributes:
        place: number of operations that ran before it.
        leaf: path of the module in which it happens, if that has no others inside.
    """

    place: int
    leaf: str | None


class Flow(TorchDispatchMode):
    """Watches the operations of a run while it is entered.

    Memory counts, not the tensors that are views of it: a view reads nothing, what is computed from the view does.
    """

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.calls: list[LeafCall] = []
        self._leaves = {name: module for name, module in base.named_modules() if not list(module.children())}
        self._hooks: list[Any] = []
        self._count: Counter[str] = Counter()
        self._makers: dict[int, list[LeafCall]] = {}  # by the memory of what they return
        self._starts: dict[str, int] = {}
        self._leaf: str | None = None  # that runs
        self._firsts: dict[str, list[tuple[torch.Tensor, int]]] = {}  # first of several results, end of the call
        self._num_operations = 0
        self._reads: dict[int, list[_Read]] = {}  # in order
        self._last_writes: dict[int, int] = {}
        self._sums: dict[int, _Sum] = {}
        self._joined: dict[int, list[torch.Tensor]] = {}  # along the last dimension
        self._kept: list[torch.Tensor] = []  # so that no other tensor gets the address of one that has been freed
        self._is_paused = False

    def __enter__(self) -> "Flow":
        for path, module in self._leaves.items():
            self._hooks.append(module.register_forward_pre_hook(lambda *_, path=path: self._start(path)))
            self._hooks.append(
                module.register_forward_hook(lambda _, inputs, output, path=path: self._end(path, inputs, output))
            )
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        for hook in self._hooks:
            hook.remove()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What runs in this context reads nothing."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def note_reads(self, tensors: Iterable[torch.Tensor]) -> None:
        """Have tensors read now."""
        for tensor in tensors:
            self._note_read(_memory(tensor))

    def joined_norms(self) -> frozenset[str]:
        """Leaves that get sums of two tensors neither of which is read again; none if any is overwritten later."""
        changed = any(
            self._last_writes.get(_memory(operand), -1) > found.place
            for found in self._sums.values()
            for operand in found.operands
        )
        is_joined: dict[str, bool] = {}
        for call in self.calls:
            found = self._sums.get(id(call.input))
            if found is not None and not changed:
                first, second = map(_memory, found.operands)
                is_last = first != second and self._last_read(first) == self._last_read(second) == found.place
                is_joined[call.path] = is_joined.get(call.path, True) and is_last
        return frozenset(path for path, joined in is_joined.items() if joined)

    def input_sizes(self) -> dict[str, int]:
        """Last dimensions of what leaves get, if each gets the same in all calls."""
        sizes: dict[str, set[int]] = {}
        for call in self.calls:
            sizes.setdefault(call.path, set()).add(call.input.shape[-1] if call.input.dim() else 0)
        return {path: found.pop() for path, found in sizes.items() if len(found) == 1}

    def last_readers(self) -> frozenset[str]:
        """Leaves whose input nothing reads after them."""
        is_last: dict[str, bool] = {}
        for call in self.calls:
            read = self._last_read(_memory(call.input))
            is_last[call.path] = is_last.get(call.path, True) and read < call.end
        return frozenset(path for path, last in is_last.items() if last)

    def unread_firsts(self) -> frozenset[str]:
        """Leaves with several results of which nothing reads the first."""
        return frozenset(
            path
            for path, found in self._firsts.items()
            if all(self._last_read(_memory(first)) < end for first, end in found)
        )

    def deferrable(self) -> frozenset[str]:
        """Leaves that could as well run where a linear layer, or one of :meth:`unread_firsts`, reads their result.

        That is the first to read it, and until it is read for the last time, nothing else reads or changes what the
        leaf gets.
        """
        routers = self.unread_firsts()
        found: dict[str, bool] = {}
        for call in self.calls:
            found[call.path] = found.get(call.path, True) and self._is_deferrable(call, routers)
        return frozenset(path for path, is_deferrable in found.items() if is_deferrable)

    def _is_deferrable(self, call: LeafCall, routers: frozenset[str]) -> bool:
        reads = [read for read in self._reads.get(_memory(call.output), ()) if read.place >= call.end]
        first = reads[0].leaf if reads else None
        if first is None or not (self.is_linear(first) or first in routers):
            return False
        others = self._reads.get(_memory(call.input), ())  # changes count as reads
        return not any(call.end <= read.place < reads[-1].place for read in others)

    def leaf_behind(self, tensor: torch.Tensor) -> str | None:
        """The leaf whose whole result a tensor has, if it runs once and nothing else reads it."""
        memory = _memory(tensor)
        found = self._makers.get(memory, [])
        if len(found) != 1 or self._count[found[0].path] != 1 or memory in self._reads:
            return None
        return found[0].path if found[0].output.numel() == tensor.numel() else None

    def is_completed(self, heads: torch.Tensor, part: torch.Tensor, source: torch.Tensor) -> bool:
        """Whether heads are a part that was computed from a cut of them, and the rest of them behind it as it was.

        Args:
            part: that part's values, the first ones of each head.
            source: what it was computed from.
        """
        joined = self._joined.get(id(heads), ())
        if len(joined) != 2 or joined[0] is not part or heads.shape[-1] == part.shape[-1]:
            return False
        rest, place = joined[1], source.storage_offset() + source.shape[-1] * source.stride(-1)
        return (_memory(rest), rest.storage_offset(), rest.stride()) == (_memory(source), place, source.stride())

    def is_linear(self, path: str) -> bool:
        """Whether a leaf is a linear layer."""
        return type(self._leaves[path]) is nn.Linear

    def shared_inputs(self) -> list[tuple[str, ...]]:
        """Linear layers of one module that read the same tensor, in order, without those that run several times."""
        groups: dict[tuple[str, int], list[str]] = {}
        for call in self.calls:
            if self.is_linear(call.path) and self._count[call.path] == 1:
                groups.setdefault((call.path.rpartition(".")[0], id(call.input)), []).append(call.path)
        return [tuple(paths) for paths in groups.values() if len(paths) > 1]

    def _note_read(self, memory: int) -> None:
        self._reads.setdefault(memory, []).append(_Read(self._num_operations, self._leaf))

    def _last_read(self, memory: int) -> int:
        """Number of operations that ran before the last read; -1 if there is none."""
        return self._reads[memory][-1].place if memory in self._reads else -1

    def _start(self, path: str) -> None:
        self._starts[path] = self._num_operations
        self._leaf = path

    def _end(self, path: str, inputs: Any, output: Any) -> None:
        self._leaf = None
        if inputs and isinstance(inputs[0], torch.Tensor) and isinstance(output, torch.Tensor):
            call = LeafCall(path, inputs[0], output, self._starts[path], self._num_operations)
            self.calls.append(call)
            self._count[path] += 1
            self._makers.setdefault(_memory(output), []).append(call)
        elif isinstance(output, tuple) and output and isinstance(output[0], torch.Tensor):
            self._firsts.setdefault(path, []).append((output[0], self._num_operations))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs, outputs = (
            [value for value in tree_flatten(values)[0] if isinstance(value, torch.Tensor)]
            for values in ((args, kwargs), result)
        )
        self._kept += inputs + outputs
        if self._is_paused:
            return result
        written = _memory(inputs[0]) if func._schema.is_mutable and inputs else None
        if written is not None:
            self._last_writes[written] = self._num_operations
        made = {_memory(output) for output in outputs}
        for tensor in inputs:
            memory = _memory(tensor)
            if memory not in made or memory == written:  # else the result is a view of it
                self._note_read(memory)
        if func is _ADD and not kwargs and _are_alike(inputs):
            self._sums[id(result)] = _Sum((inputs[0], inputs[1]), self._num_operations)
        if func is _CAT and len(args) > 1 and args[1] in (-1, result.dim() - 1):
            self._joined[id(result)] = inputs
        self._num_operations += 1
        return result


def _are_alike(tensors: list[torch.Tensor]) -> bool:
    return len(tensors) == 2 and tensors[0].shape == tensors[1].shape and tensors[0].dtype == tensors[1].dtype


def _memory(tensor: torch.Tensor) -> int:
    """The address of what has a tensor's values, on the meta device, too."""
    return tensor.untyped_storage()._cdata
