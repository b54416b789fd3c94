"""A batch with a real model, killed on its way."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from server_process import MODEL, SMALL, environment, octavo, until

FLAGS = [*(flag for flag in SMALL if flag != "--disable-uvicorn-access-log"), "--max-inflight", "1"]


@pytest.mark.long
def test_a_killed_batch_goes_on_and_says_what_it_would_have_said(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    chat = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
    lines = [("/v1/chat/completions", chat)] + [
        ("/v1/completions", {"prompt": f"{number}, {number + 1},", "seed": number}) for number in range(4)
    ]
    requests = [
        {"custom_id": str(index), "method": "POST", "url": url, "body": {**body, "max_tokens": 8}}
        for index, (url, body) in enumerate(lines)
    ]
    source.write_text("".join(json.dumps(request) + "\n" for request in requests))
    command = ["run-batch", "-i", str(source), "-o", str(output), "--model", MODEL, *FLAGS]
    part = tmp_path / "out.jsonl.part"
    process = subprocess.Popen(
        [sys.executable, "-m", "octavo.cli.main", *command], env=environment(), stderr=subprocess.DEVNULL
    )
    until(lambda: process.poll() is not None or (part.exists() and part.read_bytes().count(b"\n") >= 2))
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children))
    assert not output.exists()
    kept = [json.loads(line) for line in part.read_bytes().splitlines(True) if line.endswith(b"\n")]
    with part.open("ab") as file:
        file.write(b'{"id": "half a li')  # what a machine that lost its power may leave

    ended = octavo(*command)
    assert ended.returncode == 0, ended.stderr
    assert f"{len(kept)} of 5 requests have their answers already" in ended.stderr
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert [answer["custom_id"] for answer in answers] == [str(index) for index in range(5)]
    assert all(answer in answers for answer in kept)
    assert "Paris" in answers[0]["response"]["body"]["choices"][0]["message"]["content"]

    again = octavo(*command, "--overwrite")
    assert again.returncode == 0, again.stderr
    choices = [json.loads(line)["response"]["body"]["choices"] for line in output.read_text().splitlines()]
    assert choices == [answer["response"]["body"]["choices"] for answer in answers]
