"""The comparison of engines on a CPU: which ones meet, what a turn measures, and tables of recorded figures."""

import sys
from pathlib import Path
from random import Random
from typing import Any

import gguf
import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # its scripts import each other by their own names

import cpu_peers
import cpu_peers_models
import cpu_peers_report
import cpu_peers_turns
import cpu_peers_worker

FILES = {name: Path(f"{name}.gguf") for name in ("q4_1", "bf16", "q4_0")}
MODEL = cpu_peers_models.ModelFiles("a-model", "q4_1", FILES, Path("folder"), 23_040)


def figures(rate: float, size: float) -> dict[str, float]:
    return {name: rate if figure.is_rate else size for name, figure in cpu_peers_report.FIGURES.items()}


def turn(contestant: str, setting: str, rate: float, size: float) -> dict[str, Any]:
    return {"contestant": contestant, "setting": setting, "figures": figures(rate, size)}


TURNS = [
    *(turn("octavo bf16", "", rate, 300.0) for rate in (120.0, 10.0, 90.0)),
    *(turn("llama.cpp bf16", "flash", rate, 200.0) for rate in (50.0, 61.0, 60.0)),
    *(turn("llama.cpp bf16", "plain", rate, 150.0) for rate in (70.0, 30.0, 30.0)),
    turn("octavo int4", "int4", 200.0, 100.0),
    turn("llama.cpp q4_0", "flash", 100.0, 110.0),
]


def test_the_best_setting_counts_by_its_median() -> None:
    found = cpu_peers_report.medians(TURNS)
    assert found["octavo bf16"] == figures(90.0, 300.0)
    assert found["llama.cpp bf16"] == figures(60.0, 150.0)


def test_ratios_are_above_one_where_octavo_is_better() -> None:
    found = cpu_peers_report.ratios(cpu_peers_report.medians(TURNS))
    assert found == {
        "octavo bf16 / llama.cpp bf16": figures(1.5, 0.5),
        "octavo int4 / llama.cpp q4_0": figures(2.0, 1.1),
    }


def test_tables_name_who_is_left_out() -> None:
    found = cpu_peers_report.medians(TURNS)
    missing = {"huggingface": "No module named 'torch'"}
    text = cpu_peers_report.tables(
        "smollm2", {"medians": found, "ratios": cpu_peers_report.ratios(found), "left_out": missing}
    )
    lines = text.splitlines()
    assert lines[0] == "smollm2: medians"
    assert "octavo bf16 / llama.cpp bf16" in text
    assert lines[-1] == "Left out: huggingface. No module named 'torch'"
    [decode] = [line for line in lines if line.startswith("decode, batch 1 (tok/s)") and "60.0" in line]
    assert decode.split()[-4:] == ["90.0", "60.0", "200", "100"]


def test_nothing_measured_is_said(tmp_path: Path) -> None:
    result = {"medians": {}, "ratios": {}, "left_out": {"octavo": "It broke."}}
    assert cpu_peers_report.tables("smollm2", result) == "smollm2: nothing was measured\n\nLeft out: octavo. It broke."
    cpu_peers_report.plot({"smollm2": result}, tmp_path / "plot.svg")
    assert not (tmp_path / "plot.svg").exists()


def test_each_engine_gets_the_weights_that_it_reads() -> None:
    found = cpu_peers_turns.contestants(["octavo", "llama.cpp", "huggingface"], None, MODEL)
    assert {one.name: str(one.path(MODEL)) for one in found} == {
        "octavo bf16": "folder",
        "llama.cpp bf16": "bf16.gguf",
        "huggingface bf16": "folder",
        "octavo q4_1": "q4_1.gguf",
        "llama.cpp q4_1": "q4_1.gguf",
        "octavo q4_0": "q4_0.gguf",
        "llama.cpp q4_0": "q4_0.gguf",
        "octavo int8": "folder",
        "octavo int4": "folder",
    }
    assert [one.name for one in cpu_peers_turns.contestants(["llama.cpp"], ["q4_0", "int8"], MODEL)] == [
        "llama.cpp q4_0"
    ]


