"""What a worker in another process does with rank 0's messages, however they get there."""

import logging
from collections.abc import Callable

from octavo.errors import OctavoError
from octavo.execution import messages
from octavo.execution.worker import Worker
from octavo.hub import find_model
from octavo.platforms import select_platform
from octavo.telemetry.phases import PhaseTimer

logger = logging.getLogger(__name__)

Send = Callable[[bytes], None]


def make_worker(launch: messages.WorkerLaunch, send: Send, device_index: int | None = None) -> Worker | None:
    """The worker of a launch; None if that fails, which is replied.

    Args:
        device_index: the device's number on this machine; None for the rank.
    """
    settings = launch.settings
    try:
        source, config = find_model(settings)
        platform = select_platform(settings.device.device, launch.rank if device_index is None else device_index)
        return Worker(
            settings,
            source,
            config,
            messages.from_plain(launch.plan),
            platform,
            PhaseTimer(logger, logging.DEBUG),
            launch.folder,
            rank=launch.rank,
            size=launch.size,
        )
    except Exception as error:
        send(messages.encode(messages.Reply.of_error(error)))
        return None


def serve(worker: Worker, data: bytes | bytearray, send: Send) -> None:
    """Do what one message says. Errors of steps are raised: the other ranks would wait for this one's part.

    Args:
        send: takes replies.
    """
    match messages.decode_to_worker(data):
        case messages.Submit(step=step):
            worker.submit(step)
            if step.masked_rows is None:
                worker.drop(step.step_id)
        case messages.Draw(step_id=step_id, masks=masks, width=width):
            worker.draw(step_id, masks.reshape(-1, width))
            worker.drop(step_id)
        case messages.Call(method=method, args=args, kwargs=kwargs):
            try:
                reply = messages.Reply(getattr(worker, method)(*messages.from_plain(args), **kwargs))
            except OctavoError as error:
                reply = messages.Reply.of_error(error)
            send(messages.encode(reply))
