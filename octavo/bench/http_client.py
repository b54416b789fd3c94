"""A lean HTTP/1.1 client for load generation, so that the client is not what is measured.

Connections are reused. It supports only what a load generator needs: POST and GET, bodies of a known length, chunked,
or until the connection closes; no redirects, no compression.
"""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from octavo.errors import ConfigError

_LIMIT = 1 << 20
_PIECE = 1 << 16


class HttpProtocolError(OSError):
    """The server violated the protocol, or closed the connection early."""


@dataclass(frozen=True, slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass(slots=True)
class HttpResponse:
    """A response whose body is read in pieces.

    Attributes:
        is_complete: whether the body was read to its end.
    """

    status: int
    headers: dict[str, str]
    reader: asyncio.StreamReader
    is_complete: bool = False

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection can be reused."""
        is_framed = "content-length" in self.headers or "chunked" in self.headers.get("transfer-encoding", "")
        return self.is_complete and is_framed and self.headers.get("connection", "").lower() != "close"

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body, in pieces as they arrive.

        Raises:
            HttpError: the body ended early.
        """
        try:
            if "chunked" in self.headers.get("transfer-encoding", ""):
                while size := int((await self.reader.readline()).partition(b";")[0], 16):
                    yield (await self.reader.readexactly(size + 2))[:-2]
                while await self.reader.readline() not in (b"\r\n", b"\n", b""):
                    pass
            elif "content-length" in self.headers:
                left = int(self.headers["content-length"])
                while left:
                    piece = await self.reader.read(min(left, _PIECE))
                    if not piece:
                        raise HttpProtocolError("The server closed the connection within an answer.")
                    left -= len(piece)
                    yield piece
            else:
                while piece := await self.reader.read(_PIECE):
                    yield piece
        except (asyncio.IncompleteReadError, ValueError):
            raise HttpProtocolError("The server closed the connection within an answer.") from None
        self.is_complete = True

    async def body(self) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.pieces()])


class HttpClient:
    """Requests to one server.

    Args:
        base_url: scheme, host and port; a path before the routes is kept.
        verify: check the certificate of an https server.

    Raises:
        ConfigError: the URL is invalid.
    """

    def __init__(self, base_url: str, headers: Mapping[str, str] | None = None, *, verify: bool = True) -> None:
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(f"{base_url!r} is not a URL like http://localhost:8000.")
        self._host = url.hostname
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._tls = _tls(verify) if url.scheme == "https" else None
        self._prefix = url.path.rstrip("/")
        fixed = {"Host": url.netloc.rpartition("@")[2], "User-Agent": "octavo-bench", **(headers or {})}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        self._idle: deque[_Connection] = deque()

    @asynccontextmanager
    async def request(self, method: str, path: str, body: bytes = b"") -> AsyncGenerator[HttpResponse, None]:
        """Send a request; leaving the block before the body's end disconnects.

        Raises:
            OSError: the server cannot be reached.
            HttpError: the server closes the connection or does not send HTTP.
        """
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._headers}"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        connection, response = await self._exchange(f"{head}\r\n".encode("latin-1") + body)
        try:
            yield response
        finally:
            if response.keeps_alive:
                self._idle.append(connection)
            else:
                connection.writer.close()

    async def close(self) -> None:
        """Close idle connections."""
        while self._idle:
            writer = self._idle.popleft().writer
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _exchange(self, message: bytes) -> tuple[_Connection, HttpResponse]:
        """Send over an idle connection, or over a new one if the server has closed that."""
        while self._idle:
            connection = self._idle.popleft()
            try:
                return connection, await _send(connection, message)
            except (HttpProtocolError, ConnectionError):
                connection.writer.close()
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=_LIMIT)
        connection = _Connection(reader, writer)
        try:
            return connection, await _send(connection, message)
        except BaseException:
            writer.close()
            raise


async def _send(connection: _Connection, message: bytes) -> HttpResponse:
    connection.writer.write(message)
    await connection.writer.drain()
    while True:
        status, headers = await _read_head(connection.reader)
        if status >= 200:
            return HttpResponse(status, headers, connection.reader)


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").splitlines()
        version, status = status_line.split(" ", 2)[:2]
        if not version.startswith("HTTP/1."):
            raise ValueError(version)
        fields = (line.partition(":") for line in lines if line)
        return int(status), {name.strip().lower(): value.strip() for name, _, value in fields}
    except asyncio.IncompleteReadError:
        raise HttpProtocolError("The server closed the connection without an answer.") from None
    except (ValueError, asyncio.LimitOverrunError):
        raise HttpProtocolError("The server's answer is not HTTP.") from None


def _tls(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class EventParser:
    """Splits a byte stream into the data of its events, however the stream is cut into pieces."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of every event that ``piece`` completes; comments and other fields are ignored."""
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        events = []
        for line in (line.removesuffix(b"\r") for line in lines):
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        return events
