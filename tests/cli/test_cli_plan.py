import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_groups import cache_groups
from safetensors.numpy import save_file

from octavo.cli.collect_env import relevant_variables
from octavo.cli.main import main
from octavo.cli.plan import format_size, report
from octavo.records import Decision, MemoryPart, Plan

PLAN = Plan(
    dtype="bfloat16",
    max_model_len=1000,
    block_size=16,
    num_blocks=126,
    block_bytes=4,
    groups=cache_groups(None, block_size=16),
    max_num_seqs=4,
    max_num_batched_tokens=64,
    enable_prefix_caching=True,
    enable_chunked_prefill=True,
    scheduling_policy="fcfs",
    num_steps_ahead=0,
    memory=(MemoryPart("weights", 3 << 30, "all of them"), MemoryPart("key/value cache", 1 << 30)),
    cache_tokens=2000,
    decode_limit=123.4,
    decisions=(Decision("dtype", "bfloat16", "fast here"),),
)


def test_the_report_tells_memory_cache_speed_and_reasons() -> None:
    lines = [" ".join(line.split()) for line in report("some-model", "a device", PLAN).splitlines()]
    assert lines[0] == "some-model on a device"
    assert "weights 3.00 GiB all of them" in lines
    assert "together 4.00 GiB" in lines
    assert "2000 tokens in 125 blocks of 16" in lines
    assert "2.0 sequences of the greatest length, 1000 tokens" in lines
    assert any(line.startswith("123 tokens/s") for line in lines)
    assert "dtype bfloat16 fast here" in lines


def test_a_plan_for_a_gpu_that_is_not_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 64,
        "max_position_embeddings": 64,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(shape))
    assert main(["plan", str(tmp_path), "--device-memory", "80GiB", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["device"] == "a GPU of 80.00 GiB"
    assert plan["max_num_batched_tokens"] == 16384
    assert {"device context", "weights", "graphs", "key/value cache"} <= {part["name"] for part in plan["memory"]}
    assert main(["plan", str(tmp_path), "--device-memory", "80GiB", "--json", "-tp", "2"]) == 0
    divided = json.loads(capsys.readouterr().out)
    (decision,) = (found for found in divided["decisions"] if found["name"] == "tensor_parallel_size")
    assert "rank 0 in the engine's process" in decision["reason"] and "per device" in decision["reason"]
    weights, own = (
        next(part["num_bytes"] for part in found["memory"] if part["name"] == "weights") for found in (plan, divided)
    )
    assert weights / 2 <= own < 0.6 * weights


def test_a_named_gpu_has_a_speed_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    assert main(["plan", str(tmp_path), "--gpu", "h200"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "on NVIDIA H200, 140.40 GiB" in printed
    assert "tokens/s for one request" in printed
    assert "feed-forward bfloat16 72.0 KiB 0.000 ms a token" in printed
    assert main(["plan", str(tmp_path), "--gpu", "h2000"]) != 0
    assert "--gpu is 'h2000'; it is one of a100" in capsys.readouterr().err


SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "torch_dtype": "bfloat16",
}
QUIP = {"quantization_config": {"quant_method": "quip"}}
OWN_CODE = {"architectures": ["OddForCausalLM"], "auto_map": {"AutoModelForCausalLM": "modeling_odd.OddForCausalLM"}}


@pytest.mark.parametrize(
    ("changes", "flags", "sentence"),
    [
        ({}, [], "safetensors"),
        (QUIP, [], "holds quantised weights ('quip')"),
        (QUIP, ["--device-memory", "80GiB"], "holds quantised weights ('quip')"),
        ({}, ["--load-format", "gguf"], "load_format is 'gguf'"),
        ({}, ["--load-format", "dummy"], "tokenizer"),
        (OWN_CODE, ["--trust-remote-code"], "Octavo never runs such code"),
    ],
)
def test_what_serve_would_reject_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], flags: list[str], sentence: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPE | changes))
    assert main(["plan", str(tmp_path), *flags]) != 0
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert ("Memory" in printed.out) == (changes is not OWN_CODE)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--chat-template", "{% if %}"], "template"),
        (["--logits-processors", "no_such_module:Processor"], "no_such_module"),
        (["--reasoning-parser", "nonesuch"], "nonesuch"),
        (["--tool-call-parser", "nonesuch"], "nonesuch"),
    ],
)
def test_what_flags_of_the_server_name_is_looked_at(
    capsys: pytest.CaptureFixture[str], flags: list[str], sentence: str
) -> None:
    assert main(["plan", "bundled:smollm2", *flags]) != 0
    assert sentence in capsys.readouterr().err
    assert main(["plan", "bundled:smollm2", "--port", "8001", "--chat-template", "{{ messages }}"]) == 0


def test_a_refusal_stands_in_the_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPE | QUIP))
    assert main(["plan", str(tmp_path), "--json"]) == 1
    assert "quip" in json.loads(capsys.readouterr().out)["refusal"]


def test_weights_that_do_not_fit_are_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    save_file({"model.norm.weight": np.zeros(64, np.float32)}, tmp_path / "model.safetensors")
    assert main(["plan", str(tmp_path)]) == 1
    assert "missing" in capsys.readouterr().err


def test_a_dummy_model_without_a_tokenizer_can_be_served(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    assert main(["plan", str(tmp_path), "--load-format", "dummy", "--skip-tokenizer-init"]) == 0


def test_sizes() -> None:
    assert [format_size(size) for size in (512, 1536, 3 << 20, 3 << 29)] == ["512 B", "1.5 KiB", "3.0 MiB", "1.50 GiB"]


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "/there/is/none"]) == 1
    assert "/there/is/none" in capsys.readouterr().err


def test_the_environment_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect-env", "--json"]) == 0
    sections = json.loads(capsys.readouterr().out)
    assert sections["Software"]["octavo"]
    assert sections["Machine"]["memory"]
    assert main(["collect-env"]) == 0
    assert "Machine:" in capsys.readouterr().out


def test_secrets_are_not_shown() -> None:
    environment = {"OCTAVO_API_KEY": "s", "HF_TOKEN": "s", "OMP_NUM_THREADS": "2", "HOME": "x", "HF_HOME": "/h"}
    assert relevant_variables(environment) == {"OCTAVO_API_KEY": "(hidden)", "OMP_NUM_THREADS": "2", "HF_HOME": "/h"}
