import json
from pathlib import Path

import pytest
from fake_openai import FakeServer

from octavo.cli.main import main

RANDOM = ["--skip-tokenizer-init", "--random-input-len", "6", "--random-output-len", "3", "--disable-tqdm"]


def test_a_server_under_load(openai_server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--num-prompts", "20", "--num-warmups", "2", "--request-rate", "2000", "--max-concurrency", "4"]
    sampling = ["--ignore-eos", "--temperature", "0", "--extra-body", '{"priority": 1}', "--request-id-prefix", "r"]
    result = ["--save-result", "--save-detailed", "--result-dir", str(tmp_path), "--result-filename", "r.json"]
    metadata = ["--metadata", "gpu=none", "--goodput", "ttft:100000"]
    url = ["--base-url", openai_server.url, "--header", "X-One=1"]
    assert main(["bench", "serve", *url, *RANDOM, *options, *sampling, *result, *metadata]) == 0
    assert "20 requests done" in capsys.readouterr().out
    figures = json.loads((tmp_path / "r.json").read_text())
    assert (figures["completed"], figures["failed"], figures["gpu"]) == (20, 0, "none")
    assert (figures["total_input_tokens"], figures["total_output_tokens"]) == (140, 60)
    assert figures["request_goodput"] == pytest.approx(figures["request_throughput"])
    assert len(figures["ttfts"]) == len(figures["itls"]) == 20
    assert figures["p99_e2el_ms"] >= figures["median_e2el_ms"] > 0
    assert len(openai_server.requests) == 22
    request = openai_server.requests[-1]
    assert len(request["prompt"]) == 6
    assert (request["max_tokens"], request["ignore_eos"], request["temperature"]) == (3, True, 0.0)
    assert (request["priority"], request["model"], request["stream"]) == (1, "fake-model", True)
    assert openai_server.headers[-1]["X-One"] == "1"
    assert len({request["request_id"] for request in openai_server.requests}) == 22


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_prompts_from_a_file(backend: str, openai_server: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"prompt": "Hello there", "output_tokens": 3}\n{"prompt": "Good day", "output_tokens": 5}\n')
    dataset = ["--dataset-name", "custom", "--dataset-path", str(path), "--disable-shuffle", "--num-prompts", "3"]
    plots = ["--plot-timeline", "--plot-dataset-stats", "--output-json", str(tmp_path / "r.json")]
    url = ["--base-url", openai_server.url, "--tokenizer", "bundled:smollm2", "--trust-remote-code"]
    assert main(["bench", "serve", *url, *dataset, *plots, "--backend", backend, "--disable-tqdm"]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["dataset_name"] == "custom"
    field = "max_tokens" if backend == "openai" else "max_completion_tokens"
    assert sorted(request[field] for request in openai_server.requests) == [3, 3, 5]
    if backend == "openai-chat":
        texts = {request["messages"][0]["content"] for request in openai_server.requests}
        assert texts == {"Hello there", "Good day"}


def test_aborts(openai_server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    openai_server.is_endless = True
    url = ["--base-url", openai_server.url]
    assert main(["bench", "serve", *url, *RANDOM, "--num-prompts", "5", "--abort-fraction", "1"]) == 0
    assert "0 requests done, 5 aborted, 0 failed" in capsys.readouterr().out
    assert openai_server.hung_up.wait(20)


def test_failed_requests_make_the_status_1(openai_server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    openai_server.error = (503, "Too busy.")
    assert main(["bench", "serve", "--base-url", openai_server.url, *RANDOM, "--num-prompts", "3"]) == 1
    assert "failed: status 503" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--num-prompts", "0"],
        ["--max-concurrency", "0"],
        ["--request-rate", "0"],
        ["--abort-fraction", "2"],
        ["--random-range-ratio", "1"],
        ["--percentile-metrics", "speed"],
        ["--metric-percentiles", "101"],
        ["--goodput", "ttft"],
        ["--base-url", "nonsense"],
        ["--backend", "openai-chat"],
        ["--header", "X"],
        ["--dataset-name", "sharegpt"],
        ["--dataset-path", "/there/is/none"],
        ["--dataset-name", "custom", "--dataset-path", "/there/is/none"],
        ["--timeline-itl-thresholds", "0"],
    ],
)
def test_wrong_flags_are_refused(
    arguments: list[str], openai_server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    url = ["--base-url", openai_server.url]
    assert main(["bench", "serve", *url, *RANDOM, *arguments]) == 2
    assert capsys.readouterr().err.startswith("octavo: error: ")
    assert not openai_server.requests


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--base-url", "http://127.0.0.1:9", *RANDOM]) == 1
    assert "does not answer" in capsys.readouterr().err
