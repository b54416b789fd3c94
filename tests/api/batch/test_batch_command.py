"""``octavo run-batch`` from its flags to its exit status, with an engine that has no model."""

import asyncio
import json
import math
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx
import pytest
from fake_engine import FakeEngine
from ports import free_port

from octavo.api.batch import launch
from octavo.cli.main import main
from octavo.config import EngineConfig
from octavo.records import EngineStats, RequestOutput


class FakeModel(FakeEngine):
    """What the batch takes for a model."""

    started: ClassVar[list["FakeModel"]] = []
    num_answers = math.inf
    """After so many it answers no more."""

    def __init__(
        self, settings: EngineConfig, chat_template: str | None = None, *, settles_reasoning: bool = True
    ) -> None:
        super().__init__()
        self.settings = settings
        self.stats = EngineStats()
        self.is_shut_down = False
        self.started.append(self)

    async def _outputs(self, *request: Any) -> AsyncGenerator[RequestOutput, None]:
        if len(self.calls) > self.num_answers:
            await asyncio.Event().wait()
        async for output in super()._outputs(*request):
            yield output

    async def start(self) -> None:
        pass

    async def shutdown(self) -> None:
        self.is_shut_down = True

    async def wait_until_dead(self) -> None:
        await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeModel]]:
    monkeypatch.setattr(launch, "AsyncLLM", FakeModel)
    monkeypatch.setattr(FakeModel, "started", [])
    monkeypatch.setattr(FakeModel, "num_answers", math.inf)
    yield FakeModel
    assert all(engine.is_shut_down for engine in FakeModel.started)


@pytest.fixture
def files(tmp_path: Path) -> SimpleNamespace:
    return SimpleNamespace(input=tmp_path / "in.jsonl", output=tmp_path / "out.jsonl", folder=tmp_path)


def write(files: SimpleNamespace, *prompts: str, **body: Any) -> None:
    lines = [
        {"custom_id": f"id-{index}", "method": "POST", "url": "/v1/completions", "body": {"prompt": prompt, **body}}
        for index, prompt in enumerate(prompts)
    ]
    files.input.write_text("".join(json.dumps(line) + "\n" for line in lines))


def run(files: SimpleNamespace, *flags: str) -> int:
    return main(["run-batch", "-i", str(files.input), "-o", str(files.output), "--model", "m", *flags])


def answers(files: SimpleNamespace) -> list[dict[str, Any]]:
    return [json.loads(line) for line in files.output.read_text().splitlines()]


