"""The model interface of ``chat`` and ``complete``."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Protocol

Message = dict[str, str]
Sampling = dict[str, Any]
"""Sampling parameters by name."""


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """A part of an answer as it comes.

    Attributes:
        num_tokens: tokens of the answer so far.
        finish_reason: with the last piece that has text.
    """

    text: str
    num_tokens: int
    finish_reason: str | None = None


class ChatBackend(Protocol):
    """A model that streams answers. Closing a generator ends its request; a request that fails raises OctavoError."""

    @property
    def model_name(self) -> str:
        """The model's name, once started."""

    async def start(self) -> None:
        """Load the model or find the server.

        Raises:
            OctavoError: there is none.
        """

    def chat(self, messages: list[Message], sampling: Sampling) -> AsyncGenerator[AnswerPiece, None]:
        """Continue a conversation."""

    def complete(self, prompt: str, sampling: Sampling) -> AsyncGenerator[AnswerPiece, None]:
        """Continue a text."""

    async def close(self) -> None:
        """Give everything back."""
