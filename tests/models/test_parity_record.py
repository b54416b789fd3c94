"""``tests/parity/record.py`` writes what a run showed, and does not let a part of the tests pass for all."""

import sys
from pathlib import Path
from textwrap import dedent

import pytest

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "parity"))
import record
from tiny_llama import write_model

from octavo.models.parity import ParityRecord, read_record

MODULE = """
    import pytest
    from octavo import LLM

    @pytest.mark.parametrize("model_impl", ["auto", "transformers"])
    def test_a_model(model_impl):
        sizes = {{"num_gpu_blocks_override": 64, "num_threads": 1, "max_model_len": 32}}
        LLM({folder!r}, device="cpu", model_impl=model_impl, skip_tokenizer_init=True, **sizes).shutdown()

    def test_that_fails():
        test_a_model("auto")
        assert False

    def test_that_does_not_start():
        LLM({folder!r}, device="cpu", hf_overrides={{"hidden_size": 33, "rms_norm_eps": "no"}})

    def test_of_what_does_not_start():
        with pytest.raises(ValueError):
            LLM({folder!r}, device="cpu", hf_overrides={{"num_hidden_layers": -1}})

    def test_without_a_model():
        pass

    @pytest.mark.slow
    def test_of_another_day():
        pass
"""
NAME = "LlamaForCausalLM"


@pytest.fixture
def run(pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "model"
    folder.mkdir()
    write_model(folder)
    pytester.makeini("[pytest]\nmarkers = slow: long")
    pytester.mkdir("parity").joinpath("test_models.py").write_text(dedent(MODULE).format(folder=str(folder)))
    pytester.mkpydir("elsewhere").joinpath("test_others.py").write_text("def test_of_no_parity():\n    pass\n")
    monkeypatch.setattr(record, "FOLDER", pytester.path / "parity")

    def run_tests(*arguments: str) -> ParityRecord | None:
        watcher = record.Watcher()
        recorder = record.Recorder(pytester.path / "parity.json", watcher)
        words = ("-p", "no:cacheprovider", "-m", "not slow", *arguments)
        pytester.inline_run(*words, plugins=[watcher, recorder])
        return read_record(recorder.path)

    return run_tests


def test_a_run_is_recorded_by_the_models_that_its_tests_start(run) -> None:
    found = run()
    assert (found.run.is_whole, found.run.num_run, found.run.num_failed) == (True, 6, 2)
    assert found.octavo[NAME].passed == {"test_models.py": ["test_a_model[auto]"]}
    assert found.octavo[NAME].failed == {"test_models.py": ["test_that_does_not_start", "test_that_fails"]}
    assert found.transformers[NAME].passed == {"test_models.py": ["test_a_model[transformers]"]}


@pytest.mark.long
def test_a_part_is_no_whole_run_and_replaces_none(run) -> None:
    part = run("-k", "auto")
    assert (part.run.is_whole, part.run.num_run) == (False, 1)
    whole = run()
    assert whole.run.is_whole
    for words in (["-k", "auto"], ["-x"], ["parity/test_models.py::test_a_model"], ["--ignore", "parity"]):
        assert run(*words) == whole
