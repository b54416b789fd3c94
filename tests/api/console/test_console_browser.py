"""The console in a real browser, headless, against the fake engine or answers made up here."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_engine import FakeEngine
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.records import EngineStats

playwright = pytest.importorskip(
    "playwright.sync_api",
    reason="needs the package playwright: pip install 'octavo[browser]'; ran on Debian with playwright 1.65",
)
CHROMIUM = os.environ.get("OCTAVO_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None,
    reason="needs Chromium: install it, or name it in OCTAVO_CHROMIUM; ran on Debian with Chromium 156",
)
StartServer = Callable[..., Any]
REPLY = "Hello **you**, <b>bold</b> `code`\n\n```python\nprint(1 < 2)\n```\n"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        # The sandbox needs rights that containers seldom give; the pages are our own.
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any, start_server: StartServer) -> Iterator[Callable[..., Any]]:
    """Opens the console of a server; at the end nothing was refused by the policy, and nothing asked of others."""
    complaints: list[str] = []
    contexts = []

    def open_one(
        engine: FakeEngine | None = None, expected: tuple[str, ...] = (), *, viewport: Any = None, **flags: Any
    ) -> Any:
        server = start_server(engine or FakeEngine(REPLY), **flags)
        context = browser.new_context(viewport=viewport or {"width": 1100, "height": 800})
        context.set_default_timeout(10_000)
        contexts.append(context)
        page = context.new_page()

        def complain(text: str) -> None:
            if not any(words in text for words in expected):
                complaints.append(text)

        page.on("pageerror", lambda error: complain(str(error)))
        page.on("console", lambda message: complain(message.text) if message.type in ("error", "warning") else None)
        page.on("request", lambda request: None if request.url.startswith(server.url) else complain(request.url))
        page.goto(server.url)
        page.engine = server.engine
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert not complaints


def ask(page: Any, text: str) -> None:
    """Write and send a message, by keyboard."""
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def wait_for_answer(page: Any) -> Any:
    """The last answer, once it is complete."""
    page.get_by_role("button", name="Regenerate").wait_for()
    return page.locator(".message.assistant").last


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds on the server's side."""
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def made_up(page: Any, *chunks: Any, end: str = "data: [DONE]\n\n", status: int = 200) -> list[Any]:
    """Answer chats with these chunks; returns the list in which the requests' bodies will stand."""
    bodies: list[Any] = []

    def fulfil(route: Any) -> None:
        bodies.append(json.loads(route.request.post_data))
        text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + end
        content_type = "text/event-stream" if status == 200 else "application/json"
        route.fulfill(status=status, headers={"content-type": content_type}, body=text)

    page.route("**/v1/chat/completions", fulfil)
    return bodies


