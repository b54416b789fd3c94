"""``/docs``: the OpenAPI document as a page, with a Swagger UI that comes from this server alone."""

from fastapi import APIRouter
from fastapi.responses import RedirectResponse

from octavo.api.console.router import docs_library
from octavo.api.static_files import StaticFile, content_security_policy, serve_file

# Swagger UI's style sheet holds its icons.
_CONTENT_SECURITY_POLICY = content_security_policy("img-src 'self' data:")
# Paths are relative, so that the page also works below a proxy's prefix.
_PAGE = b"""<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <title>Octavo: HTTP API</title>
  <link rel="icon" href="data:,">
  <link rel="stylesheet" href="docs/swagger-ui.css">
  <script defer src="docs/swagger-ui-bundle.js"></script>
  <script defer src="docs/start.js"></script>
</head>
<body>
  <div id="swagger-ui"></div>
  <noscript>This page needs JavaScript. See <a href="openapi.json">openapi.json</a> for the same content.</noscript>
</body>
</html>
"""
_START = b"""SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  displayRequestDuration: true,
  validatorUrl: null,
});
"""


def docs_router() -> APIRouter:
    """Routes of the page, of its files, and the addresses that other servers have for the same."""
    router = APIRouter(include_in_schema=False)
    library = docs_library()
    pages = {
        "/docs": StaticFile(_PAGE, "html"),
        "/docs/start.js": StaticFile(_START, "js"),
        "/docs/oauth2-redirect": library.pop("oauth2-redirect.html"),
        **{f"/docs/{name}": file for name, file in library.items()},
    }
    for path, file in pages.items():
        router.add_api_route(
            path, serve_file(file, {"content-security-policy": _CONTENT_SECURITY_POLICY}), methods=["GET", "HEAD"]
        )

    @router.get("/redoc")
    async def redoc() -> RedirectResponse:
        return RedirectResponse("docs")

    return router
