"""Conversations in the list: kept, found, renamed, saved as files, read from files, deleted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser_page import answer_with, ask, delta, wait_for_answer, wait_until
from fake_engine import FakeEngine

OpenPage = Callable[..., Any]


def titles(page: Any) -> list[str]:
    """The list as it is shown."""
    found: list[str] = page.locator("#conversations .title").all_inner_texts()
    return found


def choose(page: Any, title: str, action: str) -> None:
    """Take an action from a conversation's menu."""
    page.get_by_role("button", name=f"More for {title}").click()
    page.get_by_role("button", name=action).click()


def save(page: Any, click: Callable[[], None], folder: Path) -> str:
    """The file that a click lets the user save."""
    with page.expect_download() as waiting:
        click()
    target = folder / waiting.value.suggested_filename
    waiting.value.save_as(target)
    return target.read_text()


def read_file(page: Any, text: str) -> None:
    """Import a file of this text."""
    page.locator("#import-file").set_input_files(
        {"name": "given.json", "mimeType": "application/json", "buffer": text.encode()}
    )


def test_a_conversation_is_in_the_list_from_its_start(open_page: OpenPage) -> None:
    engine = FakeEngine("word " * 200, step_seconds=0.02)
    page = open_page(engine)
    ask(page, "Go on")
    page.locator(".message.assistant", has_text="word word").wait_for()
    assert titles(page) == ["Go on"]
    # A reload in the middle of an answer keeps what came, and the server ends the request.
    page.reload()
    answer = wait_for_answer(page)
    assert "word word" in answer.locator(".body").inner_text()
    figures = answer.locator(".figures").inner_text()
    assert "interrupted" in figures and "tokens/s" in figures
    assert titles(page) == ["Go on"]
    wait_until(lambda: engine.num_aborted == 1)
    assert answer.get_by_role("button", name="Continue").is_visible()


def test_a_conversation_that_is_deleted_while_it_is_answered_stays_away(open_page: OpenPage) -> None:
    engine = FakeEngine("word " * 200, step_seconds=0.02)
    page = open_page(engine)
    ask(page, "Go on")
    page.locator(".message.assistant", has_text="word").wait_for()
    choose(page, "Go on", "Delete")
    wait_until(lambda: engine.num_aborted == 1)
    page.reload()
    assert titles(page) == []


def test_renamed_searched_and_deleted(open_page: OpenPage) -> None:
    page = open_page(FakeEngine("fine"))
    for text in ("apples", "pears"):
        page.get_by_role("button", name="New chat").click()
        ask(page, text)
        wait_for_answer(page)
    choose(page, "apples", "Rename")
    page.get_by_label("Name of the conversation").fill("Fruit <i>")
    page.keyboard.press("Enter")
    choose(page, "pears", "Rename")
    page.get_by_label("Name of the conversation").fill("never")
    page.keyboard.press("Escape")
    assert sorted(titles(page)) == ["Fruit <i>", "pears"]
    # The open one keeps its name when it goes on.
    choose(page, "pears", "Rename")
    page.get_by_label("Name of the conversation").fill("Juice")
    page.keyboard.press("Enter")
    ask(page, "more")
    wait_for_answer(page)
    page.reload()
    assert titles(page) == ["Juice", "Fruit <i>"]
    search = page.get_by_label("Search conversations")
    for words, found in (("juice", ["Juice"]), ("APPLES fine", ["Fruit <i>"]), ("pears apples", []), ("", 2)):
        search.fill(words)
        assert titles(page) == found or len(titles(page)) == found
        assert page.locator("#no-conversations").is_visible() == (not titles(page))
    choose(page, "Juice", "Delete")
    assert titles(page) == ["Fruit <i>"]
    assert page.locator(".message").count() == 0


