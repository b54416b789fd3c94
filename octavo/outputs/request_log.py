"""Logs a line when a request starts and one when it ends."""

import logging
from collections.abc import Sequence

from octavo.config import LoggingSettings
from octavo.errors import ConfigError
from octavo.records import PreparedRequest, RequestOutput, RequestOutputKind

logger = logging.getLogger(__name__)


class RequestLog:
    """Logs requests if enabled, and their texts only if that is enabled separately.

    Raises:
        ConfigError: texts are to be shown in lines that are not written.
    """

    def __init__(self, settings: LoggingSettings) -> None:
        if settings.enable_log_outputs and not settings.enable_log_requests:
            raise ConfigError("enable_log_outputs adds to the lines of enable_log_requests; set both.")
        self.is_on = settings.enable_log_requests
        self._shows_text = settings.enable_log_outputs
        self._max_len = settings.max_log_len
        self._texts: dict[str, dict[int, str]] = {}

    def begin(self, prepared: PreparedRequest) -> None:
        """Start measuring a request."""
        parts = [f"{len(prepared.prompt_token_ids)} prompt tokens", repr(prepared.params)]
        if self._shows_text:
            text: object = prepared.prompt_text
            if text is None:
                text = prepared.prompt_token_ids[: self._max_len]
            parts.append(f"prompt {self._cut(str(text))!r}")
            self._texts[prepared.request_id] = {}
        logger.info("Request %s: %s", prepared.request_id, ", ".join(parts))

    def add_output(self, output: RequestOutput, kind: RequestOutputKind) -> None:
        """Something of an answer came."""
        texts = self._texts.get(output.request_id)
        if texts is None:
            return
        for completion in output.outputs:
            before = texts.get(completion.index, "") if kind is RequestOutputKind.DELTA else ""
            if self._max_len is None or len(before) <= self._max_len:
                texts[completion.index] = before + completion.text

    def end(self, request_id: str, reasons: Sequence[str | None]) -> None:
        """A request is over.

        Args:
            reasons: finish reasons of its completions; empty if the client left.
        """
        parts = [", ".join(reason or "abort" for reason in reasons) or "abort"]
        texts = self._texts.pop(request_id, {})
        parts += [f"answer {self._cut(text)!r}" for _, text in sorted(texts.items())]
        logger.info("Request %s ended: %s", request_id, "; ".join(parts))

    def _cut(self, text: str) -> str:
        return text if self._max_len is None else text[: self._max_len]
