"""Reading what the user types, with a line editor and history."""

import os
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent


class TerminalReader:
    """A line editor. Enter sends, Alt-Enter begins a new line, pasted lines stay together.

    Args:
        history_name: file with earlier entries, within the user's state folder.
    """

    def __init__(self, history_name: str) -> None:
        self._session: PromptSession[str] = PromptSession(
            history=_open_history(history_name), key_bindings=_key_bindings(), multiline=True
        )

    async def read(self) -> str:
        """What the user typed."""
        return await self._session.prompt_async("> ", prompt_continuation="  ")


def _key_bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    @bindings.add("escape", "c-j")
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


def _open_history(name: str) -> History:
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "octavo"
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
