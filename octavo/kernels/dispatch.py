"""One name per operation; the kernel set that is bound for a type of device selects the implementation.

Implementations are registered by kernel set ("cpu", "cuda"), not by torch's device type: AMD's and NVIDIA's GPUs are
both ``cuda`` to torch, yet need different kernels. The platform names its set, and :func:`bind` makes the set's
implementations those of its device type. What a set lacks, and what no set is bound for, runs as the reference.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

import torch

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class Operation(Generic[F]):
    """An operation with its PyTorch reference.

    Attributes:
        reference: runs on devices without an implementation of their own.
        implementations: by kernel set.
        bound: by device type; derived from ``implementations`` and the bound sets.
    """

    def __init__(self, reference: F) -> None:
        self.reference = reference
        self.implementations: dict[str, F] = {}
        self.bound: dict[str, F] = {}
        self.__doc__ = reference.__doc__
        self.__name__ = reference.__name__
        _operations.append(self)

    def register(self, kernel_set: str) -> Callable[[F], F]:
        """Decorator: the function is this set's implementation."""

        def add(function: F) -> F:
            self.implementations[kernel_set] = function
            self.rebind()
            return function

        return add

    def register_lazily(self, kernel_set: str, module: str, name: str) -> None:
        """This set's implementation is a function of a module that the first call imports."""

        def first_call(*args: Any, **kwargs: Any) -> Any:
            function = getattr(import_module(module), name)
            self.register(kernel_set)(function)
            return function(*args, **kwargs)

        self.register(kernel_set)(cast(F, first_call))

    def rebind(self) -> None:
        """Follow a change of implementations or of bound sets."""
        self.bound.clear()
        for device_type, kernel_set in _bound_sets.items():
            if kernel_set in self.implementations:
                self.bound[device_type] = self.implementations[kernel_set]


_operations: list[Operation[Any]] = []
_bound_sets = {"cpu": "cpu"}
"""Device type → kernel set. Layers also run without an engine (in tests, on a CPU), so that one is bound at once."""


class Kernel(Operation[Callable[Concatenate[torch.Tensor, P], R]], Generic[P, R]):
    """An operation whose first argument is a tensor; the tensor's device selects the implementation."""

    def __call__(self, x: torch.Tensor, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.bound.get(x.device.type, self.reference)(x, *args, **kwargs)


class DeviceFunction(Operation[Callable[Concatenate[torch.device, P], R]], Generic[P, R]):
    """An operation whose first argument is a device, which selects the implementation."""

    def __call__(self, device: torch.device, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.bound.get(device.type, self.reference)(device, *args, **kwargs)


def kernel(reference: Callable[Concatenate[torch.Tensor, P], R]) -> Kernel[P, R]:
    """Decorator: make the plain function a kernel's reference."""
    return Kernel(reference)


def device_function(reference: Callable[Concatenate[torch.device, P], R]) -> DeviceFunction[P, R]:
    """Decorator: make the plain function the reference of a choice by device."""
    return DeviceFunction(reference)


def bind(device: torch.device, kernel_set: str) -> None:
    """Use a set's implementations for all tensors on this type of device."""
    _bound_sets[device.type] = kernel_set
    for operation in _operations:
        operation.rebind()


@device_function
def keep_compiled(device: torch.device, root: str | None) -> None:
    """Keep the kernels that are compiled for a device from now on, for later starts.

    Args:
        root: the setting ``cache_root``.
    """


class LaunchedKernels(Protocol):
    """Kernels that were launched in a context."""

    def are_ready(self) -> bool:
        """Whether launches need not wait for any of them."""


CompileOnly = Callable[[], AbstractContextManager[LaunchedKernels]]
"""Makes a context in which launches return at once, and only have their kernels compiled."""


@device_function
def compile_together(device: torch.device) -> AbstractContextManager[CompileOnly]:
    """A context in which new kernels are compiled several at a time; on exit all are loaded.

    Within it a launch waits for its own kernel, not for others; within :data:`CompileOnly` for none.
    """
    return nullcontext(lambda: nullcontext(ReadyKernels()))


class ReadyKernels:
    """:class:`LaunchedKernels` of devices that do not compile."""

    def are_ready(self) -> bool:
        """See :meth:`LaunchedKernels.are_ready`."""
        return True
