"""The report that a server prints once it answers requests."""

import logging
import sys
from collections.abc import Sequence

from octavo import __version__
from octavo.api.engine import ServingEngine
from octavo.config import EngineConfig, ServerSettings
from octavo.records import EngineInfo, StartPhase
from octavo.telemetry.logs import with_fields

logger = logging.getLogger(__name__)

_ANY_ADDRESS = ("0.0.0.0", "::", "")
_INDENT = "  "
_SHORTEST_PHASE = 0.005


def report_start(
    engine: ServingEngine, settings: EngineConfig, server: ServerSettings, address: str, age: float
) -> None:
    """Print what is served, how and where: as a block of text, or as one line of JSON in the log.

    Args:
        address: the server's URL, as :func:`octavo.api.server.describe_address` gives it.
        age: seconds since the command was given.
    """
    info, urls = engine.info, server_urls(server, address)
    if settings.logging.log_format == "json":
        fields = {
            "version": __version__,
            "model": engine.model_name,
            "dtype": _dtype(info),
            "device": info.device,
            "cache_tokens": info.cache_tokens,
            "settings": {entry["name"]: entry["value"] for entry in info.decisions},
            "seconds": round(age, 3),
            "urls": urls,
        }
        logger.info("Listening on %s", address, extra=with_fields(fields))
    elif logger.isEnabledFor(logging.INFO):
        print(start_block(engine.model_name, info, urls, age), file=sys.stderr, flush=True)


def start_block(model: str, info: EngineInfo, urls: dict[str, str], age: float) -> str:
    """The block for people.

    Args:
        urls: what is found where.
        age: seconds since the command was given.
    """
    settings = [
        (entry["name"], entry["value"], entry["reason"]) for entry in info.decisions if entry["name"] != "dtype"
    ]
    dtype = [f"{entry['value']}: {entry['reason']}" for entry in info.decisions if entry["name"] == "dtype"]
    sections = [
        ("model", [model]),
        ("device", [info.device]),
        ("dtype", dtype),
        ("settings", _in_columns(settings)),
        ("cache", [_cache_size(info)] if info.cache_tokens else []),
        ("start", [_times(info.phases, age)]),
    ]
    width = max(len(name) for name, _ in (*sections, *urls.items()))
    lines = [f"Octavo {__version__}", ""]
    for name, texts in sections:
        lines += [
            f"{_INDENT}{label:<{width}}  {text}" for label, text in zip(_once(name, len(texts)), texts, strict=True)
        ]
    lines += ["", *(f"{_INDENT}{name:<{width}}  {url}" for name, url in urls.items()), ""]
    return "\n".join(line.rstrip() for line in lines)


def server_urls(server: ServerSettings, address: str) -> dict[str, str]:
    """Where a client on this machine finds the API and, if they are served, the web page and the API's description."""
    base = _reachable(address, server) + server.root_path.rstrip("/")
    urls = {"API": f"{base}/v1"}
    if not server.disable_console:
        urls["page"] = f"{base}/"
    if not server.disable_fastapi_docs:
        urls["docs"] = f"{base}/docs"
    return urls


def _reachable(address: str, server: ServerSettings) -> str:
    """The address with a name in place of "all of this machine's addresses", which no client can connect to."""
    if server.uds is None and (server.host or "") in _ANY_ADDRESS:
        scheme, _, rest = address.partition("://")
        return f"{scheme}://localhost:{rest.rpartition(':')[2]}"
    return address


def _cache_size(info: EngineInfo) -> str:
    num_longest = info.cache_tokens / info.max_model_len
    return f"{info.cache_tokens:,} tokens: {num_longest:.1f} sequences of max_model_len, {info.max_model_len:,} tokens"


def _times(phases: Sequence[StartPhase], age: float) -> str:
    """The engine's phases, and what passed besides until requests were answered."""
    times = [(phase.name, phase.seconds) for phase in phases]
    times.append(("server", age - sum(seconds for _, seconds in times)))
    parts = [f"{name} {seconds:.2f} s" for name, seconds in times if seconds >= _SHORTEST_PHASE]
    return f"{age:.2f} s: {', '.join(parts)}"


def _dtype(info: EngineInfo) -> str:
    return next((entry["value"] for entry in info.decisions if entry["name"] == "dtype"), "")


def _once(name: str, count: int) -> list[str]:
    """A section's name for its first line only."""
    return [name if index == 0 else "" for index in range(count)]


def _in_columns(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    return [f"{name:<{widths[0]}}  {value:<{widths[1]}}  {reason}" for name, value, reason in rows]