def test_exported_and_imported(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page()
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
    answer_with(page, delta(reasoning="Hm."), delta(content="*So*", tool_calls=[call]), delta("tool_calls"))
    ask(page, "Grüße?")
    wait_for_answer(page)
    text = save(page, lambda: choose(page, "Grüße?", "Export as Markdown"), tmp_path)
    for part in ("# Grüße?", "## You\n\nGrüße?", "## Assistant", "> Hm.", "*So*", '{"x": 1}'):
        assert part in text
    text = save(page, lambda: choose(page, "Grüße?", "Export as JSON"), tmp_path)
    assert save(page, page.get_by_role("button", name="Export all").click, tmp_path) == text
    shown = page.locator("#messages").inner_text()
    choose(page, "Grüße?", "Delete")
    read_file(page, text)
    page.locator(".message.assistant").wait_for()
    assert titles(page) == ["Grüße?"]
    # A second import is another conversation, and figures of the run are not part of the file's meaning.
    read_file(page, text)
    page.wait_for_function("document.querySelectorAll('#conversations li').length === 2")
    assert page.locator(".message.assistant em").inner_text() == "So"
    assert page.get_by_label("Result of tool call 1, look").is_visible()
    assert shown.split("Copy")[0] == page.locator("#messages").inner_text().split("Copy")[0]


def test_a_list_of_messages_is_imported(open_page: OpenPage) -> None:
    page = open_page()
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "Hi"}]
    read_file(page, json.dumps([*messages, {"role": "assistant", "content": "Hello"}]))
    page.locator(".message.assistant", has_text="Hello").wait_for()
    assert page.locator(".message").count() == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("7", "holds no conversations"),
        ('{"format": "octavo-conversations", "conversations": [{}]}', "no list of messages"),
        ('[{"role": "root", "content": "x"}]', "neither the user"),
        ('[{"role": "__proto__", "content": "x"}]', "neither the user"),
        ('[{"role": "user", "content": {"a": 1}}]', "has no text"),
        ("[null]", "neither the user"),
    ],
)
def test_files_that_make_no_sense_are_explained(open_page: OpenPage, text: str, words: str) -> None:
    page = open_page()
    read_file(page, text)
    page.locator("#progress", has_text=words).wait_for(state="attached")
    assert titles(page) == []


def test_hostile_files_do_nothing(open_page: OpenPage) -> None:
    page = open_page()
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    attack = "<img src=x onerror=alert(1)>[a](javascript:alert(1))"
    call = {"id": attack, "function": {"name": attack, "arguments": attack, "more": attack}, "__proto__": {"x": 1}}
    messages = [
        {"role": "user", "content": attack, "onclick": attack},
        {"role": "assistant", "content": attack, "reasoning": attack, "error": attack, "tool_calls": [call, None, 7]},
        {"role": "tool", "content": attack, "tool_call_id": {"a": 1}},
    ]
    value = {"id": "../x", "name": attack, "title": attack, "messages": messages, "__proto__": {"isAdmin": True}}
    read_file(page, json.dumps({"format": "octavo-conversations", "conversations": [value]}))
    page.locator(".message.tool").wait_for()
    assert page.locator("#view-chat :is(img, a)").count() == 0
    assert titles(page) == [attack]
    kept = json.loads(page.evaluate("JSON.stringify({...localStorage})"))
    (conversation,) = (json.loads(text) for key, text in kept.items() if key.startswith("octavo.chat."))
    assert set(conversation) == {"id", "name", "updated", "messages"} and conversation["id"] != "../x"
    assert set(conversation["messages"][0]) == {"role", "content"}
    assert "error" not in conversation["messages"][1]


def test_conversations_open_over_the_talk_on_a_phone(open_page: OpenPage) -> None:
    page = open_page(FakeEngine("fine"), context={"viewport": {"width": 390, "height": 700}})
    ask(page, "Hi")
    wait_for_answer(page)
    panel = page.locator("#conversations-panel")
    assert not panel.is_visible()
    page.get_by_role("button", name="Conversations").click()
    assert panel.is_visible()
    page.keyboard.press("Escape")
    assert not panel.is_visible()
    page.get_by_role("button", name="Conversations").click()
    page.get_by_role("button", name="New chat").click()
    assert not panel.is_visible()
    assert page.locator("#show-conversations").get_attribute("aria-expanded") == "false"
