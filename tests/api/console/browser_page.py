"""What tests do on the console's page."""

import json
import time
from collections.abc import Callable
from typing import Any


def ask(page: Any, text: str) -> None:
    """Write and send a message, by keyboard."""
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def wait_for_answer(page: Any) -> Any:
    """The last answer, once it is complete."""
    answer = page.locator(".message").last
    answer.get_by_role("button", name="Regenerate").wait_for()
    return answer


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until something holds on the server's side."""
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def answer_with(page: Any, *chunks: Any, end: str = "data: [DONE]\n\n", status: int = 200) -> list[Any]:
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
    """A chunk of a stream."""
    return {"choices": [{"index": 0, "delta": parts, "finish_reason": reason}]}


def render(page: Any, text: str) -> Any:
    """An element of the page that shows a text as an answer's."""
    page.evaluate(
        """async (text) => {
            const { renderMarkdown } = await import("/console/markdown.js");
            const node = document.createElement("div");
            node.id = "rendered";
            node.className = "prose";
            document.getElementById("rendered")?.remove();
            document.getElementById("messages").append(node);
            renderMarkdown(node, text);
        }""",
        text,
    )
    return page.locator("#rendered")
