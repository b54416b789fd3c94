"""Scripts and commands leave nothing on standard error that Octavo did not mean to say."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_llama import write_model

SETTINGS = "max_model_len=64, kv_cache_memory_bytes=1 << 20, num_threads=1"
GENERATE = f"""
from octavo import LLM, SamplingParams
llm = LLM({{folder!r}}, {SETTINGS})
llm.generate("a", SamplingParams(max_tokens=2, structured_outputs={{structured}}), use_tqdm=False)
"""
CHOICE = """__import__("octavo").records.StructuredOutputsParams(json={"type": "object"})"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


def errors_of(*command: str, end_with: signal.Signals | None = None) -> list[str]:
    """Lines that a Python process leaves on standard error.

    Args:
        end_with: sent as soon as it says where it listens.
    """
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line.rstrip())
        if end_with is not None and "Listening on" in line:
            process.send_signal(end_with)
    assert process.wait(180) == 0, lines
    return lines


@pytest.mark.long
@pytest.mark.sample(1)
@pytest.mark.parametrize("structured", [True, False])
def test_a_script(folder: Path, structured: bool) -> None:
    script = GENERATE.format(folder=str(folder), structured=CHOICE if structured else None)
    assert errors_of("-c", script) == []


@pytest.mark.long
def test_bindings_that_the_engine_has_loaded(folder: Path) -> None:
    """On a GPU the engine imports Triton, whose bindings report what is alive when the interpreter ends."""
    pytest.importorskip("triton")
    script = "import triton, triton.language" + GENERATE.format(folder=str(folder), structured=None)
    assert errors_of("-c", script) == []


@pytest.mark.long
def test_a_chat(folder: Path) -> None:
    flags = ("--quick", "a", "--max-tokens", "2", "--max-model-len", "64", "--kv-cache-memory-bytes", "1MiB")
    assert errors_of("-m", "octavo.cli.main", "chat", str(folder), *flags) == [
        "The answer is cut at max_tokens (2); --max-tokens sets the limit."
    ]


@pytest.mark.long
def test_a_server_that_ctrl_c_stops(folder: Path) -> None:
    flags = ("--port", "0", "--max-model-len", "64", "--kv-cache-memory-bytes", "1MiB", "--log-format", "json")
    lines = errors_of("-m", "octavo.cli.main", "serve", str(folder), *flags, end_with=signal.SIGINT)
    messages = [json.loads(line)["message"].partition(" ")[0] for line in lines]
    assert messages == [
        *("Start:", "Start:", "Computing", "Loading", "Start:", "Start:", "Start:", "Start:"),
        *("Listening", "Shutting"),
    ]