def delta(reason: str | None = None, **parts: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": parts, "finish_reason": reason}]}


def test_answers_are_shown_as_text_and_kept(open_page: Callable[..., Any]) -> None:
    page = open_page()
    ask(page, "<i>Hi</i>")
    answer = wait_for_answer(page)
    assert answer.locator("strong").inner_text() == "you"
    assert "<b>bold</b>" in answer.inner_text()
    assert answer.locator("pre").inner_text() == "print(1 < 2)"
    assert page.locator("#messages :is(i, b, script)").count() == 0
    assert page.locator(".message.user .body").inner_text() == "<i>Hi</i>"
    page.reload()
    page.get_by_role("button", name="<i>Hi</i>", exact=True).click()
    assert page.locator(".message").count() == 2
    page.get_by_role("button", name="Delete <i>Hi</i>").click()
    assert page.locator("#conversations li").count() == 0
    assert page.locator(".message").count() == 0


def test_escape_stops_an_answer_in_the_engine_too(open_page: Callable[..., Any]) -> None:
    engine = FakeEngine("word " * 200, step_seconds=0.02)
    page = open_page(engine)
    ask(page, "Go on")
    page.locator(".message.assistant", has_text="word word").wait_for()
    page.keyboard.press("Escape")
    answer = wait_for_answer(page)
    assert "stopped" in answer.locator(".figures").inner_text()
    until(lambda: engine.num_aborted == 1)
    assert "word word" in answer.locator(".body").inner_text()
    ask(page, "And now?")
    page.get_by_role("button", name="Stop").click()
    wait_for_answer(page)
    # What was said before the stop is part of the conversation.
    assert "assistant: word word" in engine.calls[-1]["prompt"]


def test_regenerate_and_edit_begin_again_from_there(open_page: Callable[..., Any]) -> None:
    page = open_page(FakeEngine("fine"))
    ask(page, "first")
    wait_for_answer(page)
    ask(page, "second")
    wait_for_answer(page)
    prompts = [call["prompt"] for call in page.engine.calls]
    page.get_by_role("button", name="Regenerate").click()
    page.get_by_role("button", name="Stop").wait_for(state="hidden")
    wait_for_answer(page)
    assert page.engine.calls[-1]["prompt"] == prompts[-1]
    page.get_by_role("button", name="Edit").first.click()
    page.get_by_label("Edit the message").fill("other")
    page.keyboard.press("Enter")
    playwright.expect(page.locator(".message")).to_have_count(2)
    wait_for_answer(page)
    assert page.engine.calls[-1]["prompt"] == prompts[0].replace("first", "other")


def test_settings_reach_the_request(open_page: Callable[..., Any]) -> None:
    page = open_page(FakeEngine("fine"))
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.25")
    page.get_by_label("Top p").fill("0.5")
    page.get_by_label("Most tokens").fill("3")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Tools").fill("[{")
    page.get_by_role("button", name="Done").click()
    assert "not JSON" in page.locator("#tools-problem").inner_text()
    page.get_by_label("Tools").fill('[{"type": "function", "function": {"name": "look"}}]')
    page.get_by_role("button", name="Done").click()
    page.reload()
    ask(page, "Hi")
    assert "length" in wait_for_answer(page).locator(".figures").inner_text()
    call = page.engine.calls[-1]
    params = call["params"]
    assert (params.temperature, params.top_p, params.max_tokens, params.seed) == (0.25, 0.5, 3, 7)
    assert call["prompt"].startswith("system: Be brief.\nuser: Hi\ntools: 1\n")


def test_key_is_asked_for_and_forgotten_with_the_tab(open_page: Callable[..., Any]) -> None:
    page = open_page(expected=("401",), api_key=["secret"])
    page.get_by_text("This server needs an API key").wait_for()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("API key").fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("does not know this API key").wait_for()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("API key").fill("secret")
    page.keyboard.press("Enter")
    page.locator("#notice").wait_for(state="hidden")
    ask(page, "Hi")
    wait_for_answer(page)
    assert "secret" not in page.evaluate("JSON.stringify(localStorage)")
    assert "secret" in page.evaluate("JSON.stringify(sessionStorage)")


def test_thoughts_are_folded_and_calls_answered(open_page: Callable[..., Any]) -> None:
    page = open_page()
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":'}}
    bodies = made_up(
        page,
        delta(role="assistant", reasoning="Which "),
        delta(reasoning_content="city?"),
        delta(content="Let me look."),
        delta(tool_calls=[call]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": ' "Ulm"}'}}]),
        delta("tool_calls"),
    )
    ask(page, "Weather?")
    answer = wait_for_answer(page)
    assert not answer.locator(".thought").is_visible()
    answer.get_by_text("Thought", exact=True).click()
    assert answer.locator(".thought").inner_text() == "Which city?"
    assert '"city": "Ulm"' in answer.locator(".call pre").inner_text()
    page.get_by_label("Result of call 1, weather").fill("Sunny")
    page.get_by_role("button", name="Send results").click()
    page.locator(".message.tool").wait_for()
    wait_for_answer(page)
    *_, spoken, result = bodies[-1]["messages"]
    assert spoken["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Ulm"}'}
    assert "reasoning" not in spoken
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "Sunny"}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"status": 503, "end": '{"error": {"message": "The queue is full."}}'}, "The queue is full."),
        ({"status": 502, "end": "<html>Bad gateway</html>"}, "status 502"),
        ({"end": 'data: {"error": {"message": "The step failed.", "code": 500}}\n\n'}, "The step failed."),
        ({"end": ""}, "broke off"),
        ({"end": "data: {nonsense\n\n"}, "JSON"),
    ],
    ids=["refused", "proxy", "late", "cut", "nonsense"],
)
def test_errors_are_told_and_text_before_them_stays(
    open_page: Callable[..., Any], answer: dict[str, Any], words: str
) -> None:
    page = open_page(expected=("50",))
    made_up(page, *([delta(content="So far")] if "status" not in answer else []), **answer)
    ask(page, "Hi")
    shown = wait_for_answer(page)
    assert words in shown.locator(".error").inner_text()
    if "status" not in answer:
        assert "So far" in shown.locator(".body").inner_text()


def test_a_server_that_is_gone_is_told(open_page: Callable[..., Any]) -> None:
    page = open_page(expected=("ERR_FAILED",))
    page.route("**/v1/chat/completions", lambda route: route.abort())
    ask(page, "Hi")
    assert "does not answer" in wait_for_answer(page).locator(".error").inner_text()


def test_live_view_shows_the_engines_figures(open_page: Callable[..., Any]) -> None:
    engine = FakeEngine()
    engine.info.decode_limit, engine.info.device = 100.0, "a small device"
    engine.info.decisions = [{"name": "block_size", "value": "16", "reason": "as set"}]
    page = open_page(engine)
    engine.metrics.record_stats(EngineStats(num_running=3, num_waiting=12, cache_usage=0.25, num_steps=1))
    page.get_by_role("button", name="Live").click()

    def card(name: str) -> Any:
        return page.get_by_label(name, exact=True)

    card("Requests waiting").get_by_text("12").wait_for()
    assert "3" in card("Requests running").inner_text()
    assert "25 %" in card("Cache in use").inner_text()
    engine.metrics.record_stats(EngineStats(num_running=3, generation_tokens=5000, num_steps=2))
    for _ in range(10):
        engine.metrics.record_first_token(0.05)
        engine.metrics.record_next_token(0.02)
    card("Time between tokens").get_by_text("20.0 ms", exact=True).wait_for()
    assert "50.0 ms" in card("Time to first token").inner_text()
    assert "50 %" in card("Share of the memory's limit").inner_text()
    assert float(card("Tokens a second").locator(".value").inner_text().replace(",", "")) > 500
    assert card("Tokens a second").locator("polyline").count() == 1
    assert "a small device" in page.locator("#server").inner_text()
    engine.is_healthy = False
    page.get_by_text("The engine is down").wait_for()


