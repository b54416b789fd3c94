"""uvicorn's HTTP protocol with deadlines, so that idle or slow clients cannot hold connections open."""

import asyncio
import logging
import socket
from collections.abc import Callable
from types import MethodType

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from octavo.api.errors import error_body
from octavo.outputs.stream import TextTaker

logger = logging.getLogger(__name__)

TCP_KEEPALIVE_IDLE = 60  # seconds of silence after which the kernel asks whether the peer still exists

MAX_UNSENT_BYTES = 1 << 16  # of one connection, in the kernel; the server itself holds as much and no more

MAX_HEADER_BYTES = 1 << 16


class GuardedProtocol(HttpToolsProtocol):
    """Cuts clients that do not send their request, or do not read their answer, in time.

    Three deadlines, none of which touches a request that is merely being worked on:

    - a request must have arrived ``request_timeout`` seconds after its first byte; a new connection's first
      request that long after the connection;
    - a full write buffer must drain below its low mark within ``write_timeout`` seconds;
    - what is left in the buffer when the connection is to close must be taken within ``write_timeout`` seconds.

    Headers may hold 64 KiB; the parser itself would take any amount.
    """

    request_timeout: float
    write_timeout: float
    _request_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _is_mid_request = False
    _is_in_headers = False
    _num_header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock for the first request."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):
                # Else the kernel would hold some MiB for each client that does not read.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
            if hasattr(socket, "TCP_KEEPIDLE"):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, TCP_KEEPALIVE_IDLE)
        self._start_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all clocks."""
        self._stop_request_timer()
        self._stop_write_timer()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Start the clock for the request whose first byte came."""
        super().on_message_begin()
        self._is_mid_request = self._is_in_headers = True
        self._num_header_bytes = 0
        self._start_request_timer()

    def on_headers_complete(self) -> None:
        """Hand the request to the app."""
        self._is_in_headers = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Stop the clock: the request is here."""
        self._is_mid_request = False
        self._stop_request_timer()
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        """Parse; bytes that begin no request do not keep an idle connection alive."""
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_in_headers:
            self._num_header_bytes += len(data)
            if self._num_header_bytes > MAX_HEADER_BYTES:
                self._refuse(431, f"The request's headers are longer than {MAX_HEADER_BYTES} bytes.")
                return
        is_idle = not self._is_mid_request and (self.cycle is None or self.cycle.response_complete)
        if is_idle and self._request_timer is None:
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def pause_writing(self) -> None:
        """Start the clock for a reader that lags behind."""
        super().pause_writing()
        self._start_write_timer()

    def resume_writing(self) -> None:
        """Stop it: the reader caught up."""
        super().resume_writing()
        self._stop_write_timer()

    def on_response_complete(self) -> None:
        """Start the clock for what is unsent, if the connection closes with this answer."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._start_write_timer()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        self._close()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        body = error_body(status, message)
        self.transport.write(
            b"%scontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
            % (STATUS_LINE[status], len(body), body)
        )
        self._close()

    def _close(self) -> None:
        self.transport.close()
        self._start_write_timer()

    def _start_request_timer(self) -> None:
        self._stop_request_timer()
        self._request_timer = self.loop.call_later(self.request_timeout, self._on_request_timeout)

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _start_write_timer(self) -> None:
        self._stop_write_timer()
        self._write_timer = self.loop.call_later(self.write_timeout, self._on_write_timeout)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _on_request_timeout(self) -> None:
        self._request_timer = None
        if self.transport.is_closing():
            return
        if self.pipeline or self.flow.read_paused:
            # The client may be waiting for us: its earlier request is still being answered.
            self._start_request_timer()
            return
        if self._is_mid_request and (self.cycle is None or not self.cycle.response_started):
            self._refuse(408, f"The request did not arrive within {self.request_timeout:g} seconds.")
        else:
            self._close()

    def _on_write_timeout(self) -> None:
        self._write_timer = None
        if self.transport.get_write_buffer_size() > 0:
            logger.info("Disconnected a client that read nothing for %g seconds", self.write_timeout)
            self.transport.abort()


EncodeText = Callable[[int, int, str], bytes]
"""Makes an event of a completion's index, its next token and the text that it adds; empty if there is none."""


def text_writer(send: Send, encode: EncodeText) -> TextTaker | None:
    """What writes an answer's text on the spot, where the server's own way is a coroutine's step for each piece.

    It takes text only once the body has begun, and while the client reads as fast as it is written. The answer's
    head and end, and all that it does not take, go the server's own way.

    Args:
        send: that way; nothing but uvicorn's with httptools can be helped, and gets None.
    """
    if not isinstance(send, MethodType) or not isinstance(send.__self__, RequestResponseCycle):
        return None
    cycle: RequestResponseCycle = send.__self__
    flow, write = cycle.flow, cycle.transport.write

    def take_text(index: int, token_id: int, text: str) -> bool:
        if flow.write_paused or not cycle.chunked_encoding or cycle.disconnected or cycle.response_complete:
            return False
        if data := encode(index, token_id, text):
            write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    return take_text


def guarded_protocol(request_timeout: float, write_timeout: float) -> type[GuardedProtocol]:
    """The protocol class with its deadlines, in seconds, filled in; uvicorn makes the instances."""
    return type(
        "ConfiguredProtocol", (GuardedProtocol,), {"request_timeout": request_timeout, "write_timeout": write_timeout}
    )
