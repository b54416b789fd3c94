"""The page's files as they lie in ``static/``, read once; a request names one of them or nothing."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files

PAGE = "/"
FOLDER = "/console/"

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file and what goes with it.

    Attributes:
        etag: changes with the contents.
    """

    body: bytes
    media_type: str
    etag: str


def console_files() -> dict[str, StaticFile]:
    """Every file by the path under which it is served: the page at ``/``, the rest in ``/console/``."""
    found = {}
    for entry in files("octavo.api.console").joinpath("static").iterdir():
        media_type = _TYPES.get(entry.name.rpartition(".")[2])
        if media_type is not None:
            body = entry.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            found[PAGE if entry.name == "index.html" else FOLDER + entry.name] = StaticFile(body, media_type, etag)
    return found
