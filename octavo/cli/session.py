"""A conversation and the commands that steer it."""

import difflib
import json
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from octavo.cli.backend import Message, Sampling
from octavo.cli.choose import PARAMETERS, set_parameter
from octavo.errors import ConfigError

MAX_TOKENS = 512
"""Tokens of an answer unless the user sets another limit: a small model may never stop."""


class SessionAction(Enum):
    """What the program does after a command."""

    NOTHING = 0
    ANSWER = 1
    QUIT = 2


class ChatSession:
    """The conversation so far, its system prompt and sampling parameters.

    Args:
        system: the system prompt, empty for none.
    """

    def __init__(self, system: str = "", sampling: Sampling | None = None) -> None:
        self.system = system
        self.sampling: Sampling = dict(sampling or {})
        self.turns: list[Message] = []
        self._commands: dict[str, tuple[Callable[[str], tuple[str, SessionAction]], str]] = {
            "clear": (self._clear, "forget the conversation"),
            "system": (self._system, "TEXT: change the system prompt; without text, show it"),
            "retry": (self._retry, "have the last message answered again"),
            "undo": (self._undo, "take the last message and its answer back"),
            "set": (self._set, f"NAME VALUE: change {', '.join(PARAMETERS)}; without a name, show them"),
            "save": (self._save, "FILE: write the conversation as JSON"),
            "help": (self._help, "show this"),
            "quit": (self._quit, "end the program, as Ctrl-D does"),
            "exit": (self._quit, "the same"),
        }

    @property
    def messages(self) -> list[Message]:
        """The conversation as a model takes it."""
        return ([{"role": "system", "content": self.system}] if self.system else []) + self.turns

    @property
    def request_sampling(self) -> Sampling:
        """Parameters of the next request: what the user set, and the limit that applies otherwise."""
        return {"max_tokens": MAX_TOKENS, **self.sampling}

    def ask(self, text: str) -> None:
        """Add a message of the user."""
        self.turns.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        """Add the model's answer."""
        self.turns.append({"role": "assistant", "content": text})

    def take_back_question(self) -> None:
        """Forget a message that got no answer."""
        if self.turns and self.turns[-1]["role"] == "user":
            self.turns.pop()

    @staticmethod
    def is_command(line: str) -> bool:
        """Whether a line is a command: one line that begins with a slash and a word."""
        word = line.split(maxsplit=1)[0] if line.strip() else ""
        return word.startswith("/") and word[1:].isalpha() and "\n" not in line

    def command(self, line: str) -> tuple[str, SessionAction]:
        """Run a command; returns the message for the user and the next action."""
        name, _, rest = line.strip()[1:].partition(" ")
        if name not in self._commands:
            near = difflib.get_close_matches(name, self._commands, 1)
            hint = f"Did you mean /{near[0]}?" if near else "/help lists what there is."
            raise ConfigError(f"There is no command /{name}. {hint}")
        return self._commands[name][0](rest.strip())

    def _clear(self, _: str) -> tuple[str, SessionAction]:
        self.turns.clear()
        return "The conversation is forgotten.", SessionAction.NOTHING

    def _system(self, text: str) -> tuple[str, SessionAction]:
        if not text:
            return self.system or "There is no system prompt.", SessionAction.NOTHING
        self.system = text
        return "The system prompt is changed.", SessionAction.NOTHING

    def _retry(self, _: str) -> tuple[str, SessionAction]:
        if not self.turns:
            raise ConfigError("There is nothing to answer again.")
        if self.turns[-1]["role"] == "assistant":
            self.turns.pop()
        return "", SessionAction.ANSWER

    def _undo(self, _: str) -> tuple[str, SessionAction]:
        if not self.turns:
            raise ConfigError("There is nothing to take back.")
        if self.turns[-1]["role"] == "assistant":
            self.turns.pop()
        self.take_back_question()
        return "The last message is taken back.", SessionAction.NOTHING

    def _set(self, text: str) -> tuple[str, SessionAction]:
        if text:
            name, _, value = text.replace("=", " ", 1).partition(" ")
            if not value.strip():
                raise ConfigError("Give a value as well: /set temperature 0.5, or /set temperature default.")
            set_parameter(self.sampling, name, value.strip())
        parameters = ", ".join(f"{name} {value}" for name, value in self.request_sampling.items())
        return f"{parameters}; the other parameters are the model's defaults.", SessionAction.NOTHING

    def _save(self, text: str) -> tuple[str, SessionAction]:
        if not text:
            raise ConfigError("Name a file: /save conversation.json.")
        path = Path(text).expanduser()
        try:
            path.write_text(json.dumps(self.messages, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"Cannot write {path}: {error.strerror}.") from None
        return f"Saved {len(self.messages)} messages in {path}.", SessionAction.NOTHING

    def _help(self, _: str) -> tuple[str, SessionAction]:
        lines = [f"/{name:<7} {description}" for name, (_, description) in self._commands.items()]
        lines += ["Alt-Enter begins a new line; Ctrl-C ends an answer; Ctrl-D ends the program."]
        return "\n".join(lines), SessionAction.NOTHING

    def _quit(self, _: str) -> tuple[str, SessionAction]:
        return "", SessionAction.QUIT
