"""``/docs``: served by this server alone, under a strict policy."""

import re
from collections.abc import Callable
from typing import Any

from octavo.api.console.router import docs_library

StartServer = Callable[..., Any]


def test_docs_come_from_this_server(server: Any) -> None:
    page = server.client.get("/docs")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    paths = re.findall(r'(?:src|href)="(docs/[^"]+)"', page.text)
    assert len(paths) == 3 and "//" not in page.text.replace("</", "").replace("<!", "")
    for path in paths:
        answer = server.client.get(f"/{path}")
        assert answer.status_code == 200 and answer.content, path
        again = server.client.get(f"/{path}", headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b""), path
    assert server.client.get("/docs/oauth2-redirect").status_code == 200
    redoc = server.client.get("/redoc")
    assert (redoc.status_code, redoc.headers["location"]) == (307, "docs")


def test_docs_can_be_switched_off_and_do_not_need_the_console(start_server: StartServer) -> None:
    client = start_server(disable_fastapi_docs=True).client
    for path in ("/docs", "/redoc", "/openapi.json", *(f"/docs/{name}" for name in docs_library())):
        assert client.get(path).status_code == 404, path
    client = start_server(disable_console=True).client
    assert client.get("/docs/swagger-ui-bundle.js").status_code == 200
    assert client.get("/console/vendor/swagger-ui/swagger-ui-bundle.js").status_code == 404


def test_docs_show_and_try_the_routes(open_page: Callable[..., Any]) -> None:
    """The fixture fails on any request to others, and on anything that the policy had to stop."""
    page = open_page(path="/docs")
    page.get_by_role("heading", name="Octavo").wait_for()
    page.locator("#operations-admin-version_version_get, [id*=version]").first.click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    page.locator(".responses-table .highlight-code", has_text="version").first.wait_for()
