"""A headless browser with the console open; tests that need it are skipped where there is none."""

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_engine import FakeEngine

REPLY = "Hello **you**, <b>bold</b> `code`\n\n```python\nprint(1 < 2)\n```\n"
StartServer = Callable[..., Any]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api",
        reason="needs the package playwright: pip install 'octavo[browser]'; ran on Debian with playwright 1.65",
    )
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = os.environ.get("OCTAVO_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if chromium is None:
        pytest.skip("needs Chromium: install it, or name it in OCTAVO_CHROMIUM; ran on Debian with Chromium 156")
    with playwright.sync_playwright() as driver:
        # The sandbox needs rights that containers seldom give; the pages are our own.
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any, start_server: StartServer) -> Iterator[Callable[..., Any]]:
    """Opens a page of a server; at the end nothing was refused by the policy, and nothing asked of others.

    Arguments of the function: ``path`` of the page, ``expected`` are words of complaints that are no fault, ``context``
    of the browser, and the server's settings.
    """
    complaints: list[str] = []
    contexts = []

    def open_one(
        engine: FakeEngine | None = None,
        expected: tuple[str, ...] = (),
        *,
        path: str = "/",
        context: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Any:
        server = start_server(engine or FakeEngine(REPLY), **settings)
        window = browser.new_context(**{"viewport": {"width": 1100, "height": 800}, **(context or {})})
        window.set_default_timeout(10_000)
        contexts.append(window)
        page = window.new_page()

        def complain(text: str) -> None:
            if not any(words in text for words in expected):
                complaints.append(text)

        page.on("pageerror", lambda error: complain(str(error)))
        page.on("console", lambda message: complain(message.text) if message.type in ("error", "warning") else None)
        page.on(
            "request",
            lambda request: None if request.url.startswith((server.url, "blob:", "data:,")) else complain(request.url),
        )
        page.goto(server.url + path)
        page.engine = server.engine
        return page

    yield open_one
    for window in contexts:
        window.close()
    assert not complaints
