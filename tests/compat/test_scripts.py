"""Scripts written for vLLM run unchanged; see ``scripts.py``."""

from pathlib import Path

import pytest
from compat import scripts
from compat.conftest import Run, run_python


def test_basic(run_script: Run, folder: Path) -> None:
    assert run_script(scripts.BASIC, str(folder)).splitlines() == [
        "'Hello, my name is' 8 length",
        "'The capital of France is' 8 length",
        "'The future of AI is' 8 length",
        "256 []",
        "16 None None None",
    ]


def test_chat_with_flags(run_script: Run, folder: Path) -> None:
    flags = ["--max_model_len", "200", "--device=cpu", "--num-threads", "1", "--num-gpu-blocks-override", "129"]
    found = run_script(scripts.CHAT, str(folder), *flags, "--max-num-seqs", "4", "--temperature", "0.5")
    assert found.splitlines() == [
        "<system>Be kind.<user>Hi<A> [5, 5]",
        "<system>Be kind.<user>Hi",
        "4",
    ]


def test_engine_stepped_by_hand(run_script: Run, folder: Path) -> None:
    *finished, last = run_script(scripts.ENGINE, str(folder)).splitlines()
    assert sorted(finished) == ["0 [4]", "1 [3]", "2 [9, 9]"]
    assert last == "0 ('generate',) 257"


@pytest.mark.long
def test_streams_of_an_engine_in_its_own_process(folder: Path, tmp_path: Path) -> None:
    """The engine's process finds ``vllm`` as well, which a logits processor imports there."""
    (tmp_path / "processors.py").write_text(scripts.PROCESSORS)
    script = tmp_path / "stream.py"
    script.write_text(f"import os\nos.environ['PYTHONPATH'] = {str(tmp_path)!r} + ':' + os.environ['PYTHONPATH']\n")
    script.write_text(script.read_text() + scripts.STREAM)
    found = run_python("-m", "octavo.compat", str(script), str(folder), "processors")
    assert found.splitlines() == ["stream-1 6", "stream-2 6", "'bbb'", "256 257 False", "True"]


def test_logits_processors(run_script: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "processors.py").write_text(scripts.PROCESSORS)
    first, second, third, error = run_script(scripts.LOGITS, str(folder), str(tmp_path)).splitlines()
    assert (first, third) == ("[65, 65, 65, 65]", "[66, 66, 66, 66]")
    assert second not in (first, third)
    assert "target_token value A" in error


def test_metrics(run_script: Run, folder: Path) -> None:
    assert sorted(run_script(scripts.METRICS, str(folder)).splitlines()) == [
        "vllm:e2e_request_latency_seconds histogram 2 2 True",
        "vllm:generation_tokens counter 10",
        "vllm:num_requests_running gauge 0.0",
    ]


def test_embeddings(run_script: Run, folder: Path) -> None:
    assert run_script(scripts.EMBED, str(folder)).splitlines() == ["32", "32"]


def test_beams_forms_and_what_is_rejected(run_script: Run, folder: Path) -> None:
    assert run_script(scripts.BEAMS, str(folder)).splitlines() == [
        "3 None",
        "True",
        "lora_request is not supported: LoRA adapters are not supported yet.",
        "mm_processor_kwargs is not supported: nothing here reads it.",
        "tokenization_kwargs['padding'] is not supported: nothing here reads it.",
        "True",
        "[0]",
    ]


@pytest.mark.long
@pytest.mark.parametrize("how", ["module", "import"])
def test_spawned_processes_find_the_mirror(folder: Path, tmp_path: Path, how: str) -> None:
    script = tmp_path / "parallel.py"
    script.write_text(("import octavo.compat.vllm\n" if how == "import" else "") + scripts.PARALLEL)
    start = ["-m", "octavo.compat"] if how == "module" else []
    assert run_python(*start, str(script), str(folder)).splitlines() == ["[(0, 3), (1, 4)]"]
