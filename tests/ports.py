"""Ports for servers that are told theirs before they start."""

import contextlib
import random
import socket


def free_port() -> int:
    """A port that nobody listens on, below those that connections of other tests take while the server starts."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
