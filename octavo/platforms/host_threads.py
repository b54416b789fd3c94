"""How many threads PyTorch computes with on the host, which is a setting of the caller's process."""

import torch


class HostThreads:
    """A context in which PyTorch uses so many threads; then the caller's number again. May be entered repeatedly.

    Args:
        num_threads: at least 1.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._before: list[int] = []

    def __enter__(self) -> None:
        self._before.append(torch.get_num_threads())
        torch.set_num_threads(self._num_threads)

    def __exit__(self, *error: object) -> None:
        torch.set_num_threads(self._before.pop())
