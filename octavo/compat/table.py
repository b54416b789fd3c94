"""Which of vLLM's names exist here, under which of its module paths, and what they are in Octavo.

If something has moved between vLLM versions, all of its paths are listed.
"""

from dataclasses import dataclass
from itertools import chain

VERSION = "0.33.0"
"""The vLLM version whose interface is mirrored."""


@dataclass(frozen=True, slots=True)
class Names:
    """Names that several of vLLM's modules share.

    Attributes:
        modules: vLLM's module paths.
        home: the module of Octavo's that has the names.
        names: separated by spaces; ``theirs=ours`` where the two differ.
    """

    modules: tuple[str, ...]
    home: str
    names: str

    def targets(self) -> dict[str, str]:
        """vLLM's name → Octavo's."""
        return {theirs: ours or theirs for theirs, _, ours in (name.partition("=") for name in self.names.split())}


_OUTPUTS = (
    "ClassificationOutput ClassificationRequestOutput CompletionOutput EmbeddingOutput EmbeddingRequestOutput "
    "PoolingOutput PoolingRequestOutput RequestOutput ScoringOutput ScoringRequestOutput"
)
_PROMPTS = "PromptType TextPrompt TokensPrompt"
_CONFIGS = "CacheConfig ModelConfig=VllmModelConfig ParallelConfig SchedulerConfig VllmConfig"
_PROCESSORS = "AddedRequest BatchUpdate LogitsProcessor MoveDirectionality MovedRequest RemovedRequest"
_COMPAT = "octavo.compat"

ROWS = (
    Names(("vllm", "vllm.version"), f"{_COMPAT}.version", "__version__ __version_tuple__"),
    # Entry points.
    Names(("vllm", "vllm.entrypoints.llm"), "octavo.llm", "LLM"),
    Names(("vllm", "vllm.engine.llm_engine", "vllm.v1.engine.llm_engine"), "octavo.llm_engine", "LLMEngine"),
    Names(("vllm", "vllm.engine.async_llm_engine"), f"{_COMPAT}.async_llm", "AsyncLLMEngine=VllmAsyncLLM"),
    Names(("vllm.v1.engine.async_llm",), f"{_COMPAT}.async_llm", "AsyncLLM=VllmAsyncLLM"),
    Names(("vllm", "vllm.engine.arg_utils"), f"{_COMPAT}.engine_args", "AsyncEngineArgs EngineArgs"),
    Names(("vllm.entrypoints.cli.main",), f"{_COMPAT}.commands", "main"),
    Names(("vllm.entrypoints.openai.api_server",), f"{_COMPAT}.api_server", "run_server"),
    Names(
        ("vllm.entrypoints.openai.cli_args", "vllm.entrypoints.common.cli_args"),
        f"{_COMPAT}.api_server",
        "make_arg_parser validate_parsed_serve_args",
    ),
    # What goes in.
    Names(("vllm",), "octavo.records", f"SamplingParams PoolingParams {_PROMPTS} {_OUTPUTS}"),
    Names(
        ("vllm.sampling_params",),
        "octavo.records",
        "BeamSearchParams RepetitionDetectionParams RequestOutputKind SamplingParams StructuredOutputsParams",
    ),
    Names(("vllm.sampling_params",), f"{_COMPAT}.guided_decoding", "GuidedDecodingParams"),
    Names(("vllm.pooling_params",), "octavo.records", "PoolingParams"),
    Names(("vllm.inputs", "vllm.inputs.data", "vllm.inputs.llm"), "octavo.records", f"EmbedsPrompt {_PROMPTS}"),
    Names(("vllm.lora.request",), f"{_COMPAT}.options", "LoRARequest"),
    # What comes out.
    Names(("vllm.outputs",), "octavo.records", _OUTPUTS),
    Names(("vllm.logprobs",), "octavo.records", "FlatLogprobs Logprob PromptLogprobs SampleLogprobs"),
    Names(
        ("vllm.sequence",), "octavo.records", "Logprob PromptLogprobs RequestMetrics=RequestStateStats SampleLogprobs"
    ),
    Names(
        ("vllm.beam_search", "vllm.entrypoints.generate.beam_search.utils"),
        "octavo.records",
        "BeamSearchOutput BeamSearchSequence",
    ),
    Names(("vllm.v1.metrics.reader",), "octavo.telemetry.reader", "Counter Gauge Histogram Metric Vector"),
    Names(("vllm.v1.metrics.stats",), "octavo.records", "RequestStateStats"),
    Names(("vllm.exceptions",), "octavo.errors", "VLLMValidationError=InvalidRequestError"),
    Names(
        ("vllm.v1.engine.exceptions",),
        "octavo.errors",
        "EngineDeadError EngineGenerateError=RequestFailedError",
    ),
    # What changes logits.
    Names(("vllm.v1.sample.logits_processor.interface",), "octavo.sampling.processors", _PROCESSORS),
    Names(
        ("vllm.v1.sample.logits_processor",),
        "octavo.sampling.processors",
        f"AdapterLogitsProcessor RequestLogitsProcessor {_PROCESSORS}",
    ),
    Names(("vllm.v1.sample.logits_processor.builtin",), "octavo.sampling.processors", "process_dict_updates"),
    Names(("vllm.logits_process",), "octavo.sampling.processors", "LogitsProcessor=RequestLogitsProcessor"),
    # Text.
    Names(
        ("vllm.tokenizers", "vllm.transformers_utils.tokenizer"),
        f"{_COMPAT}.tokenizers",
        "cached_get_tokenizer get_tokenizer",
    ),
    Names(("vllm.transformers_utils.tokenizer",), f"{_COMPAT}.tokenizers", "AnyTokenizer"),
    Names(("vllm.tokenizers",), f"{_COMPAT}.tokenizers", "TokenizerLike=AnyTokenizer"),
    Names(("vllm.renderers.hf",), f"{_COMPAT}.tokenizers", "resolve_chat_template"),
    Names(
        ("vllm.entrypoints.chat_utils", "vllm.renderers.chat_utils"),
        f"{_COMPAT}.tokenizers",
        "load_chat_template resolve_hf_chat_template=resolve_chat_template",
    ),
    # Settings and models.
    Names(("vllm.config",), "octavo.config.vllm_config", _CONFIGS),
    Names(("vllm.config",), f"{_COMPAT}.options", "PoolerConfig ProfilerConfig"),
    Names(("vllm.config", "vllm.config.kv_events"), "octavo.config.kv_events", "KVEventsConfig"),
    Names(
        ("vllm", "vllm.model_executor.models", "vllm.model_executor.models.registry"),
        f"{_COMPAT}.model_registry",
        "ModelRegistry",
    ),
    Names(("vllm.platforms",), f"{_COMPAT}.platform", "current_platform"),
    Names(("vllm.usage.usage_lib",), f"{_COMPAT}.options", "UsageContext"),
    # Helpers.
    Names(("vllm.logger",), f"{_COMPAT}.utils", "init_logger"),
    Names(
        ("vllm.utils",),
        f"{_COMPAT}.utils",
        "Counter=CallCounter FlexibleArgumentParser get_ip get_open_port random_uuid",
    ),
    Names(("vllm.utils.argparse_utils",), f"{_COMPAT}.utils", "FlexibleArgumentParser"),
    Names(("vllm.utils.counter",), f"{_COMPAT}.utils", "Counter=CallCounter"),
    Names(("vllm.utils.network_utils",), f"{_COMPAT}.utils", "get_ip get_open_port"),
    Names(
        ("vllm.distributed", "vllm.distributed.parallel_state"),
        f"{_COMPAT}.utils",
        "cleanup_dist_env_and_memory destroy_distributed_environment destroy_model_parallel",
    ),
)

