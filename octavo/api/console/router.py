"""The web page at ``/`` and the files it needs.

The files hold no secret and are served without an API key; everything that the page then asks for, its status
included, needs the key like any other request.
"""

from importlib.resources import files

from fastapi import APIRouter, Response

from octavo.api.console.status import console_status
from octavo.api.frontend import Frontend
from octavo.api.pieces import json_answer
from octavo.api.static_files import StaticFile, content_security_policy, serve_file, walk_files

# The page loads from this server alone and runs no inline script; a string becomes markup in it only through the
# sanitiser, DOMPurify.
CONTENT_SECURITY_POLICY = content_security_policy(
    "img-src 'self'", "font-src 'self'", "require-trusted-types-for 'script'", "trusted-types dompurify"
)
PAGE = "/"
FOLDER = "/console/"
# Swagger UI is kept with the other libraries, but belongs to /docs.
_DOCS_LIBRARY = "vendor/swagger-ui/"


def console_router(frontend: Frontend) -> APIRouter:
    """Routes of the console."""
    router = APIRouter(tags=["console"])
    for path, file in console_files().items():
        route = serve_file(file, {"content-security-policy": CONTENT_SECURITY_POLICY})
        router.add_api_route(path, route, methods=["GET", "HEAD"], include_in_schema=False)

    @router.get("/console/status", summary="Model, limits and settings in force, for the web page.")
    async def status() -> Response:
        return json_answer(console_status(frontend))

    return router


def console_paths() -> frozenset[str]:
    """The paths that are open to all, because they hold nothing but the page itself."""
    return frozenset(console_files())


def console_files() -> dict[str, StaticFile]:
    """Every file by the path under which it is served: the page at ``/``, the rest in ``/console/``."""
    return {
        PAGE if path == "index.html" else FOLDER + path: file
        for path, file in walk_files(files("octavo.api.console").joinpath("static"))
        if not path.startswith(_DOCS_LIBRARY)
    }


def docs_library() -> dict[str, StaticFile]:
    """The files of Swagger UI by their names."""
    return dict(walk_files(files("octavo.api.console").joinpath("static", *_DOCS_LIBRARY.strip("/").split("/"))))
