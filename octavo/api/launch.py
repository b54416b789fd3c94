"""Start a server from its settings: which processes there are and which one supervises the others.

With one API process, it serves HTTP itself and keeps the engine process alive. With several, this process serves
nothing: it keeps the engine and the API processes alive, which share its listening sockets.
"""

import asyncio
import contextlib
import gc
import logging
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Coroutine
from typing import Any

import msgspec

from octavo.async_llm import AsyncLLM
from octavo.config import EngineConfig, ServerSettings
from octavo.engine.child import EngineChild
from octavo.engine.state import START_FAILED
from octavo.engine.supervisor import Supervisor
from octavo.garbage import freeze_until_exit, garbage_collection_off
from octavo.telemetry.logs import configure_logging, log_stats
from octavo.telemetry.phases import process_age

logger = logging.getLogger(__name__)

_OBJECTS_BETWEEN_COLLECTIONS = 50_000
_EXTRA_SECONDS = 5.0
_MAX_SECONDS_OF_OTHERS = 0.001


class ApiLaunch(msgspec.Struct):
    """How an API process is to start.

    Attributes:
        address: where it listens for the engine.
        started: when the server's command was given, in seconds since the epoch, for the one process that reports the
            start; 0 for the others.
    """

    settings: EngineConfig
    server: ServerSettings
    address: str
    index: int
    fds: list[int]
    started: float = 0.0


def run_server(settings: EngineConfig, server: ServerSettings, child: EngineChild | None = None) -> int:
    """Serve until a signal; returns the exit status.

    Args:
        child: an engine process to begin with, started but not launched.

    Raises:
        OctavoError: a setting or the model is wrong, or the address is taken.
    """
    log = settings.logging
    configure_logging(log.log_level, log.log_format, log.log_config_file)
    if server.enable_admin_endpoints and not server.api_key:
        logger.warning("Anyone who can reach this server can use its admin routes; set --api-key.")
    if server.api_server_count == 1:
        return _run(serve_alone(settings, server, child))
    return _run(_serve_with_children(settings, server, child))


def first_name(server: ServerSettings) -> str | None:
    """The name that answers show, if the settings give one."""
    return server.served_model_name[0] if server.served_model_name else None


async def serve_alone(settings: EngineConfig, server: ServerSettings, child: EngineChild | None = None) -> int:
    """Serve from this process until a signal; see :func:`run_server`."""
    engine = AsyncLLM(
        settings,
        chat_template=server.chat_template,
        served_name=first_name(server),
        child=child,
        settles_reasoning=False,
    )
    loading = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    # The web framework is imported while the engine process imports and loads the model.
    with garbage_collection_off():
        await asyncio.to_thread(__import__, "octavo.api.server")
    return await serve_engine(engine, loading, server, None, time.time() - process_age())


async def serve_engine(
    engine: AsyncLLM,
    loading: asyncio.Task[None],
    server: ServerSettings,
    sockets: list[socket.socket] | None,
    started: float,
) -> int:
    """Serve an engine that is starting; returns the exit status, 1 if the engine died for good.

    Args:
        sockets: where to listen; made from the settings if not given.
        started: when the command was given, in seconds since the epoch, to report the start; 0 reports nothing.
    """
    from octavo.api.chat.formats import check_names
    from octavo.api.server import bind_sockets, serve
    from octavo.api.start_report import report_start

    def report(address: str) -> None:
        if started:
            report_start(engine, engine.settings, server, address, time.time() - started)

    try:
        check_names(engine.settings.model, server)
        sockets = bind_sockets(server) if sockets is None else sockets
        await loading
        collect_garbage_rarely()
        let_the_loop_run()
        serving = asyncio.create_task(serve(engine, server, sockets, report))
        dying = asyncio.create_task(engine.wait_until_dead())
        stats_log = None
        log_settings = engine.settings.logging
        if not log_settings.disable_log_stats and engine.index == 0:
            stats_log = asyncio.create_task(log_stats(lambda: engine.stats, logger, log_settings.log_stats_interval))
        done, _ = await asyncio.wait({serving, dying}, return_when=asyncio.FIRST_COMPLETED)
        for task in (stats_log, dying):
            if task is not None:
                task.cancel()
        if serving not in done:
            signal.raise_signal(signal.SIGTERM)
        await serving
        return 0 if serving in done else 1
    finally:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        await engine.shutdown()


def let_the_loop_run() -> None:
    """Let threads release the GIL to the event loop after 1 ms instead of Python's default of 5 ms."""
    sys.setswitchinterval(_MAX_SECONDS_OF_OTHERS)


def collect_garbage_rarely() -> None:
    """Collect garbage less often: answers leave no reference cycles.

    Objects that exist now are frozen and never examined again.
    """
    gc.collect()
    freeze_until_exit()
    # Nothing else runs during a collection, so the second generation follows after two of the first.
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, 2, 20)


async def _serve_with_children(settings: EngineConfig, server: ServerSettings, child: EngineChild | None) -> int:
    from octavo.api.server import bind_sockets

    folder = tempfile.mkdtemp(prefix="octavo-")
    sockets = bind_sockets(server)
    addresses = [f"ipc://{folder}/api-{index}.sock" for index in range(server.api_server_count)]
    supervisor = Supervisor(settings, addresses, child)
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    engine = asyncio.create_task(supervisor.run())
    started = time.time() - process_age()
    launches = [
        ApiLaunch(
            settings, server, address, index, [listener.fileno() for listener in sockets], 0 if index else started
        )
        for index, address in enumerate(addresses)
    ]
    children = [asyncio.create_task(_keep_child(launch, stopping)) for launch in launches]
    try:
        stop = asyncio.create_task(stopping.wait())
        await asyncio.wait({engine, stop, *children}, return_when=asyncio.FIRST_COMPLETED)
        status = 0
        if not stopping.is_set():
            if engine.done() or _status_of_failure(children) == START_FAILED:
                # All processes hit the same error, and the first API process reports it.
                await asyncio.wait({children[0], stop}, timeout=_EXTRA_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            status = _status_of_failure(children)
        stopping.set()
        await asyncio.wait(children, timeout=server.shutdown_timeout + _EXTRA_SECONDS)
        return status
    finally:
        for task in children:
            task.cancel()
        await asyncio.gather(*children, return_exceptions=True)
        await supervisor.stop()
        await asyncio.gather(engine, return_exceptions=True)
        for listener in sockets:
            listener.close()
        shutil.rmtree(folder, ignore_errors=True)


def _status_of_failure(children: list[asyncio.Task[int]]) -> int:
    """The exit status of an API process that gave up and logged the reason; 1 if all still run."""
    return next((task.result() for task in children if task.done()), 1)


async def _keep_child(launch: ApiLaunch, stopping: asyncio.Event) -> int:
    """Keep one API process alive; when told to stop, let it drain.

    Returns:
        The status with which it ended for good: early if a setting is at fault.
    """
    while not stopping.is_set():
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "octavo.api.process", stdin=asyncio.subprocess.PIPE, pass_fds=launch.fds
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(launch) + b"\n")
        ended = asyncio.create_task(process.wait())
        stop = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait({ended, stop}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.is_set():
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                return await ended
            if process.returncode == START_FAILED:
                return process.returncode
            logger.error("API process %d ended with status %s; starting it again", launch.index, process.returncode)
            launch.started = 0.0
        finally:
            stop.cancel()
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await ended
        await asyncio.sleep(0.2)
    return 0


def _run(main: Coroutine[Any, Any, int]) -> int:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
