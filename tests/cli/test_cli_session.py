import json
from pathlib import Path

import pytest

from octavo.cli.session import ChatSession, SessionAction
from octavo.errors import ConfigError


def talked() -> ChatSession:
    session = ChatSession("Be brief.", {"temperature": 0.5})
    session.ask("one?")
    session.answer("1")
    session.ask("two?")
    session.answer("2")
    return session


def contents(session: ChatSession) -> list[str]:
    return [message["content"] for message in session.messages]


def test_messages_begin_with_the_system_prompt() -> None:
    assert talked().messages[0] == {"role": "system", "content": "Be brief."}
    assert ChatSession().messages == []


def test_clear_and_system() -> None:
    session = talked()
    assert session.command("/clear")[1] is SessionAction.NOTHING
    assert contents(session) == ["Be brief."]
    session.command("/system Be long.")
    assert contents(session) == ["Be long."]
    assert session.command("/system")[0] == "Be long."


def test_retry_asks_the_last_question_again() -> None:
    session = talked()
    assert session.command("/retry")[1] is SessionAction.ANSWER
    assert contents(session) == ["Be brief.", "one?", "1", "two?"]
    assert session.command("/retry")[1] is SessionAction.ANSWER
    assert contents(session)[-1] == "two?"


def test_undo_takes_a_question_and_its_answer_back() -> None:
    session = talked()
    session.command("/undo")
    assert contents(session) == ["Be brief.", "one?", "1"]
    session.command("/undo")
    with pytest.raises(ConfigError):
        session.command("/undo")


def test_set_changes_parameters() -> None:
    session = talked()
    assert "temperature 0.9" in session.command("/set temperature 0.9")[0]
    session.command("/set max-tokens=1k")
    assert session.sampling == {"temperature": 0.9, "max_tokens": 1000}
    session.command("/set temperature default")
    assert session.sampling == {"max_tokens": 1000}


@pytest.mark.parametrize(
    "line", ["/set", "/set temperature", "/set warmth 3", "/set temperature hot", "/sett", "/save"]
)
def test_wrong_commands_change_nothing(line: str) -> None:
    session = ChatSession()
    if line == "/set":
        assert session.command(line)[0]
    else:
        with pytest.raises(ConfigError):
            session.command(line)
    assert session.sampling == {}


def test_save_writes_the_messages(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    assert "5 messages" in talked().command(f"/save {path}")[0]
    assert json.loads(path.read_text()) == talked().messages
    with pytest.raises(ConfigError, match="Cannot write"):
        talked().command(f"/save {tmp_path}/none/talk.json")


def test_help_names_every_command_and_quit_quits() -> None:
    text, action = ChatSession().command("/help")
    assert action is SessionAction.NOTHING
    assert all(f"/{name}" in text for name in ("clear", "system", "retry", "undo", "set", "save", "quit"))
    assert ChatSession().command("/quit")[1] is ChatSession().command("/exit")[1] is SessionAction.QUIT


def test_answers_have_a_limit_unless_the_user_sets_another() -> None:
    session = ChatSession()
    assert session.request_sampling == {"max_tokens": 512}
    session.command("/set max_tokens 7")
    assert session.request_sampling == {"max_tokens": 7}
    session.command("/set max_tokens default")
    assert session.request_sampling == {"max_tokens": 512}


@pytest.mark.parametrize(
    ("line", "is_command"),
    [("/help", True), ("/set a b", True), ("/etc/hosts is what?", False), ("/a\nb", False), ("no", False), ("", False)],
)
def test_what_is_a_command(line: str, is_command: bool) -> None:
    assert ChatSession.is_command(line) == is_command
