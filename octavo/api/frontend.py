"""What the routers share: the engine, the settings, the model's names."""

import asyncio
import dataclasses
import hashlib
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from fastapi import APIRouter, Request
from msgspec import UNSET, UnsetType
from starlette.types import Send

from octavo import __version__
from octavo.api.chat.formats import AnswerFormats
from octavo.api.drain import Drain
from octavo.api.engine import ServingEngine
from octavo.api.errors import HttpError
from octavo.api.json_body import json_route
from octavo.api.middleware import REQUEST_ID, RequestId, clean_request_id
from octavo.api.watched import DONE, error_event, send_events
from octavo.config import ServerSettings
from octavo.errors import ChatTemplateError, InvalidRequestError
from octavo.records.caller import CALLER
from octavo.tokenization.tokenizer import Tokenizer

# Below this many characters, tokenising is quicker than handing it to a thread.
SHORT_TEXT = 2000


@dataclass(frozen=True, slots=True)
class Frontend:
    """One server's engine and settings."""

    engine: ServingEngine
    settings: ServerSettings
    drain: Drain
    _formats: list[AnswerFormats] = field(default_factory=list)

    def formats(self) -> AnswerFormats:
        """How the model marks reasoning and tool calls; available once the tokenizer is loaded."""
        if not self._formats:
            renderer = self.engine.chat_renderer
            takes_tools = True
            if renderer is not None:
                with suppress(ChatTemplateError):  # without a template there are no chats
                    takes_tools = renderer.takes_tools
            formats = AnswerFormats.choose(
                self.engine.model_settings, self.settings, self.engine.tokenizer, takes_tools
            )
            self._formats.append(formats)
        return self._formats[0]

    @property
    def model_names(self) -> list[str]:
        """The names that requests may use; answers show the first."""
        return self.settings.served_model_name or [self.engine.model_name]

    @property
    def fingerprint(self) -> str | UnsetType:
        """Names the software and the model's settings: texts of equal seeds are comparable where it is the same."""
        mode = self.settings.fingerprint_mode
        if mode in ("custom", "none"):
            return self.settings.fingerprint_value if mode == "custom" and self.settings.fingerprint_value else UNSET
        info = self.engine.info
        parts = (__version__, self.engine.model_name, info.max_model_len, info.vocab_size, info.device)
        return f"fp_{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"

    def json_router(self, tag: str, prefix: str = "") -> APIRouter:
        """A router whose routes take JSON bodies within the server's limit."""
        route_class = json_route(self.settings.max_request_bytes)
        return APIRouter(prefix=prefix, tags=[tag], route_class=route_class)

    async def send_events(
        self,
        send: Send,
        events: AsyncGenerator[bytes, None],
        *,
        done: bytes = DONE,
        describe: Callable[[Exception], bytes] = error_event,
    ) -> None:
        """Send server-sent events as the server's settings say; see :func:`~octavo.api.watched.send_events`."""
        interval = self.settings.sse_keep_alive_interval
        await send_events(send, events, self.drain, done=done, describe=describe, keep_alive_interval=interval)

    def check_model(self, name: str | None) -> str:
        """The name to show in the answer.

        Raises:
            HttpError: 404, the model is not served.
        """
        if name is not None and name not in self.model_names and not self.settings.skip_model_name_validation:
            known = ", ".join(self.model_names)
            raise HttpError(404, f"The model {name!r} does not exist; this server has {known}.", "model")
        return name or self.model_names[0]

    def need_tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        if self.engine.tokenizer is None:
            raise InvalidRequestError("The server runs without a tokenizer; send token ids.")
        return self.engine.tokenizer

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; a long one does not hold up other requests."""
        tokenizer = self.need_tokenizer()
        if len(text) < SHORT_TEXT:
            return tokenizer.encode(text, add_special_tokens)
        return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens)

    def text_of(self, token_ids: list[int]) -> str:
        """Text of token ids, special ones included."""
        tokenizer = self.need_tokenizer()
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self.engine.info.vocab_size:
            raise InvalidRequestError(f"Token ids must be between 0 and {self.engine.info.vocab_size - 1}.", "tokens")
        return tokenizer.decode(token_ids, skip_special_tokens=False)


def answer_id(prefix: str, request: Request, body_id: str | None) -> str:
    """The answer's id: what the client calls its request, by header or body, else something new.

    The answer's ``x-request-id`` and the log lines of the request name the same.
    """
    name: RequestId | None = request.scope.get(REQUEST_ID)
    header = None if name is not None and not name.is_given else request.headers.get("x-request-id")
    given = clean_request_id(header) or clean_request_id(body_id)
    if name is not None and given is not None and given != name.text:
        name.text = given
        CALLER.set(dataclasses.replace(CALLER.get(), request_id=given))
    return f"{prefix}-{given or (name.text if name is not None else uuid.uuid4().hex)}"


def engine_id(answer: str, index: int) -> str:
    """An id for the engine, unique even if clients repeat theirs."""
    return f"{answer}-{index}-{uuid.uuid4().hex[:8]}"
