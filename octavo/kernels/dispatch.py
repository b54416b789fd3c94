"""One name per kernel; the device of the first tensor selects the implementation."""

from collections.abc import Callable
from typing import Concatenate, Generic, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
Function = Callable[Concatenate[torch.Tensor, P], R]


class Kernel(Generic[P, R]):
    """A kernel with its PyTorch reference, which runs on devices without an implementation of their own."""

    def __init__(self, reference: Function[P, R]) -> None:
        self.reference = reference
        self.implementations: dict[str, Function[P, R]] = {}
        self.__doc__ = reference.__doc__
        self.__name__ = reference.__name__

    def register(self, device_type: str) -> Callable[[Function[P, R]], Function[P, R]]:
        """Decorator: use the function on devices of this type."""

        def add(function: Function[P, R]) -> Function[P, R]:
            self.implementations[device_type] = function
            return function

        return add

    def __call__(self, x: torch.Tensor, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.implementations.get(x.device.type, self.reference)(x, *args, **kwargs)


def kernel(reference: Function[P, R]) -> Kernel[P, R]:
    """Decorator: make the plain function a kernel's reference."""
    return Kernel(reference)
