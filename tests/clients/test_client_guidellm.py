"""GuideLLM: a short benchmark of its own against the server, without a network."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("guidellm", reason="guidellm is not installed")
NUM_REQUESTS = 5


@pytest.mark.parametrize("request_format", ["/v1/chat/completions", "/v1/completions"])
def test_benchmark(server_url: str, tmp_path: Path, request_format: str) -> None:
    data, report = tmp_path / "data.jsonl", tmp_path / "report.json"
    lines = [{"prompt": f"Question {number}?", "output_tokens_count": 18} for number in range(2 * NUM_REQUESTS)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [
        *(sys.executable, "-m", "guidellm", "run", "--disable-progress"),
        *("--backend", f"kind=openai_http,target={server_url},model=fake/model,request_format={request_format}"),
        *("--profile", "kind=synchronous", "--constraint", f"kind=max_requests,count={NUM_REQUESTS}"),
        *("--data", f"kind=json_file,path={data}", "--output", f"kind=json,path={report}"),
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    totals: dict[str, Any] = json.loads(report.read_text())["benchmarks"][0]["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (NUM_REQUESTS, 0)
