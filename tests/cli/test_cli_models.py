import json

import msgspec
import pytest

from octavo.cli.main import main
from octavo.hub.families.registry import FAMILIES
from octavo.models.parity import ArchitectureCases, ParityRecord, ParityRun, read_record

VERSIONS = {"octavo": "0.1", "torch": "2.9", "transformers": "5.1"}
RUN = ParityRun(date="2026-01-31", **VERSIONS, devices=["a CPU"], is_whole=True, num_run=40, num_failed=1)
QWEN3 = ArchitectureCases({"test_tiny_models.py": ["test_a[qwen3]", "test_b[qwen3]"]}, {"test_ray.py": ["test_c"]})
NANO = ArchitectureCases({"test_tiny_models.py": ["test_a[nano]"]}, {})
RECORD = ParityRecord(RUN, {"Qwen3ForCausalLM": QWEN3}, {"NanoChatForCausalLM": NANO})


@pytest.fixture(autouse=True)
def record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.cli.models.read_record", lambda: RECORD)


def rows(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """Architecture → the other columns, without the heading."""
    table = capsys.readouterr().out.split("\n\n")[0].splitlines()[1:]
    return {name: rest.split() for name, rest in (line.split(maxsplit=1) for line in table)}


def test_a_filter_leaves_the_architectures_that_match(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "qwen3"]) == 0
    found = rows(capsys)
    assert set(found) == {"Qwen3ForCausalLM", "Qwen3MoeForCausalLM"}
    assert found["Qwen3ForCausalLM"] == ["text", "octavo.models.qwen3", "own", "2", "passed,", "1", "failed"]


def test_a_filter_finds_what_models_are_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "Reranking"]) == 0
    found = rows(capsys)
    assert {"BertForSequenceClassification", "HF_ColBERT"} <= set(found)
    assert not {"BertModel", "LlamaForCausalLM"} & set(found)


def test_all_architectures_and_those_of_the_library_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    printed = capsys.readouterr().out
    lines = printed.split("\n\n")[0].splitlines()[1:]
    assert {line.split()[0] for line in lines} == {*FAMILIES, *RECORD.transformers}
    versions = "Octavo 0.1, torch 2.9 and transformers 5.1"
    assert f"last run 2026-01-31 with {versions} on a CPU: all 40 tests, 1 failed." in printed


def test_json_says_which_tests_ran(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json", "nanochat"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["parity_run"]["date"], found["parity_run"]["is_whole"]) == ("2026-01-31", True)
    (entry,) = found["architectures"]
    assert entry == {
        "architecture": "NanoChatForCausalLM",
        "purpose": "text",
        "module": "octavo.models.generic.model",
        "layers": "transformers",
        "parity": {"num_passed": 1, "num_failed": 0, "passed": NANO.passed, "failed": {}},
    }


def test_an_architecture_that_never_ran(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "splade"]) == 0
    assert rows(capsys)["BertSpladeSparseEmbeddingModel"][-2:] == ["never", "run"]
    assert main(["models", "splade", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["architectures"][0]["parity"] is None


def test_without_any_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("octavo.cli.models.read_record", lambda: None)
    assert main(["models", "qwen3"]) == 0
    assert "Parity with Hugging Face: never run." in capsys.readouterr().out


def test_a_partial_run_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    part = msgspec.structs.replace(RUN, is_whole=False, num_run=3, num_failed=0)
    monkeypatch.setattr("octavo.cli.models.read_record", lambda: ParityRecord(part, {}, {}))
    assert main(["models"]) == 0
    assert "only 3 of the tests, none failed." in capsys.readouterr().out


def test_nothing_that_matches_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "nonesuch"]) == 2
    assert "'nonesuch'" in capsys.readouterr().err


def test_the_record_of_the_package_names_architectures_that_load() -> None:
    record = read_record()
    assert record is None or set(record.octavo) <= set(FAMILIES)