@pytest.mark.parametrize("width", [320, 700, 1600])
def test_page_fits_its_window(open_page: Callable[..., Any], width: int) -> None:
    page = open_page(
        FakeEngine("x" * 300 + "\n\n```\n" + "y" * 300 + "\n```\n"), viewport={"width": width, "height": 600}
    )
    ask(page, "z" * 300)
    wait_for_answer(page)
    for view in ("Chat", "Live"):
        page.get_by_role("button", name=view, exact=True).click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("button", name="Chat", exact=True).click()
    assert page.locator("#prompt").is_visible()
    box = page.locator("#send").bounding_box()
    assert box["x"] + box["width"] <= width and box["y"] + box["height"] <= 600


def test_keyboard_reaches_everything_and_all_has_a_name(open_page: Callable[..., Any]) -> None:
    page = open_page(FakeEngine("fine"))
    ask(page, "Hi")
    wait_for_answer(page)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, textarea")]
            .filter((node) => !node.textContent.trim() && !node.getAttribute("aria-label") && !node.labels?.length)
            .map((node) => node.outerHTML)"""
    )
    assert nameless == []
    reached = set()
    for _ in range(25):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert {
        "open-settings",
        "theme",
        "model",
        "new-chat",
        "messages",
        "prompt",
        "Copy",
        "Edit",
        "Regenerate",
    } <= reached
    page.keyboard.press("Alt+n")
    assert page.locator(".message").count() == 0
    assert page.evaluate("document.activeElement.id") == "prompt"


def test_theme_is_kept(open_page: Callable[..., Any]) -> None:
    page = open_page()
    theme = page.get_by_role("button", name="Theme")
    grounds = set()
    for _ in range(3):
        theme.click()
        grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2
    theme.click()
    before = page.evaluate("document.documentElement.dataset.theme")
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == before


MARK = st.sampled_from(
    ["*", "**", "_", "~~", "`", "```", "\n", "\n\n", "- ", "  ", "1. ", "> ", "# ", "|", "|-|-|", "[", "](", ")", "!["]
)
WORD = st.sampled_from(
    ["a", "b c", "javascript:alert(1)", "https://x.example/", "<img src=x onerror=alert(1)>", "\\", "&lt;"]
)
TAG_NAMES = (
    "A BLOCKQUOTE BR BUTTON CODE DEL DIV EM H3 H4 H5 H6 HR LI OL P PRE SPAN STRONG TABLE TBODY TD TH THEAD TR UL"
)


def test_markdown_stays_harmless_and_does_not_depend_on_pieces(open_page: Callable[..., Any]) -> None:
    cases: list[tuple[str, list[int]]] = []

    @settings(max_examples=200, deadline=None)
    @given(st.lists(MARK | WORD, max_size=25).map("".join), st.lists(st.integers(0, 60), max_size=4))
    def collect(text: str, cuts: list[int]) -> None:
        cases.append((text, sorted(cuts)))

    collect()
    page = open_page()
    results = page.evaluate(
        """async (cases) => {
            const { renderMarkdown } = await import("/console/markdown.js");
            return cases.map(([text, cuts]) => {
                const whole = document.createElement("div");
                const pieces = document.createElement("div");
                renderMarkdown(whole, text);
                for (const cut of [...cuts, text.length]) renderMarkdown(pieces, text.slice(0, cut));
                return {
                    tags: [...whole.querySelectorAll("*")].map((node) => node.tagName),
                    links: [...whole.querySelectorAll("a")].map((node) => node.href),
                    isSame: whole.innerHTML === pieces.innerHTML,
                };
            });
        }""",
        cases,
    )
    for (text, cuts), result in zip(cases, results, strict=True):
        assert result["isSame"], (text, cuts)
        assert set(result["tags"]) <= set(TAG_NAMES.split()), text
        assert all(link.startswith("https://x.example/") for link in result["links"]), text


HOSTILE = [
    *("[" * 50_000, "*a " * 30_000, "x" + "`" * 50_000, "> " * 20_000, "- " * 20_000, "|" * 50_000, "_a" * 30_000),
    *("*" * 40_000 + "a", "![](" * 12_000, "https://" * 6_000, "(((" * 20_000, "#" * 50_000, "**a *b " * 8_000),
]


def test_text_made_to_be_slow_is_shown_all_the_same(open_page: Callable[..., Any]) -> None:
    page = open_page()
    made_up(page, delta(content="\n\n".join(HOSTILE)), delta("stop", content="\n\nend of it"))
    ask(page, "Hi")
    # Work that grew with the square of the length would outlast the driver's patience here.
    assert wait_for_answer(page).locator("p").last.inner_text() == "end of it"
