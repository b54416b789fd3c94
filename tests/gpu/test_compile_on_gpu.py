"""A first start compiles kernels in other processes, and the next one finds them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "parity"))
from tiny_checkpoints import MAX_LENGTH, Checkpoint, write_checkpoint

START = """
import json
import sys
from pathlib import Path

from octavo import LLM, SamplingParams
from octavo.kernels.triton import compile, compile_workers


def count_kept():
    files = Path(settings["cache_root"]).rglob("*.cubin")
    return sum(file.parent.name != "cuda" for file in files)  # others than those of CUDA C++, which threads compile


def note_reply(channel, description):
    replies.append(ask(channel, description))
    return replies[-1]


def note_kernel(*source):
    if not kernels:
        kept.append(count_kept())
    kernels.append(describe(*source))
    return kernels[-1]


def note_end(workers):
    kept.append(count_kept())
    close(workers)


settings = json.loads(sys.argv[1])
replies, kernels, kept = [], [], []
ask, compile_workers._ask = compile_workers._ask, note_reply
describe, compile.describe = compile.describe, note_kernel
close, compile_workers.CompileWorkers.close = compile_workers.CompileWorkers.close, note_end
llm = LLM(**settings)
outputs = llm.generate(
    [[1, 2, 3]], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False), use_tqdm=False
)
report = {
    "tokens": list(outputs[0].outputs[0].token_ids),
    "replies": replies,
    "undescribed": kernels.count(None),
    "kernels": len(set(kernels)),
    "kept": kept,
}
print(json.dumps(report))
llm.shutdown()
"""


def start(source: Checkpoint, cache_root: Path) -> dict[str, Any]:
    """Start an engine in a process of its own, whose kernels are all new to it; returns its report."""
    settings = {
        "model": str(source.folder),
        "dtype": "bfloat16",
        "skip_tokenizer_init": True,
        "max_model_len": MAX_LENGTH,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 256,
        "num_gpu_blocks_override": 512,
        "cache_root": str(cache_root),
    }
    done = subprocess.run(
        [sys.executable, "-c", START, json.dumps(settings)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def test_the_first_start_compiles_in_other_processes_and_the_next_compiles_nothing(tmp_path: Path) -> None:
    source = write_checkpoint("qwen3", tmp_path / "model")
    first, second = (start(source, tmp_path / "cache") for _ in range(2))
    assert first["replies"] and all(first["replies"])
    before, after = first["kept"]
    assert first["undescribed"] == 0
    assert after - before == first["kernels"] > 10, "nothing is kept under the key of another process"
    assert second["replies"] == []
    assert second["kept"][0] == second["kept"][1]
    assert second["tokens"] == first["tokens"]
