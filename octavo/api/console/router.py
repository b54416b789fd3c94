"""The web page at ``/`` and the files it needs.

The files hold no secret and are served without an API key; everything that the page then asks for, its status
included, needs the key like any other request.
"""

import msgspec
from fastapi import APIRouter, Response

from octavo.api.console.files import console_files
from octavo.api.console.status import console_status
from octavo.api.frontend import Frontend
from octavo.api.json_answer import json_answer
from octavo.api.static_files import serve_file

# The page loads from this server alone and runs no inline script; a string becomes markup in it only through the
# sanitiser, DOMPurify.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    )
)


def console_router(frontend: Frontend) -> APIRouter:
    """Routes of the console."""
    router = APIRouter(tags=["console"])
    for path, file in console_files().items():
        route = serve_file(file, {"content-security-policy": CONTENT_SECURITY_POLICY})
        router.add_api_route(path, route, methods=["GET", "HEAD"], include_in_schema=False)

    @router.get("/console/status", summary="Model, limits and settings in force, for the web page.")
    async def status() -> Response:
        return json_answer(msgspec.json.encode(console_status(frontend)))

    return router


def console_paths() -> frozenset[str]:
    """The paths that are open to all, because they hold nothing but the page itself."""
    return frozenset(console_files())
