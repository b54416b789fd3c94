"""What models launch compiles for a GPU: on machines without one too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("compile_for_gpu.py")
# Whether there is a kernel of its own for Hopper's prefill. A sample keeps every other one: together they have it all.
CASES = {
    "llama-float32": False,
    "llama-float32-small-heads": False,
    "qwen3-bfloat16": True,
    "gemma3-float16-deterministic": True,
    "gemma3-float16-deterministic-drafts": True,
    "llama-bfloat16-drafts": True,
    "llama-bfloat16-float8": True,
    "llama-bfloat16-float8-blocks": True,
    "llama-bfloat16-int4": True,
    "llama-bfloat16-int4-wide-groups": True,
    "llama-bfloat16-bytes": True,
    "llama-bfloat16-int8": True,
    "llama-bfloat16-mxfp4": True,
    "llama-bfloat16-nvfp4": True,
    "llama-float16-nf4": True,
    "llama-bfloat16-gguf": True,
    "llama-bfloat16": True,
    "qwen3-moe-bfloat16": True,
    "qwen3-moe-bfloat16-float8": True,
    "qwen3-moe-bfloat16-int4": True,
    "qwen3-moe-bfloat16-nvfp4": True,
    "qwen3-moe-float16-int8": True,
    "qwen3-moe-bfloat16-gguf": True,
    "qwen3-moe-bfloat16-bounded": True,
    "gpt-oss-bfloat16-mxfp4": True,
    "gpt-oss-bfloat16": True,
    "llama-bfloat16-small-heads": False,
    "gemma3-bfloat16-slopes-drafts": False,
    "llama-bfloat16-sinks": True,
    # Quantised keys are expanded for it, but not where rows must not depend on the other rows.
    "llama-bfloat16-cache-fp8": True,
    "gemma3-float16-cache-int8-drafts": True,
    "llama-float16-cache-given": False,
    "llama-bfloat16-cache-by-head": True,
    "deepseek-bfloat16-cache-fp8": False,
    "deepseek-bfloat16-indexer": False,
}


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a GPU compiles them as it runs the other tests")
@pytest.mark.sample(5)
@pytest.mark.parametrize(("case", "has_hopper_kernel"), CASES.items())
def test_every_kernel_of_a_models_steps_compiles(case: str, has_hopper_kernel: bool, tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), case], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counts = {name: int(count) for name, count in map(str.split, done.stdout.splitlines())}
    names = counts.keys()
    attention = {"paged_decode_kernel"}
    if case.startswith("deepseek"):
        attention = {"_latent_inputs_kernel", "_latent_kernel", "_head_linear_kernel"}
        attention |= {"_finish_kernel", "_rotate_heads_kernel"}
    assert {"_prepare_inputs_kernel", "_norm_kernel"} | attention <= names
    indexer = {"_score_kernel", "_choose_kernel", "_store_kernel"}
    assert names & indexer == (indexer if case.endswith("indexer") else set())
    has_experts = "-moe-" in case or case.startswith("gpt-oss")
    stored = case.endswith(("float8", "blocks", "int4", "int8", "mxfp4", "nvfp4", "nf4", "bytes", "gguf"))
    experts = {"order_kernel", "_sum_kernel", "logits_kernel", "choose_kernel"}
    # An indexer's heads are weighed as experts are.
    others = {"logits_kernel"} if case.endswith("indexer") else set()
    assert names & experts == (experts if has_experts else others)
    assert ("experts_kernel" in names) == (has_experts and not stored)
    assert ("packed_experts_kernel" in names) == (has_experts and stored)
    assert ("hopper_experts_kernel" in names) == (has_experts and (not stored or case.endswith("float8")))
    few = {"few_up_kernel", "few_down_kernel"}
    # One case is deterministic; floats of 4 bits go to the tensor cores.
    assert names & few == (few if has_experts and not case.endswith(("float16-int8", "mxfp4")) else set())
    # Float8 weights meet parts of values: of a single row, if its inputs are whole blocks, and of few tokens' experts.
    assert ("token_linear_kernel" in names) == case.endswith("float8")
    parted = {"token_up_kernel", "token_down_kernel", "_split_kernel"}
    assert names & parted == (parted if case == "qwen3-moe-bfloat16-float8" else set())
    assert ("_hopper_kernel" in names) == has_hopper_kernel
    if has_hopper_kernel and case.startswith("llama-bfloat16"):
        # Fresh prompts, others, which read cached keys, and with large heads long fresh ones, which store theirs.
        assert counts["_hopper_kernel"] == (3 if case.endswith("drafts") else 2)
    assert ("_quantize_kernel" in names) == case.endswith(("float8", "blocks", "int8"))
    assert ("_quantize_normed_kernel" in names) == case.endswith(("float8", "blocks"))
    # Of float8 weights: without a driver, CUDA C++ compiles nothing, and the library multiplies 16-bit ones.
    assert ("specialised_linear_kernel" in names) == case.endswith(("float8", "blocks"))
    assert ("int8_kernel" in names) == case.endswith("int8")
    kernels = {"grouped_kernel", "stream_grouped_kernel", "direct_kernel", "hopper_grouped_kernel", "dequantize_kernel"}
    kernels |= {"unit_kernel", "bytes_kernel"}
    # GEMMs of bfloat16 norm a few rows, if those are short; one case has longer ones.
    norms_rows = "bfloat16" in case and not stored and "int4" not in case and case != "llama-bfloat16"
    assert ("normed_rows_kernel" in names) == norms_rows
    packed = set()
    if case.endswith("wide-groups"):
        packed = {"direct_kernel", "hopper_grouped_kernel"}
    elif case.endswith("mxfp4"):
        packed = {"unit_kernel", "hopper_grouped_kernel"}
        packed |= set() if case.startswith("llama") else {"dequantize_kernel"}  # small layers are expanded
    elif case.endswith(("bytes", "gguf")):
        packed = {"bytes_kernel", "hopper_grouped_kernel"}
        # The embedding's rows, and codes of a table.
        packed |= {"dequantize_kernel", "grouped_kernel"} if case.endswith("gguf") else set()
    elif case.endswith("nvfp4"):
        packed = {"grouped_kernel", "dequantize_kernel"}
    elif case.endswith("nf4"):
        packed = {"grouped_kernel"}  # a deterministic engine's
    elif case.endswith("blocks"):
        packed = {"bytes_kernel", "grouped_kernel", "dequantize_kernel"}
    elif case.endswith("int4"):
        packed = {"grouped_kernel", "stream_grouped_kernel", "dequantize_kernel"}
        packed |= {"bytes_kernel", "hopper_grouped_kernel"}  # one layer's inputs are whole blocks of 128
    assert names & kernels == packed
