"""The chat in a real browser, headless, against the fake engine or answers made up here."""

from collections.abc import Callable
from typing import Any

import pytest
from browser_page import answer_with, ask, delta, wait_for_answer, wait_until
from fake_engine import FakeEngine

from octavo.inputs.processor import InputProcessor


def test_answers_are_shown_as_text_and_kept(open_page: Callable[..., Any]) -> None:
    page = open_page()
    ask(page, "<i>Hi</i>")
    answer = wait_for_answer(page)
    assert answer.locator("strong").inner_text() == "you"
    assert "<b>bold</b>" in answer.inner_text()
    assert answer.locator("pre").inner_text() == "print(1 < 2)\n"
    assert page.locator("#messages :is(i, b, script)").count() == 0
    assert page.locator(".message.user .body").inner_text() == "<i>Hi</i>"
    page.reload()
    assert page.locator(".message").count() == 2
    page.get_by_role("button", name="New chat").click()
    assert page.locator(".message").count() == 0
    page.get_by_role("button", name="<i>Hi</i>", exact=True).click()
    assert page.locator(".message").count() == 2


def test_escape_stops_an_answer_in_the_engine_too(open_page: Callable[..., Any]) -> None:
    engine = FakeEngine("word " * 200, step_seconds=0.02)
    page = open_page(engine)
    ask(page, "Go on")
    page.locator(".message.assistant", has_text="word word").wait_for()
    page.keyboard.press("Escape")
    answer = wait_for_answer(page)
    figures = answer.locator(".figures").inner_text()
    assert "stopped" in figures
    # What came until then was counted and timed.
    assert "tokens/s" in figures and "tokens," in figures
    wait_until(lambda: engine.num_aborted == 1)
    assert "word word" in answer.locator(".body").inner_text()
    ask(page, "And now?")
    page.get_by_role("button", name="Stop").click()
    wait_for_answer(page)
    # What was said before the stop is part of the conversation.
    assert "assistant: word word" in engine.calls[-1]["prompt"]


def test_an_answer_that_was_cut_goes_on(open_page: Callable[..., Any]) -> None:
    page = open_page()
    bodies = answer_with(page, delta(content="One, two,"), delta("length"))
    ask(page, "Count")
    answer = wait_for_answer(page)
    assert "cut at the length limit" in answer.locator(".figures").inner_text()
    page.unroute_all()
    bodies += answer_with(page, delta(content=" three."), delta("stop"))
    answer.get_by_role("button", name="Continue").click()
    page.get_by_text("One, two, three.", exact=True).wait_for()
    assert page.locator(".message").count() == 2
    assert wait_for_answer(page).get_by_role("button", name="Continue").count() == 0


def test_a_continuation_reaches_the_template(open_page: Callable[..., Any]) -> None:
    page = open_page(FakeEngine("abcdefgh"))
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Max tokens").fill("3")
    page.get_by_role("button", name="Done").click()
    ask(page, "Hi")
    wait_for_answer(page).get_by_role("button", name="Continue").click()
    wait_until(lambda: len(page.engine.calls) == 2)
    assert page.engine.calls[-1]["prompt"].endswith("assistant: abc")


def test_regenerate_and_edit_begin_again_from_there(open_page: Callable[..., Any]) -> None:
    page = open_page(FakeEngine("fine"))
    ask(page, "first")
    wait_for_answer(page)
    ask(page, "second")
    wait_for_answer(page)
    prompts = [call["prompt"] for call in page.engine.calls]
    page.get_by_role("button", name="Regenerate").last.click()
    wait_until(lambda: len(page.engine.calls) == 3)
    wait_for_answer(page)
    assert page.engine.calls[-1]["prompt"] == prompts[-1]
    page.get_by_role("button", name="Regenerate").first.click()
    wait_until(lambda: len(page.engine.calls) == 4)
    wait_for_answer(page)
    assert page.engine.calls[-1]["prompt"] == prompts[0]
    page.get_by_role("button", name="Edit").first.click()
    page.get_by_label("Edit the message").fill("other")
    page.keyboard.press("Enter")
    wait_until(lambda: len(page.engine.calls) == 5)
    wait_for_answer(page)
    assert page.locator(".message").count() == 2
    assert page.engine.calls[-1]["prompt"] == prompts[0].replace("first", "other")


def test_an_answer_can_be_rewritten(open_page: Callable[..., Any]) -> None:
    page = open_page(FakeEngine("fine"))
    ask(page, "first")
    wait_for_answer(page).get_by_role("button", name="Edit").click()
    page.get_by_label("Edit the message").fill("*better*")
    page.get_by_role("button", name="Save", exact=True).click()
    assert page.locator(".message.assistant em").inner_text() == "better"
    ask(page, "second")
    wait_for_answer(page)
    assert "assistant: *better*" in page.engine.calls[-1]["prompt"]


