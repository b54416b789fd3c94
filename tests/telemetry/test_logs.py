"""The log says what matters, on one line each."""

import asyncio
import json
import logging
from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.records import EngineStats
from octavo.records.caller import CALLER, Caller
from octavo.telemetry.logs import OneLineFormatter, StatsLine, configure_logging, log_stats, silence_access_log


@pytest.fixture(autouse=True)
def restore_logging():
    names = ("", "octavo", "uvicorn", "uvicorn.error", "uvicorn.access")
    loggers = [logging.getLogger(name) for name in names]
    saved = [(logger.level, logger.handlers[:], logger.propagate) for logger in loggers]
    yield
    for logger, (level, handlers, propagate) in zip(loggers, saved, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers
        logger.propagate = propagate


@pytest.mark.parametrize("prefix", ["VLLM", "OCTAVO"])
def test_logging_may_be_left_alone(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{prefix}_CONFIGURE_LOGGING", "0")
    before = logging.getLogger().handlers[:]
    configure_logging("debug")
    assert logging.getLogger().handlers == before


def test_logging_may_be_configured_by_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, target = tmp_path / "logging.json", tmp_path / "log.txt"
    handler = {"class": "logging.FileHandler", "filename": str(target)}
    logger = {"level": "ERROR", "handlers": ["file"], "propagate": False}
    path.write_text(
        json.dumps(
            {
                "version": 1,
                "disable_existing_loggers": False,
                "handlers": {"file": handler},
                "loggers": {"octavo": logger},
            }
        )
    )
    monkeypatch.setenv("VLLM_LOGGING_CONFIG_PATH", str(path))
    configure_logging("debug")
    logging.getLogger("octavo.engine").warning("not shown")
    logging.getLogger("octavo.engine").error("shown")
    assert target.read_text() == "shown\n"
    monkeypatch.setenv("VLLM_LOGGING_CONFIG_PATH", str(tmp_path / "nothing.json"))
    configure_logging("debug", config_file=str(path))
    logging.getLogger("octavo.engine").error("by the setting")
    assert target.read_text() == "shown\nby the setting\n"
    monkeypatch.setenv("VLLM_LOGGING_CONFIG_PATH", str(path))
    path.write_text('{"version": 9}')
    with pytest.raises(ConfigError, match="Logging cannot be configured"):
        configure_logging()


def test_configuring_twice_logs_once(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info")
    configure_logging("warning")
    logging.getLogger("octavo.engine").info("not shown")
    logging.getLogger("octavo.engine").warning("careful")
    logging.getLogger("uvicorn.error").warning("from below")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("WARNING octavo.engine: careful")
    assert lines[1].endswith("uvicorn.error: from below")


def test_lines_for_programs_name_the_request_they_are_about(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    logger = logging.getLogger("octavo.engine")
    logger.info("line\nbreak \u2028 %s", "ü")
    token = CALLER.set(Caller(request_id="abc"))
    try:
        raise ValueError("bad")
    except ValueError:
        logger.exception("failed")
    finally:
        CALLER.reset(token)
    configure_logging("info")
    logger.info("text again")
    first, second, third = capsys.readouterr().err.splitlines()
    line = json.loads(first)
    assert (line["level"], line["logger"], line["message"]) == ("info", "octavo.engine", "line\nbreak \u2028 ü")
    assert "request_id" not in line and line["time"].endswith("+00:00")
    line = json.loads(second)
    assert line["request_id"] == "abc" and "ValueError: bad" in line["exception"]
    assert third.endswith("octavo.engine: text again")


def test_paths_that_are_asked_for_all_the_time_may_go_unlogged(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info")
    silence_access_log(["/health", "/metrics"])
    logger = logging.getLogger("uvicorn.access")
    for path in ("/health", "/metrics?x=1", "/healthy", "/v1/models"):
        logger.info('%s - "%s %s HTTP/%s" %d', "1.2.3.4:5", "GET", path, "1.1", 200)
    logger.info("something else")
    silence_access_log([])
    logger.info('%s - "%s %s HTTP/%s" %d', "1.2.3.4:5", "GET", "/health", "1.1", 200)
    shown = [line.partition("uvicorn.access: ")[2] for line in capsys.readouterr().err.splitlines()]
    assert [line.split('"')[1].split()[1] if '"' in line else line for line in shown] == [
        *("/healthy", "/v1/models", "something else", "/health")
    ]


def test_a_message_cannot_forge_a_line() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "got %s", ("a\nINFO all is well\x1b[0m",), None)
    assert "\n" not in OneLineFormatter("%(message)s").format(record)
    assert "\x1b" not in OneLineFormatter("%(message)s").format(record)


def test_stats_line_shows_rates_since_the_last_one() -> None:
    stats_line = StatsLine(now=0.0)
    line = stats_line.format_line(
        EngineStats(num_running=2, prompt_tokens=100, generation_tokens=50, num_steps=5), now=10.0
    )
    assert line is not None
    assert "10.0 prompt and 5.0 generated tokens/s" in line
    assert "2 running" in line


def test_stats_line_shows_the_drafts_since_the_last_one() -> None:
    stats_line = StatsLine(now=0.0)
    first = EngineStats(num_running=1, num_steps=5, num_draft_tokens=30, acceptances=[10, 0, 0, 0])
    line = stats_line.format_line(first, now=10.0)
    assert line is not None and "0.0% of drafts accepted, mean acceptance length 1.00" in line
    second = EngineStats(num_running=1, num_steps=9, num_draft_tokens=42, acceptances=[11, 1, 0, 2])
    line = stats_line.format_line(second, now=20.0)
    assert line is not None and "58.3% of drafts accepted, mean acceptance length 2.75" in line


def test_stats_line_is_silent_when_idle() -> None:
    stats_line = StatsLine(now=0.0)
    busy = EngineStats(generation_tokens=50, num_steps=5)
    assert stats_line.format_line(busy, now=10.0) is not None
    assert stats_line.format_line(busy, now=20.0) is None


class Catcher(logging.Handler):
    """Keeps the first message and tells that it came."""

    def __init__(self) -> None:
        super().__init__()
        self.message = ""
        self.caught = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.message = record.getMessage()
        self.caught.set()


def test_log_stats_logs_while_busy() -> None:
    counts = iter(range(1, 1000))

    def latest() -> EngineStats:
        count = next(counts)
        return EngineStats(generation_tokens=count, num_steps=count)

    async def run() -> str:
        logger, catcher = logging.Logger("test.stats"), Catcher()
        logger.addHandler(catcher)
        task = asyncio.create_task(log_stats(latest, logger, interval=0.001))
        await asyncio.wait_for(catcher.caught.wait(), 60)
        task.cancel()
        return catcher.message

    assert "generated tokens/s" in asyncio.run(run())
