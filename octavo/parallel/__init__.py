"""Several devices that compute one model: who has which part, and how parts are put together."""

from octavo.parallel.group import ProcessGroup, connect
from octavo.parallel.tensor import ONE_DEVICE, Collectives, Section, TensorParallel

__all__ = ["ONE_DEVICE", "Collectives", "ProcessGroup", "Section", "TensorParallel", "connect"]
