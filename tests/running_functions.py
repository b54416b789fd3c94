"""Functions that tests let an engine's process call."""

from typing import Any


def count(worker: Any, factor: int = 1) -> int:
    """Parameters of the model, times something."""
    return factor * sum(parameter.numel() for parameter in worker.model.parameters())


def fail(worker: Any) -> None:
    """Goes wrong."""
    raise RuntimeError("a bug")


def model(worker: Any) -> Any:
    """Something that cannot travel."""
    return worker.model
