"""Chat and complete against a server: piped, quick, and at a terminal with Ctrl-C."""

import io
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Generator

import pytest
from fake_openai import FakeServer

from octavo.cli.main import main

# A terminal of our own: what is typed as Ctrl-C must arrive as a signal, as it does for a person.
_TAKE_TERMINAL = (
    "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "from octavo.cli.main import main; sys.exit(main(sys.argv[1:]))"
)
_PATIENCE = 120.0


class Terminal:
    """A person at a terminal in which a command runs."""

    def __init__(self, *arguments: str) -> None:
        self._side, theirs = pty.openpty()
        environment = {**os.environ, "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env=environment,
        )
        os.close(theirs)
        self.seen = ""

    def type(self, keys: str) -> None:
        os.write(self._side, keys.encode())

    def wait_for(self, text: str) -> str:
        """Read until ``text`` shows; returns what came up to there and forgets it."""
        deadline = time.monotonic() + _PATIENCE
        while text not in self.seen:
            ready, _, _ = select.select([self._side], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not show; this did: {self.seen!r}"
            self.seen += os.read(self._side, 1 << 16).decode(errors="replace")
        before, _, self.seen = self.seen.partition(text)
        return before

    def wait_for_prompt(self) -> None:
        """Read until the line editor is ready, which it tells by asking for pasted text in brackets."""
        self.wait_for("\x1b[?2004h")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._side)


@pytest.fixture
def chat(openai_server: FakeServer) -> Generator[Terminal, None, None]:
    terminal = Terminal("chat", "--url", openai_server.url + "/v1", "--temperature", "0.5")
    terminal.wait_for("fake-model, ready")
    terminal.wait_for_prompt()
    yield terminal
    terminal.close()


def test_a_conversation_at_a_terminal(chat: Terminal, openai_server: FakeServer) -> None:
    chat.type("hi\r")
    chat.wait_for("Hello there!")
    chat.wait_for("3 tokens")
    chat.wait_for_prompt()
    chat.type("/set temperature 0.1\r")
    chat.wait_for("max_tokens 512, temperature 0.1")
    chat.wait_for_prompt()
    chat.type("/nonsense\r")
    chat.wait_for("There is no command")
    chat.wait_for_prompt()
    chat.type("again\r")
    chat.wait_for("3 tokens")
    chat.wait_for_prompt()
    chat.type("\x04")
    assert chat.process.wait(_PATIENCE) == 0
    first, second = openai_server.requests
    assert (first["temperature"], second["temperature"]) == (0.5, 0.1)
    assert first["max_tokens"] == second["max_tokens"] == 512
    assert first["messages"] == [{"role": "user", "content": "hi"}]
    assert [message["content"] for message in second["messages"]] == ["hi", "Hello there!", "again"]


def test_ctrl_c_ends_the_answer_and_not_the_program(chat: Terminal, openai_server: FakeServer) -> None:
    openai_server.is_endless = True
    chat.type("talk\r")
    chat.wait_for("Hello there!Hello")
    chat.type("\x03")
    chat.wait_for("interrupted")
    assert openai_server.hung_up.wait(_PATIENCE), "the server was left generating"
    openai_server.is_endless = False
    chat.wait_for_prompt()
    chat.type("half a line\x03")
    chat.wait_for("Ctrl-D or /quit")
    chat.wait_for_prompt()
    chat.type("short\r")
    chat.wait_for("3 tokens")
    chat.wait_for_prompt()
    chat.type("/quit\r")
    assert chat.process.wait(_PATIENCE) == 0
    contents = [message["content"] for message in openai_server.requests[-1]["messages"]]
    assert contents[0] == "talk"
    assert contents[1].startswith("Hello there!Hello")
    assert contents[2] == "short"


def test_a_refused_message_is_forgotten_and_the_program_goes_on(chat: Terminal, openai_server: FakeServer) -> None:
    openai_server.error = (400, "The prompt is too long.")
    chat.type("long\r")
    chat.wait_for("The prompt is too long.")
    chat.wait_for_prompt()
    openai_server.error = None
    chat.type("short\r")
    chat.wait_for("Hello there!")
    assert [message["content"] for message in openai_server.requests[-1]["messages"]] == ["short"]


def test_pasted_lines_stay_together(chat: Terminal, openai_server: FakeServer) -> None:
    chat.type("\x1b[200~one\ntwo\x1b[201~")
    chat.type("\x1b\rthree\r")
    chat.wait_for("Hello there!")
    assert openai_server.requests[0]["messages"][0]["content"] == "one\ntwo\nthree"


def test_quick_answers_once(openai_server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    url = openai_server.url + "/v1"
    arguments = ["--system-prompt", "Be brief.", "--max-tokens", "5", "--seed", "3", "--api-key", "key", "--stats"]
    assert main(["chat", "--url", url, "-q", "/help me", *arguments]) == 0
    output = capsys.readouterr()
    assert output.out == "Hello there!\n"
    assert "3 tokens" in output.err
    (request,) = openai_server.requests
    assert [message["content"] for message in request["messages"]] == ["Be brief.", "/help me"]
    assert (request["max_tokens"], request["seed"], request["model"]) == (5, 3, "fake-model")
    assert openai_server.headers[0]["Authorization"] == "Bearer key"


def test_piped_text_is_one_question(
    openai_server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\n"))
    assert main(["chat", "--url", openai_server.url + "/v1", "--model-name", "other"]) == 0
    assert capsys.readouterr() == ("Hello there!\n", "")
    assert openai_server.requests[0]["messages"][-1]["content"] == "one\ntwo\n"
    assert openai_server.requests[0]["model"] == "other"


def test_slash_exit_ends_the_program(chat: Terminal) -> None:
    chat.type("/exit\r")
    assert chat.process.wait(_PATIENCE) == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--max-tokens", "3"], "cut at max_tokens (3); --max-tokens sets the limit"),
        ([], "cut at the length limit of the model's context"),
    ],
)
def test_an_answer_that_was_cut_says_so(
    openai_server: FakeServer, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    openai_server.finish_reason = "length"
    assert main(["chat", "--url", openai_server.url + "/v1", "-q", "hi", *flags]) == 0
    assert words in capsys.readouterr().err


def test_complete_sends_the_text_itself(openai_server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["complete", "--url", openai_server.url + "/v1", "-q", "Once upon", "--top-p", "0.5"]) == 0
    assert capsys.readouterr().out == "Hello there!\n"
    (request,) = openai_server.requests
    assert (request["prompt"], request["top_p"], request["max_tokens"]) == ("Once upon", 0.5, 128)


def test_failures_are_told_in_a_line(openai_server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    openai_server.error = (401, "The key is wrong.")
    assert main(["chat", "--url", openai_server.url + "/v1", "-q", "hi"]) == 1
    assert "status 401: The key is wrong." in capsys.readouterr().err
    assert main(["chat", "--url", "http://127.0.0.1:9/v1", "-q", "hi"]) == 1
    assert "No server answers at http://127.0.0.1:9/v1" in capsys.readouterr().err
    assert main(["chat", "--url", "nonsense", "-q", "hi"]) == 1
    assert main(["chat", "--url", openai_server.url, "-q", "  "]) == 2
