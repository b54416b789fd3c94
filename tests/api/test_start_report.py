"""What a server says of itself once it answers requests."""

import json
import logging
from typing import Any

import pytest
from fake_engine import FakeEngine

from octavo import __version__
from octavo.api.start_report import report_start, server_urls, start_block
from octavo.config import EngineConfig, ServerSettings
from octavo.records import EngineInfo, StartPhase
from octavo.telemetry.logs import configure_logging

DECISIONS = [
    {"name": "dtype", "value": "bfloat16", "reason": "the checkpoint's own type"},
    {"name": "block_size", "value": "16", "reason": "small blocks let more be shared"},
    {"name": "max_num_seqs", "value": "256", "reason": "as set"},
]
PHASES = [StartPhase("imports", 1.5), StartPhase("weights", 0.25, num_bytes=1 << 30), StartPhase("memory", 0.001)]
INFO = EngineInfo(
    *(2048, 100, 1000, 16, 256, True), DECISIONS, device="CPU with 2 cores", cache_tokens=16_000, phases=PHASES
)


@pytest.fixture(autouse=True)
def restore_logging() -> Any:
    names = ("", "octavo", "uvicorn", "uvicorn.error", "uvicorn.access")
    loggers = [logging.getLogger(name) for name in names]
    saved = [(logger.level, logger.handlers[:], logger.propagate) for logger in loggers]
    yield
    for logger, (level, handlers, propagate) in zip(loggers, saved, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers
        logger.propagate = propagate


def report(**settings: Any) -> None:
    config = EngineConfig.from_kwargs(model="m", **settings)
    configure_logging(config.logging.log_level, config.logging.log_format)
    engine = FakeEngine()
    engine.info = INFO
    report_start(engine, config, ServerSettings(), "http://0.0.0.0:8000", 2.0)


def test_the_block_tells_what_is_served_how_and_where() -> None:
    block = start_block("my/model", INFO, server_urls(ServerSettings(), "http://0.0.0.0:8000"), 2.0)
    assert block.split("\n") == [
        f"Octavo {__version__}",
        "",
        "  model     my/model",
        "  device    CPU with 2 cores",
        "  dtype     bfloat16: the checkpoint's own type",
        "  settings  block_size    16   small blocks let more be shared",
        "            max_num_seqs  256  as set",
        "  cache     16,000 tokens: 7.8 sequences of max_model_len, 2,048 tokens",
        "  start     2.00 s: imports 1.50 s, weights 0.25 s, server 0.25 s",
        "",
        "  API       http://localhost:8000/v1",
        "  page      http://localhost:8000/",
        "  docs      http://localhost:8000/docs",
        "",
    ]


def test_a_model_without_a_cache_has_no_line_for_it() -> None:
    assert "cache" not in start_block("m", EngineInfo(2048, 100, 0, 16, 8, False), {}, 1.0)


@pytest.mark.parametrize(
    ("settings", "address", "urls"),
    [
        ({"host": "127.0.0.1"}, "http://127.0.0.1:80", ["http://127.0.0.1:80/v1", "http://127.0.0.1:80/"]),
        ({"host": "::"}, "https://[::]:443", ["https://localhost:443/v1", "https://localhost:443/"]),
        ({"root_path": "/llm/"}, "http://0.0.0.0:1", ["http://localhost:1/llm/v1", "http://localhost:1/llm/"]),
        ({"disable_console": True}, "http://0.0.0.0:1", ["http://localhost:1/v1"]),
        ({"uds": "/run/o"}, "unix:/run/o", ["unix:/run/o/v1", "unix:/run/o/"]),
    ],
)
def test_urls_are_those_a_client_can_use(settings: dict[str, Any], address: str, urls: list[str]) -> None:
    assert [*server_urls(ServerSettings(**settings, disable_fastapi_docs=True), address).values()] == urls


def test_text_logs_have_the_block_and_json_logs_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    # Servers of other tests may still be ending, and say so.
    report()
    assert f"Octavo {__version__}\n" in capsys.readouterr().err
    report(log_format="json")
    lines = map(json.loads, capsys.readouterr().err.splitlines())
    (line,) = [line for line in lines if line["message"] == "Listening on http://0.0.0.0:8000"]
    assert (line["dtype"], line["device"], line["cache_tokens"]) == ("bfloat16", "CPU with 2 cores", 16_000)
    assert line["urls"]["docs"] == "http://localhost:8000/docs" and line["settings"]["block_size"] == "16"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_who_wants_warnings_only_gets_no_block(capsys: pytest.CaptureFixture[str], log_format: str) -> None:
    report(log_level="warning", log_format=log_format)
    assert capsys.readouterr().err == ""
