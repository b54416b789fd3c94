"""The profile of a CPU step: what it counts, and that kernels of a small model add up."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from octavo.platforms.native import native_kernels

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # its scripts import each other by their own names

import cpu_profile
from tiny_llama import write_model

pytestmark = pytest.mark.skipif(native_kernels() is None, reason="needs compiled kernels; run on an AMD EPYC")


def test_attention_reads_each_key_once_and_multiplies_what_queries_see() -> None:
    counts, starts, lengths = (torch.tensor(values, dtype=torch.int32) for values in ([2], [0, 1, 4], [10, 5]))
    num_bytes, operations = cpu_profile.attention_work(
        counts.data_ptr(), starts.data_ptr(), lengths.data_ptr(), heads=6, kv_heads=2, size=8
    )
    assert num_bytes == (10 + 5) * 2 * 8 * 2 * 2
    assert operations == 2 * 2 * 6 * 8 * (10 + 3 + 4 + 5)


@pytest.mark.long
def test_each_kernel_of_a_step_has_its_time(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", max_position_embeddings=1024)
    result = tmp_path / "profile.json"
    script = [sys.executable, cpu_profile.__file__, "--model", str(model), "--output-json", str(result)]
    flags = ["--weights", "bf16", "--cases", "decode_1", "--threads", "1", "--repeats", "1"]
    found = subprocess.run([*script, *flags], capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr
    assert "bf16 decode_1" in found.stdout
    figures = json.loads(result.read_text(encoding="utf-8"))
    profile = figures["profiles"]["bf16 decode_1"]
    assert profile["steps"] == 128
    calls = {name: kernel["calls"] for name, kernel in profile["kernels"].items() if name.startswith(("linear", "att"))}
    layers = 2
    assert calls == {
        "linear 64x32": layers,  # queries, keys and values
        "linear 32x32": layers,
        "linear 96x32": layers,
        "linear 32x48": layers,
        "linear 300x32": 1,
        "attention": layers,
    }
    assert all(limit > 0 for limit in figures["limits"].values())
