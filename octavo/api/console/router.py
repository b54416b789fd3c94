"""The web page at ``/`` and the files it needs.

The files hold no secret and are served without an API key; everything that the page then asks for, its status
included, needs the key like any other request.
"""

from collections.abc import Awaitable, Callable

import msgspec
from fastapi import APIRouter, Request, Response

from octavo.api.console.files import StaticFile, console_files
from octavo.api.console.status import console_status
from octavo.api.frontend import Frontend
from octavo.api.json_answer import json_answer

# The page loads from this server alone, runs no inline script, and no string can become markup in it: what a model
# writes, whatever it is, stays text.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Kept, but asked about each time: a new version of the server shows at once.
    "cache-control": "no-cache",
}


def console_router(frontend: Frontend) -> APIRouter:
    """Routes of the console."""
    router = APIRouter(tags=["console"])
    for path, file in console_files().items():
        router.add_api_route(path, _serve(file), methods=["GET", "HEAD"], include_in_schema=False)

    @router.get("/console/status", summary="Model, limits and settings in force, for the web page.")
    async def status() -> Response:
        return json_answer(msgspec.json.encode(console_status(frontend)))

    return router


def console_paths() -> frozenset[str]:
    """The paths that are open to all, because they hold nothing but the page itself."""
    return frozenset(console_files())


def _serve(file: StaticFile) -> Callable[[Request], Awaitable[Response]]:
    headers = {**_HEADERS, "etag": file.etag}

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.body, headers={**headers, "content-type": file.media_type})

    return answer
