"""Log formats (text, JSON), access-log filters, and the periodic line of statistics."""

import asyncio
import json
import logging
import logging.config
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from octavo.errors import ConfigError
from octavo.records import EngineStats
from octavo.records.caller import CALLER

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
# ASCII control characters (line feeds among them) and the two Unicode line separators.
_ESCAPED_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {0x2028: "\\u2028", 0x2029: "\\u2029"}


class OneLineFormatter(logging.Formatter):
    """Keeps a message on one line, so that nothing a client sends can forge a log entry.

    Lines about a request begin with its id.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Fill in the format with control characters of the message escaped."""
        record.message = record.message.translate(_ESCAPED_CONTROLS)
        if request_id := CALLER.get().request_id:
            record.message = f"[{request_id}] {record.message}"
        return super().formatMessage(record)


_FIELDS = "octavo_fields"


def with_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """``extra`` for a log call that adds these fields to the JSON line; the text format does not show them."""
    return {_FIELDS: fields}


class JsonFormatter(logging.Formatter):
    """One JSON object per line, with the request id if the line is about a request."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            **record.__dict__.get(_FIELDS, {}),
        }
        if request_id := CALLER.get().request_id:
            fields["request_id"] = request_id
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=True)


def configure_logging(level: str = "info", log_format: str = "text", config_file: str | None = None) -> None:
    """Log to standard error, one line per event; may be called again with other arguments.

    Octavo's loggers and uvicorn's access log use ``level``, all others warnings. If the variable
    ``VLLM_CONFIGURE_LOGGING`` is 0, nothing is changed. If ``VLLM_LOGGING_CONFIG_PATH`` names a JSON file with a
    dictionary for :func:`logging.config.dictConfig`, that is used instead. The prefix ``OCTAVO_`` works as well as
    ``VLLM_``.

    Args:
        log_format: ``text`` or ``json``.
        config_file: a file of the same kind; takes precedence over the variable's.
    """
    if _variable("CONFIGURE_LOGGING").lower() in ("0", "false"):
        return
    if path := config_file or _variable("LOGGING_CONFIG_PATH"):
        _configure_from_file(path)
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if log_format == "json" else OneLineFormatter(FORMAT, datefmt="%Y-%m-%d %H:%M:%S")
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        if isinstance(old.formatter, OneLineFormatter | JsonFormatter):
            root.removeHandler(old)
    root.addHandler(handler)
    for name in ("octavo", "uvicorn.access", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(level.upper())
    # Octavo logs start and stop itself.
    server = logging.getLogger("uvicorn.error")
    server.setLevel(max(server.level, logging.WARNING))


def _variable(name: str) -> str:
    return os.environ.get(f"OCTAVO_{name}") or os.environ.get(f"VLLM_{name}") or ""


def _configure_from_file(path: str) -> None:
    try:
        with open(path, encoding="utf-8") as file:
            logging.config.dictConfig(json.load(file))
    except (OSError, ValueError, TypeError, AttributeError, ImportError) as error:
        raise ConfigError(f"Logging cannot be configured from {path}: {error}.") from None


class _PathFilter(logging.Filter):
    """Drops uvicorn's access-log lines for some paths."""

    def __init__(self, paths: Collection[str]) -> None:
        super().__init__()
        self._paths = frozenset(paths)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the line."""
        if not isinstance(record.args, tuple) or len(record.args) != 5:
            return True
        return str(record.args[2]).partition("?")[0] not in self._paths


def silence_access_log(paths: Collection[str]) -> None:
    """Write no access-log line for these paths; replaces those of an earlier call."""
    logger = logging.getLogger("uvicorn.access")
    for old in [each for each in logger.filters if isinstance(each, _PathFilter)]:
        logger.removeFilter(old)
    if paths:
        logger.addFilter(_PathFilter(paths))


class StatsLine:
    """Formats successive :class:`EngineStats` as a line of rates."""

    def __init__(self, now: float) -> None:
        self._last = EngineStats()
        self._last_time = now

    def format_line(self, stats: EngineStats, now: float) -> str | None:
        """The line for the time since the previous call, None if nothing ran.

        Args:
            now: seconds on the monotonic clock that was used at construction.
        """
        if stats.num_steps < self._last.num_steps:
            self._last = EngineStats()  # a restarted engine counts from zero
        seconds = max(now - self._last_time, 1e-9)
        num_prompt = stats.prompt_tokens - self._last.prompt_tokens
        num_generated = stats.generation_tokens - self._last.generation_tokens
        num_queries = stats.prefix_queries - self._last.prefix_queries
        num_hits = stats.prefix_hits - self._last.prefix_hits
        num_drafts = stats.num_drafts - self._last.num_drafts
        num_draft_tokens = stats.num_draft_tokens - self._last.num_draft_tokens
        num_accepted = sum(stats.accepted_by_position) - sum(self._last.accepted_by_position)
        self._last, self._last_time = stats, now
        if not (num_prompt or num_generated or stats.num_running or stats.num_waiting):
            return None
        parts = [
            f"{num_prompt / seconds:.1f} prompt and {num_generated / seconds:.1f} generated tokens/s",
            f"{stats.num_running} running",
            f"{stats.num_waiting} waiting",
            f"cache {stats.cache_usage:.1%} used",
        ]
        if num_queries:
            parts.append(f"{num_hits / num_queries:.1%} of prompt tokens from the prefix cache")
        if num_drafts:
            parts.append(f"{num_accepted / num_draft_tokens:.1%} of drafts accepted")
            parts.append(f"mean acceptance length {1 + num_accepted / num_drafts:.2f}")
        return ", ".join(parts)


async def log_stats(latest: Callable[[], EngineStats], logger: logging.Logger, interval: float = 10.0) -> None:
    """Log a line of rates every ``interval`` seconds while there is work; runs until cancelled."""
    stats_line = StatsLine(time.monotonic())
    while True:
        await asyncio.sleep(interval)
        line = stats_line.format_line(latest(), time.monotonic())
        if line is not None:
            logger.info(line)
