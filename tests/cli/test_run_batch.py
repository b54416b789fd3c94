"""Flags of ``octavo run-batch``; what it does with them is tested in ``tests/api/batch``."""

from pathlib import Path
from typing import Any

import pytest

from octavo.api.batch import launch
from octavo.api.batch.launch import BatchJob
from octavo.cli.main import main
from octavo.cli.run_batch import BATCH_SETTINGS
from octavo.config import ServerSettings


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    seen: list[Any] = []
    monkeypatch.setattr(launch, "run_batch", lambda *arguments: seen.append(arguments) or 7)
    return seen


def test_flags_are_handed_over(handed_over: list[Any]) -> None:
    flags = ["--output_file", "out", "--max-inflight", "1k", "--enable-metrics", "--port", "9", "--max-num-seqs", "3"]
    flags += ["--output-tmp-dir", "tmp", "--response-role", "bot", "--retry-failed"]
    assert main(["run-batch", "-i", "in", "m", *flags]) == 7
    ((config, server, job),) = handed_over
    assert (config.model.model, config.scheduler.max_num_seqs) == ("m", 3)
    assert (server.port, server.response_role) == (9, "bot")
    assert job == BatchJob("in", "out", Path("tmp"), 1000, enable_metrics=True, retry_failed=True)


def test_nothing_is_overwritten_or_fetched_unless_asked_for(handed_over: list[Any]) -> None:
    assert main(["run-batch", "-i", "in", "-o", "out", "--model", "m"]) == 7
    ((_, _, job),) = handed_over
    assert job == BatchJob("in", "out")
    assert not (job.overwrite or job.allow_urls or job.retry_failed or job.enable_metrics)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-i", "in", "--model", "m"], "--output-file"),
        (["-o", "out", "--model", "m"], "--input-file"),
        (["-i", "in", "-o", "out"], "Name a model"),
        (["-i", "in", "-o", "out", "m", "--max-inflight", "0"], "--max-inflight"),
        (["-i", "in", "-o", "out", "m", "--api-key", "x"], "--api-key"),
        (["-i", "in", "-o", "out", "m", "--max-inflght", "2"], "Did you mean --max-inflight?"),
    ],
)
def test_wrong_flags_are_told(
    handed_over: list[Any], capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["run-batch", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not handed_over


def test_settings_of_answers_are_flags_and_those_of_connections_are_not() -> None:
    assert {"chat_template", "response_role", "served_model_name", "max_request_bytes"} <= BATCH_SETTINGS
    assert set(ServerSettings.__struct_fields__) >= BATCH_SETTINGS
    doors = {"api_key", "uds", "ssl_keyfile", "ssl_certfile", "allowed_origins", "api_server_count", "root_path"}
    assert doors <= set(ServerSettings.__struct_fields__)
    assert not doors & BATCH_SETTINGS