LIVE_MODULES = {"vllm.envs": f"{_COMPAT}.envs"}
"""Modules whose attributes change while a program runs, with those of Octavo that are asked each time."""

COMMAND_MODULES = {
    "vllm.entrypoints.cli.main": "main",
    "vllm.entrypoints.openai.api_server": "serve",
    "vllm.entrypoints.openai.run_batch": "run_batch",
}
"""Modules that are commands (``python -m …``), with the functions of :mod:`octavo.compat.commands` that run them."""

_TEXT_ONLY = "models take text only so far, no images, audio or video"
MISSING_FEATURES = {
    "vllm.assets": _TEXT_ONLY,
    "vllm.multimodal": _TEXT_ONLY,
    "vllm.distributed.kv_transfer": "a cache cannot be moved between engines yet",
    "vllm.model_executor.layers": "models are written in Octavo's own layers",
    "vllm.spec_decode": "speculative decoding is not supported yet",
    "vllm.v1.spec_decode": "speculative decoding is not supported yet",
}
"""Paths of vLLM below which there is nothing here, and why."""


def mirrored_modules() -> dict[str, dict[str, tuple[str, str]]]:
    """vLLM's module path → its names → Octavo's module and name; folders without names of their own included."""
    modules: dict[str, dict[str, tuple[str, str]]] = {}
    for path in chain(*(row.modules for row in ROWS), LIVE_MODULES, COMMAND_MODULES):
        parts = path.split(".")
        for length in range(1, len(parts) + 1):
            modules.setdefault(".".join(parts[:length]), {})
    for row in ROWS:
        for module in row.modules:
            modules[module].update({theirs: (row.home, ours) for theirs, ours in row.targets().items()})
    return modules
