"""Lines in, lines out."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.api.batch.lines import (
    AnswerHead,
    BatchRequest,
    encode_answer,
    encode_refusal,
    read_requests,
    scan_requests,
)
from octavo.api.errors import error_body
from octavo.errors import ConfigError

GOOD = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
LIMIT = 4096


def write(path: Path, *lines: Any) -> Path:
    texts = [line if isinstance(line, str | bytes) else json.dumps(line) for line in lines]
    path.write_bytes(b"".join((text.encode() if isinstance(text, str) else text) + b"\n" for text in texts))
    return path


def test_requests_are_read_in_order_whatever_surrounds_them(tmp_path: Path) -> None:
    lines = ["\ufeff" + json.dumps(GOOD), "", "  \r", json.dumps({**GOOD, "custom_id": "ü", "more": 1}) + "\r"]
    path = write(tmp_path / "in", *lines)
    path.write_bytes(path.read_bytes() + json.dumps({**GOOD, "custom_id": "last"}).encode())
    assert scan_requests(path, LIMIT) == ["a", "ü", "last"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not a request"),
        ("[]", "not a request"),
        ('{"method": "POST"}', "custom_id"),
        ('{"custom_id": 7}', "custom_id"),
        ('{"custom_id": ""}', "1 to 1024"),
        (json.dumps({"custom_id": "x" * 1025}), "1 to 1024"),
        (b'{"custom_id": "\xff"}', "not a request"),
        ('{"custom_id": "a", "body": ' + "[" * 40_000, "line 2"),
        ('{"custom_id": "a"} {}', "not a request"),
        (json.dumps({**GOOD, "custom_id": "b", "body": "x" * (LIMIT + (64 << 10))}), "--max-request-bytes"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_lines_without_a_usable_id_are_refused_by_number(tmp_path: Path, line: str | bytes, words: str) -> None:
    path = write(tmp_path / "in", {**GOOD, "custom_id": "first"}, line)
    with pytest.raises(ConfigError, match="line 2") as refusal:
        scan_requests(path, LIMIT)
    assert words in str(refusal.value)


def test_ids_must_differ(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'a' appears twice"):
        scan_requests(write(tmp_path / "in", GOOD, GOOD), LIMIT)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Cannot read .*nothing"):
        list(read_requests(tmp_path / "nothing", LIMIT))
    with pytest.raises(ConfigError, match="Cannot read"):
        list(read_requests(tmp_path, LIMIT))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "GET"}, "method"),
        ({"method": None}, "method"),
        ({"url": "/sleep"}, "url"),
        ({"url": "http://127.0.0.1/v1/completions"}, "url"),
        ({"url": "/v1/../sleep"}, "url"),
        ({"url": ["/v1/completions"]}, "url"),
        ({"url": {}}, "url"),
        ({"body": None}, "body"),
        ({"body": [1]}, "body"),
        ({"body": {"stream": True}}, "stream"),
        ({"url": "/v1/responses", "body": {"background": True}}, "background"),
    ],
)
def test_what_cannot_be_asked_is_explained(change: dict[str, Any], words: str) -> None:
    request = msgspec.json.decode(json.dumps({**GOOD, **change}), type=BatchRequest)
    assert words in (request.problem() or "")


def test_what_can_be_asked_has_no_problem() -> None:
    for body in ({}, {"stream": False}, {"stream": None, "prompt": "x"}):
        assert msgspec.json.decode(json.dumps({**GOOD, "body": body}), type=BatchRequest).problem() is None


@given(st.text(min_size=1, max_size=20), st.sampled_from([200, 400, 500]), st.text(max_size=30))
def test_every_answer_is_one_line_that_can_be_read_again(custom_id: str, status: int, text: str) -> None:
    body = json.dumps({"text": text}, indent=2).encode() if status == 200 else error_body(status, text)
    line = encode_answer(custom_id, "r1", status, body)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    answer = json.loads(line)
    assert answer["custom_id"] == custom_id
    assert answer["response"]["body"] == json.loads(body)
    assert (answer["error"] is None) == (status == 200)
    assert msgspec.json.decode(line, type=AnswerHead).is_good == (status == 200)


def test_refusals_look_like_the_servers_errors() -> None:
    answer = json.loads(encode_refusal("a", "r1", "No."))
    assert answer["id"] == "batch_req_r1"
    assert answer["response"]["status_code"] == 400
    assert answer["error"] == answer["response"]["body"]["error"]
    assert answer["error"] == {"message": "No.", "type": "BadRequestError", "param": None, "code": 400}


def test_an_error_in_anthropics_shape_is_told_in_openais() -> None:
    body = {"type": "error", "error": {"type": "not_found_error", "message": "No such model."}}
    answer = json.loads(encode_answer("a", "r1", 404, json.dumps(body).encode()))
    assert answer["response"]["body"] == body
    assert answer["error"] == {"message": "No such model.", "type": "not_found_error", "param": None, "code": 404}


def test_an_error_of_another_shape_is_an_error_all_the_same() -> None:
    answer = json.loads(encode_answer("a", "r1", 418, b'{"type": "error"}'))
    assert answer["response"]["body"] == {"type": "error"}
    assert "418" in answer["error"]["message"]
