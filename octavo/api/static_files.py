"""Files that ship with the package, served from memory with an entity tag, and compressed where that helps."""

import asyncio
import gzip
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources.abc import Traversable

from fastapi import Request, Response

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "woff2": "font/woff2",
}
# Headers of every page and file: no MIME sniffing, no referrer, no cross-origin use.
COMMON_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Kept, but asked about each time: a new version of the server shows at once.
    "cache-control": "no-cache",
}
_IS_COMPRESSED_ALREADY = {"woff2"}


def content_security_policy(*more: str) -> str:
    """The policy of a page that loads from this server alone and runs no inline script, with further directives."""
    return "; ".join(
        (
            *("default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"),
            *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
            *more,
        )
    )


@dataclass(frozen=True)
class StaticFile:
    """One file."""

    body: bytes
    extension: str

    @property
    def media_type(self) -> str:
        """The file's ``Content-Type``."""
        return MEDIA_TYPES[self.extension]

    @cached_property
    def digest(self) -> str:
        """Changes with the contents."""
        return hashlib.sha256(self.body).hexdigest()[:32]

    @cached_property
    def _gzip(self) -> bytes:
        return gzip.compress(self.body, mtime=0)

    def compress(self) -> bytes | None:
        """The file as gzip; None if that would not make it smaller. The first call takes up to a tenth of a second."""
        return None if self.extension in _IS_COMPRESSED_ALREADY else self._gzip


def walk_files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, StaticFile]]:
    """Every file below ``folder`` whose type is in :data:`MEDIA_TYPES`, with its path relative to it."""
    for entry in folder.iterdir():
        extension = entry.name.rpartition(".")[2]
        if entry.is_dir():
            yield from walk_files(entry, f"{prefix}{entry.name}/")
        elif extension in MEDIA_TYPES:
            yield prefix + entry.name, StaticFile(entry.read_bytes(), extension)


def serve_file(file: StaticFile, headers: Mapping[str, str]) -> Callable[[Request], Awaitable[Response]]:
    """A route that answers with ``file``, or with 304 to a browser that has it.

    Args:
        headers: of the answer, besides :data:`COMMON_HEADERS`.
    """

    async def answer(request: Request) -> Response:
        accepts_gzip = "gzip" in request.headers.get("accept-encoding", "").lower()
        compressed = await asyncio.to_thread(file.compress) if accepts_gzip else None
        etag = f'"{file.digest}{"-gzip" if compressed else ""}"'
        sent = {**COMMON_HEADERS, **headers, "etag": etag, "vary": "accept-encoding"}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=sent)
        sent["content-type"] = file.media_type
        if compressed:
            sent["content-encoding"] = "gzip"
        return Response(compressed or file.body, headers=sent)

    return answer
