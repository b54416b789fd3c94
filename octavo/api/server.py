"""Running the app on uvicorn, from binding the port to the last answer."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Generator, Sequence

import uvicorn

from octavo.api.app import build_app
from octavo.api.connection import guarded_protocol
from octavo.api.drain import Drain
from octavo.api.engine import ServingEngine
from octavo.config import ServerSettings
from octavo.errors import ConfigError
from octavo.telemetry.logs import silence_access_log

logger = logging.getLogger(__name__)

BACKLOG = 2048
CLOSE_SECONDS = 2


class DrainingServer(uvicorn.Server):
    """uvicorn's server with an orderly end.

    After the first SIGTERM or SIGINT new requests, on new connections as well, are answered with status 503, and
    running ones may finish within ``drain_timeout`` seconds; then the rest is aborted. A second SIGINT aborts at once.
    """

    def __init__(
        self, config: uvicorn.Config, drain: Drain, drain_timeout: float, on_started: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._drain_timeout = drain_timeout
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then call ``on_started``."""
        await super().startup(sockets)
        self._on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle signals while serving; unlike uvicorn's, do not raise them again at the end: it was orderly."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = (signal.SIGINT, signal.SIGTERM)
        originals = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in originals.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, abort what is left, close."""
        logger.info("Shutting down")
        self._drain.start_draining()
        # New requests are rejected at once and do not delay the shutdown.
        running = set(self.server_state.tasks)
        if running:
            logger.info("Finishing %d requests", len(running))
        await self._wait_for(running, self._drain_timeout)
        for server in self.servers:
            server.close()
        running = set(self.server_state.tasks)
        if running:
            logger.warning("Aborting %d requests", len(running))
            self._drain.abort_all()
            await self._wait_for(running, CLOSE_SECONDS)
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await asyncio.sleep(0)
        for connection in list(self.server_state.connections):
            if connection.transport.get_write_buffer_size() > 0:
                connection.transport.abort()
        await super().shutdown(sockets)

    async def _wait_for(self, tasks: set[asyncio.Task[None]], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while tasks and not self.force_exit and time.monotonic() < deadline:
            _, tasks = await asyncio.wait(tasks, timeout=0.05)


def bind_sockets(settings: ServerSettings) -> list[socket.socket]:
    """Bind what the settings name, before anything expensive starts.

    Several API processes may serve from the same sockets.
    """
    try:
        if settings.uds is not None:
            return [_bind_unix(settings.uds)]
        host = settings.host or ""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return [socket.create_server((host, settings.port), family=family, backlog=BACKLOG)]
    except OSError as error:
        where = settings.uds or f"{settings.host or '0.0.0.0'}:{settings.port}"
        raise ConfigError(f"Cannot listen on {where}: {error.strerror or error}.") from None


def _bind_unix(path: str) -> socket.socket:
    if os.path.lexists(path):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise ConfigError(f"uds: {path} exists and is not a socket.")
        os.unlink(path)  # left over from a process that is gone
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(BACKLOG)
    return listener


def describe_address(listener: socket.socket, settings: ServerSettings) -> str:
    """Where a client finds the server, as a URL."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    scheme = "https" if settings.ssl_certfile else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _check_tls(settings: ServerSettings) -> None:
    """Check the TLS settings, with clearer errors than OpenSSL's."""
    files = {
        "ssl_keyfile": settings.ssl_keyfile,
        "ssl_certfile": settings.ssl_certfile,
        "ssl_ca_certs": settings.ssl_ca_certs,
    }
    for name, path in files.items():
        if path is not None and not os.path.isfile(path):
            raise ConfigError(f"{name}: there is no file {path!r}.")
    if settings.ssl_certfile is None and (settings.ssl_keyfile or settings.ssl_ca_certs or settings.ssl_cert_reqs):
        raise ConfigError("TLS needs a certificate of the server: set ssl_certfile.")
    if settings.ssl_cert_reqs not in (0, 1, 2):
        raise ConfigError(f"ssl_cert_reqs is 0, 1 or 2, not {settings.ssl_cert_reqs}.")
    if settings.ssl_cert_reqs and settings.ssl_ca_certs is None:
        raise ConfigError("Certificates of clients cannot be checked without ssl_ca_certs.")


def make_server(
    engine: ServingEngine, settings: ServerSettings, on_started: Callable[[], None] = lambda: None
) -> DrainingServer:
    """A server for ``engine`` that has yet to be given its sockets; ``on_started`` is called when it listens."""
    _check_tls(settings)
    silence_access_log([path.strip() for path in (settings.disable_access_log_for_endpoints or "").split(",") if path])
    drain = Drain()
    config = uvicorn.Config(
        build_app(engine, settings, drain),
        http=guarded_protocol(settings.request_timeout, settings.stream_write_timeout),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=not settings.disable_uvicorn_access_log,
        server_header=False,
        root_path=settings.root_path,
        timeout_keep_alive=settings.http_keep_alive_timeout,
        timeout_graceful_shutdown=CLOSE_SECONDS,
        ssl_keyfile=settings.ssl_keyfile,
        ssl_certfile=settings.ssl_certfile,
        ssl_ca_certs=settings.ssl_ca_certs,
        ssl_cert_reqs=settings.ssl_cert_reqs,
        ssl_ciphers=settings.ssl_ciphers,
    )
    return DrainingServer(config, drain, settings.shutdown_timeout, on_started)


async def serve(
    engine: ServingEngine,
    settings: ServerSettings,
    sockets: Sequence[socket.socket] | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve a started engine until a signal ends it; the engine is left running.

    Args:
        sockets: bound listeners (see :func:`bind_sockets`); made from the settings if not given.
        on_ready: called with the server's URL when requests are accepted; by default that is logged.
    """
    listeners = list(sockets) if sockets is not None else bind_sockets(settings)
    address = describe_address(listeners[0], settings)

    def on_started() -> None:
        if on_ready is None:
            logger.info("Listening on %s", address)
        else:
            on_ready(address)

    try:
        await make_server(engine, settings, on_started).serve(listeners)
    finally:
        for listener in listeners:
            listener.close()
        if sockets is None and settings.uds is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(settings.uds)