def test_settings_reach_the_request(open_page: Callable[..., Any]) -> None:
    page = open_page(FakeEngine("fine"))
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System prompt").fill("Be brief.")
    wanted = {
        "Temperature": "0.25",
        "Top p": "0.5",
        "Top k": "7",
        "Min p": "0.1",
        "Repetition penalty": "1.5",
        "Presence penalty": "0.5",
        "Frequency penalty": "-0.5",
        "Max tokens": "3",
        "Min tokens": "1",
        "Seed": "7",
        "Stop sequences": "END\nHALT",
    }
    for label, value in wanted.items():
        page.get_by_label(label).fill(value)
    page.get_by_text("Tools, structured output").click()
    page.get_by_label("Tools, as a JSON").fill("[{")
    page.get_by_label("Further request fields").fill('{"logit_bias": {"5": -1}}')
    page.get_by_role("button", name="Done").click()
    assert "not JSON" in page.locator("#tools-problem").inner_text()
    page.get_by_label("Tools, as a JSON").fill('[{"type": "function", "function": {"name": "look"}}]')
    page.get_by_role("button", name="Done").click()
    page.reload()
    ask(page, "Hi")
    assert "length" in wait_for_answer(page).locator(".figures").inner_text()
    call = page.engine.calls[-1]
    params = call["params"]
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.25, 0.5, 7, 0.1)
    penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    assert penalties == (1.5, 0.5, -0.5)
    assert (params.max_tokens, params.min_tokens, params.seed) == (3, 1, 7)
    assert params.stop == ["END", "HALT"] and params.logit_bias == {5: -1}
    assert call["prompt"].startswith("system: Be brief.\nuser: Hi\ntools: 1\n")


def test_defaults_are_shown_and_not_sent(open_page: Callable[..., Any]) -> None:
    engine = FakeEngine("fine")
    engine.input_processor = InputProcessor(
        engine.info,
        engine.tokenizer,
        eos_token_ids=[256],
        default_params={"temperature": 0.2, "top_p": 0.9},
        max_logprobs=20,
        seed=0,
    )
    page = open_page(engine)
    bodies = answer_with(page, delta("stop", content="fine"))
    page.locator("#model option").wait_for(state="attached")
    page.get_by_role("button", name="Settings").click()
    assert page.get_by_label("Temperature").get_attribute("placeholder") == "0.2"
    assert page.get_by_label("Top p").get_attribute("placeholder") == "0.9"
    assert page.get_by_label("Max tokens").get_attribute("placeholder") == "512"
    page.get_by_role("button", name="Done").click()
    ask(page, "Hi")
    wait_for_answer(page)
    assert set(bodies[0]) == {"model", "messages", "max_tokens", "stream", "stream_options"}
    assert bodies[0]["max_tokens"] == 512


def test_presets_are_kept_applied_and_deleted(open_page: Callable[..., Any]) -> None:
    page = open_page(FakeEngine("fine"))
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System prompt").fill("Be exact.")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Name", exact=True).fill("Exact")
    page.get_by_role("button", name="Save preset").click()
    page.get_by_role("button", name="Reset to defaults").click()
    page.get_by_role("button", name="Done").click()
    page.reload()
    page.get_by_role("button", name="Settings").click()
    assert page.get_by_label("System prompt").input_value() == ""
    page.get_by_label("Apply").select_option("Exact")
    assert page.get_by_label("System prompt").input_value() == "Be exact."
    page.get_by_role("button", name="Done").click()
    ask(page, "Hi")
    wait_for_answer(page)
    assert page.engine.calls[-1]["params"].temperature == 0
    assert page.engine.calls[-1]["prompt"].startswith("system: Be exact.")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Apply").select_option("Exact")
    page.get_by_role("button", name="Delete preset").click()
    assert page.get_by_label("Apply").is_disabled()


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


def test_reasoning_is_folded_and_tool_calls_answered(open_page: Callable[..., Any]) -> None:
    page = open_page()
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":'}}
    bodies = answer_with(
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
    assert not answer.locator(".reasoning .prose").is_visible()
    answer.get_by_text("Reasoning", exact=True).click()
    assert answer.locator(".reasoning .prose").inner_text() == "Which city?"
    assert '"city": "Ulm"' in answer.locator(".call pre").inner_text()
    page.get_by_label("Result of tool call 1, weather").fill("Sunny")
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
    answer_with(page, *([delta(content="So far")] if "status" not in answer else []), **answer)
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


@pytest.mark.parametrize("width", [320, 700, 1600])
def test_page_fits_its_window(open_page: Callable[..., Any], width: int) -> None:
    page = open_page(
        FakeEngine("x" * 300 + "\n\n```\n" + "y" * 300 + "\n```\n\n$$" + "z+" * 300 + "1$$"),
        context={"viewport": {"width": width, "height": 600}},
    )
    ask(page, "z" * 300)
    wait_for_answer(page)
    for view in ("Chat", "Live"):
        page.get_by_role("button", name=view, exact=True).click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("button", name="Chat", exact=True).click()
    assert page.locator("#prompt").is_visible()
    top = page.locator(".top").bounding_box()
    assert top["height"] < 60, "the bar at the top is one row"
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
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert {
        "open-settings",
        "theme",
        "model",
        "new-chat",
        "search",
        "import",
        "export-all",
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
