"""Small helpers that code written for vLLM imports from it."""

import argparse
import gc
import logging
import socket
import sys
import uuid
from collections.abc import Sequence
from typing import Any


def init_logger(name: str) -> logging.Logger:
    """A logger of the standard library."""
    return logging.getLogger(name)


def random_uuid() -> str:
    """32 random hexadecimal digits."""
    return uuid.uuid4().hex


def get_open_port() -> int:
    """A free TCP port."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def get_ip() -> str:
    """This machine's address towards the network, or the loopback address without one. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address kept for documentation, RFC 5737
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


class CallCounter:
    """Counts up, a number per call of :func:`next`."""

    def __init__(self, start: int = 0) -> None:
        self.counter = start

    def __next__(self) -> int:
        value = self.counter
        self.counter += 1
        return value

    def reset(self) -> None:
        """Begin again at 0."""
        self.counter = 0


class FlexibleArgumentParser(argparse.ArgumentParser):
    """argparse that takes underscores in flags for hyphens."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As of argparse."""
        given = sys.argv[1:] if args is None else args
        return super().parse_known_args([_with_hyphens(argument) for argument in given], namespace)


def _with_hyphens(argument: str) -> str:
    """``--max_num_seqs=4`` as ``--max-num-seqs=4``; values are left alone."""
    if not argument.startswith("--"):
        return argument
    name, separator, value = argument.partition("=")
    return name.replace("_", "-") + separator + value


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Collect garbage, so that models that are not referenced any more give their memory back.

    Args:
        shutdown_ray: taken for compatibility; Octavo does not use Ray.
    """
    gc.collect()


def destroy_model_parallel() -> None:
    """Nothing: a model of one device has no process groups."""


def destroy_distributed_environment() -> None:
    """Nothing, for the same reason."""