def test_a_turn_that_fails_or_takes_too_long_is_left_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def run(contestant: cpu_peers_turns.Contestant, setting: str, *_: object) -> dict[str, Any]:
        tried.append((contestant.name, setting))
        if setting == "plain":
            raise cpu_peers_turns.TurnError("It took longer than 300 seconds.")
        return {"figures": figures(1.0, 1.0)}

    monkeypatch.setattr(cpu_peers, "run_turn", run)
    entered = cpu_peers_turns.contestants(["octavo", "llama.cpp"], ["bf16"], MODEL)
    bare = {"octavo": 0.0, "llama.cpp": 0.0}
    machine = cpu_peers_turns.Machine(cpu_peers_turns.default_pythons("python"), 2, 300.0)
    found = cpu_peers.measure_model(MODEL, entered, 2, machine, bare)
    octavo, flash, plain = ("octavo bf16", ""), ("llama.cpp bf16", "flash"), ("llama.cpp bf16", "plain")
    assert tried == [octavo, flash, plain, octavo, flash]
    assert found["left_out"] == {"llama.cpp bf16 (plain)": "It took longer than 300 seconds."}
    assert found["ratios"] == {"octavo bf16 / llama.cpp bf16": figures(1.0, 1.0)}


def test_rates_leave_the_first_token_to_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def generate(prompts: list[list[int]], output_len: int) -> list[list[int]]:
        nonlocal now
        now += 3.0 + 0.5 * (output_len - 1)
        return [[7] * output_len for _ in prompts]

    monkeypatch.setattr(cpu_peers_worker.time, "perf_counter", lambda: now)
    rates = {
        name: cpu_peers_worker.tokens_per_second(generate, workload, Random(0))
        for name, workload in cpu_peers_worker.WORKLOADS.items()
    }
    assert rates == {
        "decode_1": 2.0,
        "decode_16": 32.0,
        "prefill_512": pytest.approx(512 / 3),
        "mixed_16": pytest.approx(16 * 128 / (3 + 127 / 2)),
    }


def test_an_answer_of_another_length_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"these lengths came: \[1\]"):
        cpu_peers_worker.tokens_per_second(
            lambda prompts, output_len: [[7]], cpu_peers_worker.WORKLOADS["decode_1"], Random(0)
        )


@pytest.mark.parametrize(
    ("weights", "matrix", "table", "error"),
    [("bf16", "BF16", "BF16", 0.01), ("q8_0", "Q8_0", "Q8_0", 0.02), ("q4_0", "Q4_0", "Q8_0", 0.4)],
)
def test_other_types_are_made_from_a_file(tmp_path: Path, weights: str, matrix: str, table: str, error: float) -> None:
    source, target = tmp_path / "source.gguf", tmp_path / "target.gguf"
    values = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(source, "llama")
    writer.add_block_count(2)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_token_list(["a", "b"])
    for name in ("token_embd.weight", "blk.0.attn_q.weight"):
        writer.add_tensor(name, values.astype(np.float16))
    writer.add_tensor("output_norm.weight", values[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    cpu_peers_models.write_gguf(gguf.GGUFReader(source), target, weights)

    made = gguf.GGUFReader(target)
    fields = {name: field.contents() for name, field in made.fields.items()}
    assert (fields["llama.block_count"], fields["tokenizer.ggml.tokens"]) == (2, ["a", "b"])
    assert fields["general.file_type"] == cpu_peers_models.LlamaFileType[f"MOSTLY_{weights.upper()}"]
    types = {tensor.name: tensor.tensor_type.name for tensor in made.tensors}
    assert types == {"token_embd.weight": table, "blk.0.attn_q.weight": matrix, "output_norm.weight": "F32"}
    for tensor in made.tensors[:2]:
        np.testing.assert_allclose(gguf.dequantize(tensor.data, tensor.tensor_type), values, atol=error)


def test_a_model_that_was_not_fetched_says_how_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_TEST_WEIGHTS", str(tmp_path))
    monkeypatch.delenv("OCTAVO_TEST_GEMMA3_270M", raising=False)
    with pytest.raises(cpu_peers_models.ModelNotFoundError, match=r"fetch_weights\.py gemma3-270m"):
        cpu_peers_models.find("gemma3-270m")
