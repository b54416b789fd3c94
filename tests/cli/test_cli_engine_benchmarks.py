import json
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.bench import group_sizes
from octavo.bench.kernels_case import Setting, Work
from octavo.cli.bench_report import describe_environment
from octavo.cli.main import main

SMALL = {"num_gpu_blocks_override": 600, "num_threads": 1, "device": "cpu"}


@pytest.mark.long
def test_an_engine_beside_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    settings = json.dumps({**SMALL, "use_tqdm_on_load": False})
    flags = ["--cases", "latency", "--scale", "0.01", "--settings", settings, "--json", str(path)]
    against = ["--against", "octavo", "--against-settings", settings]
    assert main(["bench", "engine", "--model", "tiny", *flags, *against]) == 0
    assert "time to first token, 128 in (ms)" in capsys.readouterr().out
    result = json.loads(path.read_text())
    assert (result["kind"], result["model"]) == ("engine", "tiny")
    assert result["ceilings"]["read_bandwidth"] > 0
    assert len(result["engines"]) == 2
    for engine in result["engines"]:
        assert len(engine["turns"][0]["seconds"]["latency_1"]) == 5
        assert engine["figures"]["ttft_128_ms"] > 0
    assert {"octavo", "python", "torch"} <= result["versions"].keys()
    assert main(["bench", "results", str(path), "--markdown"]) == 0
    assert "| time per token, batch 1 (ms) |" in capsys.readouterr().out


@pytest.mark.long
def test_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.json"
    sizes = ["--batch", "1,3", "--context", "40", "--prefill-tokens", "80", "--device", "cpu"]
    assert main(["bench", "kernels", "--model", "tiny", *sizes, "--json", str(path)]) == 0
    assert "Only on a GPU: inputs and new tokens." in capsys.readouterr().out
    result = json.loads(path.read_text())
    assert [(part["phase"], part["num_rows"]) for part in result["parts"]] == [
        ("decode", 1),
        ("decode", 3),
        ("prefill", 2),
    ]
    for part in result["parts"]:
        assert all(kernel["error"] is None and kernel["seconds"] > 0 for kernel in part["kernels"])
    assert main(["bench", "results", str(path)]) == 0


def test_kernels_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--batch", "1", "--context", "8", "--prefill-tokens", "0", "--filter", "qkv", "--device", "cpu"]
    assert main(["bench", "kernels", "--model", "tiny", *flags]) == 0
    shown = capsys.readouterr().out
    assert "QKV GEMM" in shown and "head" not in shown


def test_kernels_with_a_quantised_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {}
    for dtype in ("auto", "int8_per_token_head"):
        path = tmp_path / dtype
        flags = ["--batch", "2", "--context", "64", "--prefill-tokens", "0", "--filter", "norms, rotation"]
        flags += ["--kv-cache-dtype", dtype, "--device", "cpu", "--json", str(path)]
        assert main(["bench", "kernels", "--model", "tiny", *flags]) == 0
        sizes[dtype] = {
            kernel["name"]: kernel["num_bytes"] for kernel in json.loads(path.read_text())["parts"][0]["kernels"]
        }
    attention = "attention with norms, rotation and cache"
    assert sizes["int8_per_token_head"].keys() == {attention} < sizes["auto"].keys()
    assert sizes["int8_per_token_head"][attention] < sizes["auto"][attention]


def test_group_sizes_are_compared_and_one_that_fails_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = (group_sizes.Load("decode", 2, 40), group_sizes.Load("prefill", 1, 24))
    monkeypatch.setattr(group_sizes, "LOADS", loads)
    make = group_sizes._CASE.make

    def make_but_two(setting: Setting) -> Work:
        if setting.phase == "prefill" and setting.config.num_heads == 2 * setting.config.num_kv_heads:
            raise RuntimeError("too large")
        return make(setting)

    monkeypatch.setattr(group_sizes, "_CASE", replace(group_sizes._CASE, make=make_but_two))
    path = tmp_path / "g.json"
    flags = ["--model", "tiny", "--group-sizes", "1,2,3", "--device", "cpu", "--json", str(path)]
    assert main(["bench", "kernels", *flags]) == 1
    shown = capsys.readouterr()
    assert "head size 64, prefill, 1 × 24, group size 2: RuntimeError: too large" in shown.err
    result = json.loads(path.read_text())
    assert [part["head_dim"] for part in result["parts"]] == [64, 128]
    for part in result["parts"]:
        decode, prefill = part["loads"]
        assert [size["group_size"] for size in decode["sizes"] if size["seconds"] > 0] == [1, 2, 3]
        assert decode["sizes"][0]["num_bytes"] < decode["sizes"][2]["num_bytes"]
        assert [size["seconds"] is None for size in prefill["sizes"]] == [False, True, False]
    assert main(["bench", "results", str(path)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert sum(row[:1] == ["2"] and row[-1] == "failed" for row in rows) == 2
    assert sum("100%" in row for row in rows) >= 2


@pytest.mark.parametrize("case", ["decode", "prefill", "mixed"])
def test_profiles(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--case", case, "--batch", "2", "--steps", "3", "--input-len", "20", "--out", str(tmp_path / "out")]
    settings = ["--num-gpu-blocks-override", "100", "--num-threads", "1", "--device", "cpu", "--max-model-len", "400"]
    assert main(["profile", "tiny", *flags, *settings, "--no-use-tqdm-on-load"]) == 0
    assert f"{case}, batch 2" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"trace.json.gz", "profile.json", "profile.svg"}
    result = json.loads((tmp_path / "out" / "profile.json").read_text())
    assert result["busy_seconds"] > 0
    assert result["num_steps"] == 3
    assert {"GEMM", "attention", "norms"} <= {group["name"] for group in result["groups"]}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["bench", "engine", "--cases", "speed"], "There is no case 'speed'"),
        (["bench", "engine", "--scale", "0"], "--scale must be above 0"),
        (["bench", "engine", "--rounds", "0"], "--rounds must be at least 1"),
        (["bench", "engine", "--model", "/nowhere/at/all"], "/nowhere/at/all"),
        (["bench", "kernels", "--batch", "1,x"], "--batch takes numbers"),
        (["bench", "kernels", "--batch", "0"], "--batch takes numbers"),
        (["bench", "kernels", "--group-sizes", "0,1"], "--group-sizes takes numbers"),
        (["bench", "results"], "Name files of results"),
        (["bench", "results", "/nowhere.json"], "Cannot read /nowhere.json"),
        (["profile", "--steps", "0"], "--steps must be at least 1"),
        (["profile", "--case", "speed"], "invalid choice"),
    ],
)
def test_wrong_flags_are_refused(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) in (1, 2)
    shown = capsys.readouterr().err
    assert shown.startswith("octavo: error: ") and sentence in shown


def test_results_name_no_folders_of_one_machine() -> None:
    environment = describe_environment("octavo bench engine", ["--model", "tiny", "--json", "/home/me/result.json"])
    assert environment["command"] == "octavo bench engine --model tiny --json result.json"
