"""What a worker in another process does with rank 0's messages."""

import logging
from collections.abc import Callable
from typing import Protocol

import msgspec
import torch.distributed as dist

from octavo.errors import OctavoError
from octavo.execution import messages
from octavo.execution.worker import Worker
from octavo.hub import find_model
from octavo.kernels import expect_to_compile
from octavo.platforms import platform_type, select_platform
from octavo.telemetry.logs import configure_logging
from octavo.telemetry.phases import PhaseTimer

logger = logging.getLogger(__name__)


class Connection(Protocol):
    """The connection to rank 0."""

    def send(self, data: bytes) -> None:
        """Send a message."""

    def receive(self) -> bytes | bytearray:
        """Wait for a message.

        Raises:
            ConnectionError: rank 0 has closed the connection.
        """


def run_worker(connection: Connection) -> int:
    """Start as the first message says, then serve rank 0 until it closes the connection; returns an exit status."""
    launch = msgspec.msgpack.decode(connection.receive(), type=messages.WorkerLaunch)
    log = launch.settings.logging
    configure_logging(log.log_level, log.log_format, log.log_config_file)
    try:
        worker = make_worker(launch)
    except Exception as error:
        connection.send(messages.encode(messages.WorkerReply.of_error(error)))
        return 1
    connection.send(messages.encode(messages.WorkerReply()))
    try:
        worker.connect(dist.FileStore(launch.store, launch.size), is_local=True)
        connection.send(messages.encode(messages.WorkerReply()))
        while True:
            answer(worker, connection.receive(), connection.send)
    except ConnectionError:
        return 0
    except Exception:
        logger.exception("the worker of rank %d failed", launch.rank)
        return 1


def make_worker(launch: messages.WorkerLaunch, device_index: int | None = None) -> Worker:
    """The worker of a launch.

    Args:
        device_index: the device's number on this machine; None for the rank.

    Raises:
        OctavoError: the model or a setting is wrong.
    """
    settings = launch.settings
    source, config = find_model(settings)
    expect_to_compile(platform_type(settings.device.device), settings.device.cache_root)
    platform = select_platform(settings.device.device, launch.rank if device_index is None else device_index)
    plan, phases = messages.from_plain(launch.plan), PhaseTimer(logger, logging.DEBUG)
    return Worker(
        settings,
        source,
        config,
        plan,
        platform,
        phases,
        launch.folder,
        rank=launch.rank,
        size=launch.size,
        owns_process=True,
    )


def answer(worker: Worker, data: bytes | bytearray, send: Callable[[bytes], None]) -> None:
    """Do what a message says, and reply to a call. Errors are raised where other ranks wait for this one."""
    with worker.host_threads:
        _answer(worker, data, send)


def _answer(worker: Worker, data: bytes | bytearray, send: Callable[[bytes], None]) -> None:
    match messages.decode_to_worker(data):
        case messages.Submit(step=step):
            worker.submit(step)
            if step.masked_rows is None:
                worker.drop(step.step_id)
        case messages.Draw(step_id=step_id, masks=masks, width=width):
            worker.draw(step_id, masks.reshape(-1, width))
            worker.drop(step_id)
        case messages.WorkerCall(method=method, args=args, kwargs=kwargs):
            try:
                value = getattr(worker, method)(*messages.from_plain(args), **kwargs)
                send(messages.encode_reply(value))
            except OctavoError as error:
                send(messages.encode(messages.WorkerReply.of_error(error)))
                if method in messages.COLLECTIVE_METHODS:
                    raise
