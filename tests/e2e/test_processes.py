"""The server's processes: how they end, who looks after whom, and what happens when one cannot start."""

import contextlib
import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import openai
import psutil
import pytest
from server_process import MODEL, PATIENCE, ServerProcess, octavo, until

StartServer = Callable[..., ServerProcess]
STORY = {"model": MODEL, "prompt": "A long time ago", "temperature": 0, "extra_body": {"ignore_eos": True}}


class Stream(threading.Thread):
    """Reads a stream while the test does other things."""

    def __init__(self, server: ServerProcess, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._max_tokens = max_tokens
        self.text = ""
        self.num_chunks = 0
        self.finish_reason: str | None = None
        self.start()

    def run(self) -> None:
        with self._server.client() as client, contextlib.suppress(openai.APIConnectionError):
            for chunk in client.completions.create(**STORY, max_tokens=self._max_tokens, stream=True):
                self.num_chunks += 1
                self.text += chunk.choices[0].text
                self.finish_reason = chunk.choices[0].finish_reason or self.finish_reason


def are_gone(processes: list[psutil.Process]) -> bool:
    """Whether none of them is alive; one that its parent has yet to bury is not."""
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


@pytest.mark.long
@pytest.mark.parametrize("to_all", [False, True], ids=["main process", "whole group"])
def test_sigterm_lets_streams_finish(start_server: StartServer, to_all: bool) -> None:
    """Some supervisors signal only the process that they started, others every process of the service."""
    server = start_server("--api-key", "secret", api_key="secret")
    family = server.family()
    for key in ("wrong", "none"):
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0).models.list()
    assert httpx.get(f"{server.url}/health", timeout=PATIENCE).status_code == 200
    assert httpx.get(f"{server.url}/metrics", timeout=PATIENCE).status_code == 401

    stream = Stream(server, 40)
    until(lambda: stream.num_chunks >= 3)
    for process in family if to_all else family[:1]:
        process.send_signal(signal.SIGTERM)
    with pytest.raises((openai.InternalServerError, openai.APIConnectionError)), server.client() as client:
        while True:
            client.completions.create(**STORY, max_tokens=1)
    assert server.process.wait(PATIENCE) == 0
    stream.join(PATIENCE)
    assert stream.finish_reason == "length"
    assert stream.num_chunks >= 38
    until(lambda: are_gone(family))
    assert "starting it again" not in server.log.read_text()


@pytest.mark.long
def test_several_api_processes(start_server: StartServer) -> None:
    server = start_server("--api-server-count", "2")
    until(lambda: len(server.children("octavo.api.process")) == 2)
    undisturbed = Stream(server, 30)
    undisturbed.join(PATIENCE)

    # Connections spread over both processes; all of them see the engine come back.
    streams = [Stream(server, 30) for _ in range(6)]
    until(lambda: all(stream.num_chunks >= 3 for stream in streams))
    server.kill_engine()
    for stream in streams:
        stream.join(PATIENCE)
    assert [stream.text for stream in streams] == [undisturbed.text] * 6

    first, second = server.children("octavo.api.process")
    first.kill()
    until(
        lambda: (
            {first, second} != set(server.children("octavo.api.process"))
            and len(server.children("octavo.api.process")) == 2
        )
    )
    (newcomer,) = set(server.children("octavo.api.process")) - {first, second}
    # The one that stayed would serve alone; the new one has to, once the other is stopped.
    second.suspend()
    try:
        answer = Stream(server, 30)
        answer.join(PATIENCE)
        assert answer.text == undisturbed.text
    finally:
        second.resume()
    assert newcomer.is_running()

    family = server.family()
    server.process.kill()
    server.process.wait()
    until(lambda: are_gone(family))


@pytest.mark.long
def test_the_start_is_reported_once(start_server: StartServer) -> None:
    """By one of several API processes, and in short when the engine is back; a second one is no second start."""
    server = start_server("--api-server-count", "2", "--log-level", "info")
    until(lambda: "docs " in server.log.read_text())
    server.kill_engine()
    until(lambda: "The engine is back after" in server.log.read_text())
    until(lambda: server.health == 200)
    for child in server.children("octavo.api.process"):
        child.kill()
    until(lambda: server.log.read_text().count("starting it again") == 3 and server.health == 200)
    log = server.log.read_text()
    assert log.count("Octavo ") == log.count(f"http://127.0.0.1:{server.port}/docs") == 1
    assert log.count("The engine is back after") == 1
    assert "Start: " not in log and "uvicorn.error" not in log


@pytest.mark.long
def test_json_logs_have_a_line_for_each_phase(start_server: StartServer) -> None:
    server = start_server("--log-level", "info", "--log-format", "json")
    until(lambda: "Listening on" in server.log.read_text())
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    phases = {line["phase"]: line for line in lines if "phase" in line}
    assert [*phases] == ["imports", "configuration", "model", "weights", "memory", "ready"]
    assert phases["weights"]["bytes"] > 1 << 26 and phases["imports"]["seconds"] > 0
    assert phases["weights"]["logger"] == "octavo.engine.server"
    assert f"http://127.0.0.1:{server.port}/docs" in lines[-1]["urls"].values()


@pytest.mark.long
def test_processes_end_with_the_one_that_started_them(start_server: StartServer) -> None:
    server = start_server()
    stream = Stream(server, 400)
    until(lambda: stream.num_chunks >= 2)
    family = server.family()
    server.process.kill()
    server.process.wait()
    until(lambda: are_gone(family))


@pytest.mark.long
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["./no/such/folder"], "There is no file or folder"),
        (["bundled:nothing"], "bundled:smollm2"),
        ([MODEL, "--num-gpu-blocks-override", "2", "--max-model-len", "2048"], "does not fit the cache"),
        ([MODEL, "--max-model-len", "1000000"], "8192"),
        ([MODEL, "--max-model-len", "1000000", "--api-server-count", "2"], "8192"),
        ([MODEL, "--logits-processors", '["no.such.module:Class"]'], "cannot be imported"),
        ([MODEL, "--max-num-seq", "3"], "--max-num-seqs"),
        ([MODEL, "--tensor-parallel-size", "2"], "tensor_parallel_size is 2"),
    ],
)
def test_wrong_settings_end_the_command_with_a_sentence(flags: list[str], words: str) -> None:
    ended = octavo("serve", *flags, "--port", "0")
    assert ended.returncode in (1, 2)
    assert ended.stderr.count(words) == 1
    assert "Traceback" not in ended.stderr
    assert "starting it again" not in ended.stderr


def test_taken_port(server: ServerProcess) -> None:
    ended = octavo("serve", MODEL, "--host", "127.0.0.1", "--port", str(server.port))
    assert ended.returncode == 2
    assert str(server.port) in ended.stderr


def test_unreadable_model_file(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(range(200)))
    ended = octavo("serve", str(broken), "--port", "0")
    assert ended.returncode != 0
    assert "broken.gguf" in ended.stderr
    assert "Traceback" not in ended.stderr
