"""How a process computes on the host: PyTorch's number of threads, and the CPUs of a process that is Octavo's own."""

import contextlib
import os

import torch


class HostThreads:
    """A context in which PyTorch uses so many threads; then the caller's number again. May be entered repeatedly.

    Args:
        num_threads: at least 1.
        process_cpus: CPUs that all threads of this process are bound to when the context is first entered, if it does
            nothing but compute; none leaves them as they are. Processes that it has started before are not affected.
    """

    def __init__(self, num_threads: int, process_cpus: tuple[int, ...] = ()) -> None:
        self._num_threads = num_threads
        self._process_cpus = process_cpus
        self._before: list[int] = []

    def __enter__(self) -> None:
        if self._process_cpus:
            _bind_process(self._process_cpus)
            self._process_cpus = ()
        self._before.append(torch.get_num_threads())
        _set_num_threads(self._num_threads)

    def __exit__(self, *error: object) -> None:
        _set_num_threads(self._before.pop())


def _set_num_threads(num_threads: int) -> None:
    """Set PyTorch's number unless it is so already: that takes much longer, and happens in each step."""
    if torch.get_num_threads() != num_threads:
        torch.set_num_threads(num_threads)


def _bind_process(cpus: tuple[int, ...]) -> None:
    """Bind the threads that there are; later ones inherit it."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended, or a CPU is gone
            os.sched_setaffinity(int(thread), cpus)