def test_answers_come_in_order_and_the_status_tells_of_errors(
    files: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    write(files, "a", "b", "c")
    assert run(files) == 0
    assert [answer["custom_id"] for answer in answers(files)] == ["id-0", "id-1", "id-2"]
    assert all(answer["response"]["body"]["choices"][0]["text"] for answer in answers(files))
    assert "3 answers are in" in capsys.readouterr().err
    write(files, "a", "b", "c", "bug")
    assert run(files) == 1
    assert answers(files)[3]["error"]["code"] == 500
    assert "1 of them errors" in capsys.readouterr().err


def test_what_is_done_needs_no_model(files: SimpleNamespace, model: type[FakeModel]) -> None:
    write(files, "a", "b")
    assert run(files) == 0
    assert run(files) == 0
    assert len(model.started) == 1
    assert run(files, "--overwrite") == 0
    assert len(model.started) == 2
    files.input.write_text("\n")
    assert run(files, "--overwrite") == 0
    assert files.output.read_bytes() == b""
    assert len(model.started) == 2


def test_errors_are_asked_again_on_demand(files: SimpleNamespace, model: type[FakeModel]) -> None:
    write(files, "a", "fine")
    assert run(files) == 0
    lines = files.output.read_bytes().splitlines(True)
    files.output.write_bytes(lines[0] + lines[1].replace(b'"status_code":200', b'"status_code":503'))
    assert run(files) == 1
    assert run(files, "--retry-failed") == 0
    assert [call["prompt"] for call in model.started[-1].calls] == ["fine"]


def interrupt_after_two_answers(files: SimpleNamespace, number: int) -> None:
    part = files.output.with_name("out.jsonl.part")

    def wait() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if part.exists() and part.read_bytes().count(b"\n") >= 2:
                break
            time.sleep(0.002)
        os.kill(os.getpid(), number)

    threading.Thread(target=wait, daemon=True).start()


@pytest.fixture
def _hears_ctrl_c() -> Iterator[None]:
    """Shells start jobs in the background deaf to SIGINT, test runs among them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_hears_ctrl_c")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_batch_goes_on(
    files: SimpleNamespace,
    model: type[FakeModel],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
    status: int,
) -> None:
    prompts = [f"prompt {index}" for index in range(12)]
    write(files, *prompts)
    monkeypatch.setattr(model, "num_answers", 3)
    interrupt_after_two_answers(files, number)
    assert run(files, "--max-inflight", "2") == status
    assert not files.output.exists()
    error = capsys.readouterr().err
    assert "same command to resume" in error and "Traceback" not in error
    num_kept = files.output.with_name("out.jsonl.part").read_bytes().count(b"\n")
    assert 2 <= num_kept <= 3
    monkeypatch.setattr(model, "num_answers", math.inf)
    assert run(files) == 0
    assert len(model.started[-1].calls) == 12 - num_kept
    assert [answer["custom_id"] for answer in answers(files)] == [f"id-{index}" for index in range(12)]


def test_a_dead_engine_ends_the_batch_and_loses_nothing(
    files: SimpleNamespace,
    model: type[FakeModel],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(files, *("abcdef"))
    monkeypatch.setattr(model, "num_answers", 2)
    monkeypatch.setattr(model, "wait_until_dead", lambda self: asyncio.sleep(0.1))
    assert run(files, "--max-inflight", "1") == 1
    assert "The engine failed" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(launch, "AsyncLLM", model)
    assert run(files) == 0
    assert len(answers(files)) == 6


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-o", "{folder}"], "is not a file"),
        (["-o", "{folder}/none/out"], "no folder"),
        (["-o", "{folder}/in.jsonl"], "the same file"),
        (["-i", "{folder}/none"], "Cannot read"),
        (["-i", "http://a.example/x?key=secret"], "--allow-urls"),
        (["-o", "https://a.example/x"], "--allow-urls"),
        (["-i", "http://", "--allow-urls"], "name a host"),
        (["-i", "http://127.0.0.1:1/x", "--allow-urls"], "not a public address"),
        (["--output-tmp-dir", "{folder}/none"], "no folder"),
    ],
)
def test_what_is_wrong_is_told_before_a_model_is_loaded(
    files: SimpleNamespace,
    model: type[FakeModel],
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    words: str,
) -> None:
    write(files, "a")
    assert run(files, *(flag.format(folder=files.folder) for flag in flags)) == 2
    error = capsys.readouterr().err
    assert words in error and "secret" not in error
    assert not model.started
    assert sorted(path.name for path in files.folder.iterdir()) == ["in.jsonl"]


def test_a_servers_settings_file_serves_a_batch_too(files: SimpleNamespace, model: type[FakeModel]) -> None:
    settings = files.folder / "settings.yaml"
    settings.write_text("api-key: [secret]\nserved-model-name: [mine]\nport: 1\n")
    write(files, "a", model="mine")
    assert run(files, "--config", str(settings), "--served-model-name", "mine") == 0
    assert answers(files)[0]["response"]["body"]["model"] == "mine"


def test_answers_are_gathered_where_one_says(
    files: SimpleNamespace, model: type[FakeModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered = files.folder / "tmp"
    gathered.mkdir()
    seen = []
    generate = FakeModel.generate

    def look(self: FakeModel, *arguments: Any, **options: Any) -> Any:
        seen.append([path.name for path in gathered.iterdir()])
        return generate(self, *arguments, **options)

    monkeypatch.setattr(model, "generate", look)
    write(files, "a")
    assert run(files, "--output-tmp-dir", str(gathered)) == 0
    assert seen == [["out.jsonl.part"]]
    assert not list(gathered.iterdir())


def test_files_may_lie_behind_urls(
    files: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(files, "a")
    stored = {}

    async def download(url: str, path: Path) -> None:
        assert url == "https://a.example/in.jsonl?key=secret"
        await asyncio.to_thread(path.write_bytes, files.input.read_bytes())

    async def upload(path: Path, url: str) -> None:
        stored[url] = await asyncio.to_thread(path.read_bytes)

    monkeypatch.setattr(launch, "download", download)
    monkeypatch.setattr(launch, "upload", upload)
    monkeypatch.chdir(files.folder)
    urls = ["-i", "https://a.example/in.jsonl?key=secret", "-o", "https://b.example/..%2Fmine.jsonl?key=secret"]
    assert run(files, *urls, "--allow-urls") == 0
    ((url, content),) = stored.items()
    assert url == urls[-1]
    assert json.loads(content)["custom_id"] == "id-0"
    assert "secret" not in capsys.readouterr().err
    # The copy here is named after the URL, without leaving the folder.
    assert {path.name for path in files.folder.iterdir()} == {"in.jsonl", "mine.jsonl"}


def test_metrics_are_served_meanwhile(
    files: SimpleNamespace, model: type[FakeModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, texts = free_port(), []
    generate = FakeModel.generate

    async def scrape(self: FakeModel, *arguments: Any, **options: Any) -> Any:
        text = await asyncio.to_thread(lambda: httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text)
        texts.append(text)
        async for output in generate(self, *arguments, **options):
            yield output

    monkeypatch.setattr(model, "generate", scrape)
    write(files, "a")
    assert run(files, "--enable-metrics", "--host", "127.0.0.1", "--port", str(port)) == 0
    assert "octavo:num_requests_running" in texts[0]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/metrics")


@pytest.mark.parametrize(
    ("wanted", "num_waiting", "expected"), [(None, None, 16), (3, None, 3), (None, 2, 10), (50, 4, 12), (1, 4, 1)]
)
def test_as_many_requests_as_the_engine_takes(wanted: int | None, num_waiting: int | None, expected: int) -> None:
    config = EngineConfig.from_kwargs(model="m", max_num_waiting=num_waiting)
    engine = FakeModel(config)
    engine.is_shut_down = True
    assert launch.fitting_inflight(engine, wanted) == expected  # type: ignore[arg-type]
