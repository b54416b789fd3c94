"""A small server that speaks enough of OpenAI's protocol to talk to."""

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeServer(ThreadingHTTPServer):
    """Answers every request with the same words.

    Attributes:
        words: what answers consist of, one token each.
        is_endless: repeat the words until the client hangs up.
        finish_reason: how answers end.
        error: status and message to refuse completions with.
        requests: bodies that came.
        hung_up: set when a client left in the middle of an answer.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.words = ["Hello", " there", "!"]
        self.is_endless = False
        self.finish_reason = "stop"
        self.error: tuple[int, str] | None = None
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.hung_up = threading.Event()

    @property
    def url(self) -> str:
        """Address without /v1."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._send_json(200, {"data": [{"id": "fake-model", "root": "fake/root"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        self.server.headers.append(dict(self.headers))
        if self.server.error is not None:
            status, message = self.server.error
            self._send_json(status, {"error": {"message": message}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            num_words = self._stream(body)
            usage = {"prompt_tokens": 7, "completion_tokens": num_words, "total_tokens": 7 + num_words}
            self._send_event({"choices": [], "usage": usage})
            self._send_chunk(b"data: [DONE]\n\n")
            self._send_chunk(b"")
        except OSError:
            self.server.hung_up.set()
            self.close_connection = True

    def _stream(self, body: dict[str, Any]) -> int:
        is_chat = self.path.endswith("chat/completions")
        num_words = 0
        if is_chat:
            self._send_event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        while not num_words or self.server.is_endless:
            for word in self.server.words:
                text: dict[str, Any] = {"delta": {"content": word}} if is_chat else {"text": word}
                self._send_event({"choices": [{"index": 0, "finish_reason": None, **text}]})
                num_words += 1
        end: dict[str, Any] = {"delta": {}} if is_chat else {"text": ""}
        self._send_event({"choices": [{"index": 0, "finish_reason": self.server.finish_reason, **end}]})
        return num_words

    def _send_event(self, event: dict[str, Any]) -> None:
        self._send_chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _send_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _send_json(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def fake_openai() -> Generator[FakeServer, None, None]:
    """A running server."""
    server = FakeServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
