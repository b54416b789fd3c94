"""Answers from a server with an OpenAI-compatible API."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx

from octavo.bench.http_client import EventParser
from octavo.cli.backend import AnswerPiece, Message, Sampling
from octavo.errors import RequestFailedError

_CONNECT_SECONDS = 10.0


class RemoteBackend:
    """A model at a URL.

    Args:
        url: up to and including ``/v1``.
        model: name of the model; None takes the first that the server has.
        api_key: sent as bearer token.
    """

    def __init__(self, url: str, model: str | None = None, api_key: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._model = model
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # An answer may take any time; only finding the server may not.
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        self._client = httpx.AsyncClient(headers=headers, timeout=timeout, follow_redirects=True)

    @property
    def model_name(self) -> str:
        """The model's name on the server."""
        assert self._model is not None, "start() comes first"
        return self._model

    async def start(self) -> None:
        """Ask the server for its models.

        Raises:
            RequestFailedError: no server answers, or it refuses.
        """
        try:
            response = await self._client.get(f"{self._url}/models", timeout=_CONNECT_SECONDS)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from None
        if response.is_error:
            raise RequestFailedError(_refusal(response))
        if self._model is not None:
            return
        try:
            self._model = str(response.json()["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise RequestFailedError(f"{self._url} lists no model; give one with --model-name.") from None

    def chat(self, messages: list[Message], sampling: Sampling) -> AsyncGenerator[AnswerPiece, None]:
        """Continue a conversation."""
        return self._stream("chat/completions", {"messages": messages, **sampling})

    def complete(self, prompt: str, sampling: Sampling) -> AsyncGenerator[AnswerPiece, None]:
        """Continue a text."""
        return self._stream("completions", {"prompt": prompt, **sampling})

    async def close(self) -> None:
        """Close connections."""
        await self._client.aclose()

    async def _stream(self, route: str, body: dict[str, Any]) -> AsyncGenerator[AnswerPiece, None]:
        body = {"model": self.model_name, "stream": True, "stream_options": {"include_usage": True}, **body}
        parser = EventParser()
        num_tokens = 0
        try:
            async with self._client.stream("POST", f"{self._url}/{route}", json=body) as response:
                if response.is_error:
                    await response.aread()
                    raise RequestFailedError(_refusal(response))
                async for data in response.aiter_bytes():
                    for event in parser.feed(data):
                        if event == b"[DONE]":
                            return
                        piece = _piece(event, num_tokens)
                        num_tokens = piece.num_tokens
                        yield piece
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        raise RequestFailedError("The server ended the answer before it was complete.")

    def _unreachable(self, error: Exception) -> RequestFailedError:
        reason = str(error) or type(error).__name__
        return RequestFailedError(
            f"No server answers at {self._url} ({reason}). Start one with 'octavo serve MODEL', or name a MODEL to "
            "load it here."
        )


def _piece(event: bytes, num_tokens: int) -> AnswerPiece:
    """What an event adds; without exact figures, an event with text counts as a token."""
    try:
        content = json.loads(event)
        if "error" in content:
            raise RequestFailedError(_message(content["error"]))
        choices = content.get("choices") or [{}]
        text = choices[0].get("text") or (choices[0].get("delta") or {}).get("content") or ""
        usage = content.get("usage") or {}
        counted = usage.get("completion_tokens", num_tokens + bool(text))
        return AnswerPiece(text, counted, choices[0].get("finish_reason"))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise RequestFailedError(f"The server sent something that is not an answer: {event[:200]!r}.") from None


def _refusal(response: httpx.Response) -> str:
    try:
        content = response.json()
        message = _message(content.get("error", content))
    except (ValueError, AttributeError):
        message = response.text[:500]
    return f"The server refuses, status {response.status_code}: {message}"


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
