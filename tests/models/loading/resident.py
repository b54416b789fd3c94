"""Loads a small model and then a large one, and prints what the large one took: ``python resident.py MODEL JSON``.

A process of its own: what a model's first use loads besides (libraries, code) is there once the small one has answered.
"""

import json
import sys
from pathlib import Path

from octavo import LLM, SamplingParams

SETTINGS = {
    "skip_tokenizer_init": True,
    "dtype": "bfloat16",
    "kv_cache_memory_bytes": 16 << 20,
    "max_num_seqs": 1,
    "max_model_len": 256,
    "num_threads": 2,
    "log_level": "warning",
}


def kilobytes(name: str) -> int:
    """A line of what Linux says of this process, such as ``VmRSS``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


def answer(path: str, quantization: str | None) -> LLM:
    """A model that has generated a token."""
    llm = LLM(path, quantization=quantization, **SETTINGS)
    llm.generate([{"prompt_token_ids": [1, 2, 3]}], SamplingParams(max_tokens=1, detokenize=False), use_tqdm=False)
    return llm


def main() -> None:
    """Print resident memory in bytes: of the large model, and the most while it was loaded."""
    small, large, quantization = sys.argv[1:]
    kept = [answer(small, quantization or None)]
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = kilobytes("VmRSS")
    kept.append(answer(large, quantization or None))
    peak, after = kilobytes("VmHWM"), kilobytes("VmRSS")
    print(json.dumps({"bytes": 1024 * (after - before), "peak": 1024 * (peak - before)}))


if __name__ == "__main__":
    main()
