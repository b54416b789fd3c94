"""What the feature matrix calls implemented has a test; what it lists as models is what loads."""

import re
from pathlib import Path

import pytest

from octavo.hub.gguf_experts import EXPERT_FAMILIES
from octavo.hub.gguf_families import FAMILIES
from octavo.models.registry import supported_architectures

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")

# A word of the feature's row, and the test that shows it.
EVIDENCE = {
    "x86-64": "tests/test_llm.py",
    "NVIDIA GPUs": "tests/gpu/test_engine_on_gpu.py",
    "safetensors": "tests/models/loading/test_safetensors_files.py",
    "GGUF files": "tests/models/loading/test_gguf_weights.py",
    "ModelOpt and Quark": "tests/quantization/test_modelopt_models.py",
    "compressed-tensors and fp8": "tests/quantization/test_float8_models.py",
    "GPTQ, AWQ": "tests/quantization/test_integer_models.py",
    "scales per block": "tests/quantization/test_float8_blocks.py",
    "bitsandbytes": "tests/quantization/test_bitsandbytes.py",
    "quantised key/value cache": "tests/execution/test_quantized_cache.py",
    "INT8, INT4": "tests/quantization/test_block_models.py",
    "W8A8": "tests/quantization/test_int8_models.py",
    "torchao": "tests/quantization/test_torchao_models.py",
    "MXFP4](": "tests/quantization/test_rounded_models.py",
    "bfloat16": "tests/test_batch_independence.py",
    "continuous batching": "tests/parity/test_tiny_models.py",
    "prefix caching": "tests/cache/test_cache_manager.py",
    "cache groups": "tests/parity/test_tiny_models.py",
    "preemption": "tests/parity/test_tiny_models.py",
    "priorities, fair turns": "tests/api/test_admission_engine.py",
    "asynchronous scheduling": "tests/execution/test_device_runner.py",
    "CUDA graphs": "tests/gpu/test_engine_on_gpu.py",
    "bit-equal": "tests/gpu/test_deterministic.py",
    "[speculative decoding]": "tests/execution/test_drafts.py",
    "tensor parallelism": "tests/parity/test_tensor_parallel.py",
    "restart of a dead engine": "tests/gpu/test_faults_on_gpu.py",
    "sleep and wake-up": "tests/gpu/test_owners_on_gpu.py",
    "all sampling parameters": "tests/api/test_protocol_names.py",
    "experts of each token": "tests/parity/test_routed_experts.py",
    "log-probabilities": "tests/gpu/test_engine_on_gpu.py",
    "structured output": "tests/gpu/test_grammar_on_gpu.py",
    "tool calls and reasoning": "tests/api/test_chat_tools.py",
    "limit on reasoning": "tests/test_generation_limits.py",
    "beam search": "tests/parity/test_beam_search.py",
    "logits processors": "tests/sampling/test_processors.py",
    "prompts as vectors": "tests/api/test_prompt_embeds.py",
    "embeddings, classification": "tests/gpu/test_owners_on_gpu.py",
    "`LLM`, `AsyncLLM`": "tests/test_async_llm.py",
    "code written for vLLM": "tests/compat/test_scripts.py",
    "chat, completions, embeddings": "tests/api/test_openai_client.py",
    "Responses": "tests/api/test_responses_api.py",
    "Messages": "tests/api/test_anthropic_messages.py",
    "Cohere and Jina": "tests/api/test_pooling_api.py",
    "tokens in": "tests/api/test_scale_out.py",
    "batch files": "tests/cli/test_run_batch.py",
    "terminal chat": "tests/cli/test_cli_chat.py",
    "web console": "tests/api/console/test_console_routes.py",
    "Prometheus": "tests/telemetry/test_metric_names.py",
    "API keys": "tests/api/test_safety.py",
}
NOT_THERE = ("no", "planned", "")


def rows(heading: str) -> list[list[str]]:
    """Cells of the tables below a heading."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_models_are_those_that_load() -> None:
    named = set(re.findall(r"`(\w+)`", " ".join(row[1] for row in rows("Models"))))
    assert named == set(supported_architectures())


def test_the_models_from_gguf_files_are_those_that_load() -> None:
    named = {name for row in rows("Models") if row[4] == "yes" for name in re.findall(r"`(\w+)`", row[1])}
    shared = {"MistralForCausalLM", "MixtralForCausalLM", "MPTForCausalLM", "Olmo3ForCausalLM", "DeepseekV3ForCausalLM"}
    shared.add("Gemma3nForConditionalGeneration")
    assert named == {*(family.architecture for family in (FAMILIES | EXPERT_FAMILIES).values()), *shared}


@pytest.mark.parametrize("heading", ["Devices and formats", "Engine", "Generation", "Interfaces"])
def test_what_is_implemented_has_a_test(heading: str) -> None:
    for feature, *states in rows(heading):
        tests = [test for words, test in EVIDENCE.items() if words in feature]
        if all(state.split(":")[0] in NOT_THERE for state in states):
            continue
        assert len(tests) == 1, feature
        assert (ROOT / tests[0]).is_file(), tests[0]
