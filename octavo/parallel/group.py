"""Process groups of torch: Gloo for CPUs, NCCL for NVIDIA GPUs.

A group is an object of its own; torch's global default group stays free for the program around the engine.
"""

import os
import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions, AllreduceOptions

_TIMEOUT = timedelta(minutes=30)
"""For operations that a rank does not join; a rank that dies ends them at once."""
_INTERFACES = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}


class ProcessGroup:
    """The :class:`octavo.parallel.Collectives` of one of torch's process groups."""

    def __init__(self, group: Any, size: int) -> None:
        self._group = group
        self._size = size
        # Operations on the current stream, so that captured graphs contain them without a second stream.
        self._reduce, self._gather = AllreduceOptions(), AllgatherOptions()
        self._reduce.asyncOp = self._gather.asyncOp = False

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """See :meth:`octavo.parallel.Collectives.all_reduce`."""
        _complete(self._group.allreduce([x], self._reduce))
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """See :meth:`octavo.parallel.Collectives.all_gather`."""
        gathered = x.new_empty(self._size * len(x), *x.shape[1:])
        _complete(self._group._allgather_base(gathered, x.contiguous(), self._gather))
        return gathered.view(self._size, *x.shape)

    def abort(self) -> None:
        """End the operations in flight with an error, from any thread: a rank has died."""
        self._group.abort()


def _complete(work: Any) -> None:
    """Wait for an operation; NCCL queues it on the current stream, and there is nothing to wait for."""
    if work is not None:
        work.wait()


def connect(store: dist.Store, rank: int, size: int, backend: str, *, is_local: bool) -> ProcessGroup:
    """Join a group; returns when all ranks have.

    Args:
        store: where the ranks find each other.
        backend: ``gloo`` or ``nccl``.
        is_local: all ranks are on this machine; their sockets then listen on the loopback interface only.
    """
    if is_local:
        os.environ.setdefault(_INTERFACES[backend], _loopback())
    if backend == "gloo":
        return ProcessGroup(dist.ProcessGroupGloo(store, rank, size, _TIMEOUT), size)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = _TIMEOUT
    return ProcessGroup(dist.ProcessGroupNCCL(store, rank, size, options), size)


def _loopback() -> str:
    """The name of the loopback interface: ``lo`` on Linux, ``lo0`` on macOS."""
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
