"""Lines about requests say what was asked for, and show texts only where the owner wants that."""

import logging

import pytest
from engine_requests import engine_request

from octavo.config import LoggingSettings
from octavo.errors import ConfigError
from octavo.outputs.request_log import RequestLog
from octavo.records import (
    CompletionOutput,
    PreparedRequest,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
)

SECRET = "my password is swordfish"


def prepared(prompt: str | None = SECRET) -> PreparedRequest:
    params = SamplingParams(max_tokens=7)
    return PreparedRequest("id", prompt, [9, 8, 7], params, [engine_request("id", [9, 8, 7], params)], 0.0)


def output(text: str) -> RequestOutput:
    return RequestOutput("id", SECRET, [9, 8, 7], None, [CompletionOutput(0, text, [1])], False)


def lines(caplog: pytest.LogCaptureFixture, prompt: str | None = SECRET, **settings: object) -> list[str]:
    log = RequestLog(LoggingSettings(enable_log_requests=True, **settings))  # type: ignore[arg-type]
    with caplog.at_level(logging.INFO, logger="octavo"):
        log.begin(prepared(prompt))
        log.add_output(output("tell "), RequestOutputKind.DELTA)
        log.add_output(output("nobody"), RequestOutputKind.DELTA)
        log.end("id", ["stop"])
    assert not log._texts
    return [record.getMessage() for record in caplog.records]


def test_no_texts_unless_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    first, second = lines(caplog)
    assert "id: 3 prompt tokens" in first and "max_tokens=7" in first
    assert second == "Request id ended: stop"
    assert "swordfish" not in first + second and "nobody" not in first + second


def test_texts_if_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    first, second = lines(caplog, enable_log_outputs=True)
    assert SECRET in first
    assert second == "Request id ended: stop; answer 'tell nobody'"


def test_texts_as_far_as_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    first, second = lines(caplog, enable_log_outputs=True, max_log_len=6)
    assert "'my pas'" in first and "password" not in first
    assert second.endswith("answer 'tell n'")


def test_a_prompt_of_tokens_is_shown_as_tokens(caplog: pytest.LogCaptureFixture) -> None:
    assert "prompt '[9, 8, 7]'" in lines(caplog, None, enable_log_outputs=True)[0]


def test_texts_without_lines_are_refused() -> None:
    with pytest.raises(ConfigError, match="set both"):
        RequestLog(LoggingSettings(enable_log_outputs=True))
