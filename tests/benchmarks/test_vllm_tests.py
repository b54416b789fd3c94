"""The tool that runs vLLM's own tests: what it selects, what it serves, what it reports."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.vllm_tests import report, rules
from benchmarks.vllm_tests.outcomes import INTERNAL, internal_tests, outcome


@pytest.mark.parametrize(
    ("path", "group"),
    [
        ("tests/entrypoints/openai/responses/test_basic.py::test_chat", "responses"),
        ("tests/entrypoints/openai/test_chunked_prompt.py", "openai"),
        ("tests/entrypoints/llm/test_chat.py", "offline"),
        ("tests/kernels/test_gemm.py", None),
    ],
)
def test_a_file_belongs_to_the_closest_group(path: str, group: str | None) -> None:
    assert rules.group_of(path) == group


def test_flags_of_other_models_are_dropped_and_the_context_fits() -> None:
    given = ["--dtype", "half", "--max-model-len", "32768", "--revision=abc", "--enforce-eager"]
    assert rules.translate(given, 2048) == ["--max-model-len", "2048", "--enforce-eager"]
    assert rules.translate(["--max-model-len", "512"], 2048) == ["--max-model-len", "512"]
    assert rules.translate([], 2048) == ["--max-model-len", "2048"]


def test_what_no_model_can_stand_in_for_has_a_reason() -> None:
    assert rules.stand_in("Qwen/Qwen3-0.6B").reason is None
    assert rules.stand_in("openai/gpt-oss-20b").reason == "needs gpt-oss's weights"
    assert rules.reason_for_arguments(["--enable-lora"]) == "needs LoRA adapters"
    assert rules.reason_for_arguments(["--data-parallel-size=1"]) is None


def test_settings_in_python_follow_the_same_rules() -> None:
    given = {"dtype": "half", "max_model_len": None, "trust_remote_code": True, "tokenizer_name": "x", "seed": 0}
    assert rules.translate_options(given, 2048) == {"max_model_len": 2048, "seed": 0}
    assert rules.translate_options({"max_model_len": 20}, 2048) == {"max_model_len": 20}
    assert rules.reason_for_options({"enable_lora": True}) == "needs LoRA adapters"
    assert rules.reason_for_options({"enable_lora": False}) is None


def test_a_file_that_starts_nothing_drives_vllms_own_code(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_one(): ...\nasync def test_two(): ...\ndef helper(): ...\n")
    (tmp_path / "test_b.py").write_text("server = RemoteOpenAIServer\ndef test_one(): ...\n")
    found = internal_tests(tmp_path, Path("test_a.py"))
    assert [line["test"] for line in found] == ["test_a.py::test_one", "test_a.py::test_two"]
    assert internal_tests(tmp_path, Path("test_b.py")) == []


def test_the_last_outcome_counts_and_rates_leave_deselected_tests_out() -> None:
    a, b, c = (f"tests/entrypoints/serve/test_x.py::{name}" for name in "abc")
    lines = [outcome(a, "passed", ""), outcome(b, "passed", ""), outcome(b, "failed", "broke\nhere")]
    groups = report.collect([*lines, outcome(c, "deselected", f"{INTERNAL}: vllm.X")])
    assert (groups["serve"].passed, list(groups["serve"].failed), groups["serve"].rate) == ([a], [b], 50.0)
    assert "| serve | 1 | 1 | 1 | 50.0 % |" in report.table(groups)
    assert "broke / here" in report.details(groups) and f"1 {INTERNAL}" in report.details(groups)


@pytest.mark.long
def test_stand_ins_complete_the_compatibility_package() -> None:
    """What the package mirrors is Octavo's; of the rest, using it deselects the test that does."""
    code = (
        "from benchmarks.vllm_tests import helpers, standins\n"
        "standins.install()\n"
        "import octavo, vllm, vllm.config\n"
        "from vllm.platforms import current_platform\n"
        "from vllm.v1.worker.gpu import Runner\n"
        "assert vllm.SamplingParams is octavo.SamplingParams\n"
        "assert isinstance(vllm.config.SpeculativeConfig, standins.Missing) and isinstance(Runner, standins.Missing)\n"
        "assert current_platform is helpers.PROVIDED['vllm.platforms']['current_platform']\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
