"""Every setting, once: its type, default, bounds and meaning.

Flags of the command line (``--max-num-seqs``), keyword arguments of ``LLM`` and ``AsyncLLM``
(``max_num_seqs``) and the table in ``docs/configuration.md`` are all derived from these classes.
They are grouped and checked by :mod:`octavo.config.engine_config`.
``None`` means "chosen at startup for the model and the device"; :mod:`octavo.planning` chooses and records its reason.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from octavo.config.kv_events import KVEventsConfig

DType = Literal["auto", "bfloat16", "float16", "float32", "half", "float"]
LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
Quantization = Literal[
    "fp8",
    "int8",
    "int4",
    "compressed-tensors",
    "gguf",
    "gptq",
    "awq",
    "bitsandbytes",
    "modelopt",
    "quark",
    "torchao",
    "mxfp4",
]
MoeBackend = Literal[
    "auto", "triton", "native", "torch", "batched_triton", "triton_unfused", "deep_gemm", "deep_gemm_mega_moe",
    "cutlass",
    "flashinfer_trtllm", "flashinfer_cutlass", "flashinfer_cutedsl", "flashinfer_moe_ep_cutedsl", "flashinfer_b12x",
    "flashinfer_moe_ep_mega_deep_gemm", "b12x", "marlin", "humming", "aiter", "aiter_mega_moe",
    "aiter_triton_mxfp4_bf16", "aiter_triton_mxfp4_mxfp4", "flydsl", "hpc", "emulation", "rdna3"
]  # fmt: skip
Policy = Literal["fcfs", "priority"]
Runner = Literal["auto", "generate", "pooling"]
Convert = Literal["auto", "none", "embed", "classify"]
ModelImpl = Literal["auto", "octavo", "vllm", "transformers"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
KVCacheDType = Literal[
    "auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_per_token_head", "int8_per_token_head"
]
PositiveInt = Annotated[int, Meta(ge=1)]
PositiveFloat = Annotated[float, Meta(gt=0)]
BlockSize = Annotated[int, Meta(ge=1, le=1024)]
BlockCount = Annotated[int, Meta(ge=2)]

_CODEBOOKS = "has rotations and codebooks of its own, which Octavo does not have (yet)"
_FOUR_BITS = "has 4 bits, and 8 are the fewest that Octavo has (yet)"

REJECTED_VALUES: dict[str, dict[str, str]] = {
    "kv_cache_dtype": {
        "fp8_ds_mla": "is a layout of one kernel library; fp8 rounds latent vectors as a whole",
        "fp8_inc": "is for Gaudi processors",
        **dict.fromkeys(("int4_per_token_head", "nvfp4", "nvfp4_4over6", "nvfp4_ds_mla"), _FOUR_BITS),
        **dict.fromkeys(("octave_k3v3", "octave_k3v3_compact", "octave_k3v4", "ultraquant_4bit"), _CODEBOOKS),
        **dict.fromkeys(
            ("turboquant_3bit_nc", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_k8v4"), _CODEBOOKS
        ),
    }
}
"""Setting → vLLM's values that it does not take, and why."""


def explain_value(name: str, value: object) -> str:
    """Why a setting does not take a value that vLLM takes, as the rest of a sentence; empty for other values."""
    reason = REJECTED_VALUES.get(name, {}).get(str(value))
    return f"; {value} {reason}" if reason else ""


class ModelSettings(msgspec.Struct, kw_only=True):
    """Model, tokenizer and data types."""

    model: Annotated[str, Meta(description="Hugging Face id, folder, GGUF file, or bundled:NAME.")]
    runner: Annotated[
        Runner,
        Meta(
            description="Task of the model: generate produces text, pooling produces vectors; auto decides by the "
            "model's files."
        ),
    ] = "auto"
    convert: Annotated[
        Convert,
        Meta(
            description="Turn a generating model into a pooling model: embed or classify; auto decides by the model's "
            "files."
        ),
    ] = "auto"
    model_impl: Annotated[
        ModelImpl,
        Meta(
            description="Who implements the model: octavo (or vllm) its own families, transformers the modules of the "
            "transformers library with Octavo's attention, cache and linear layers; auto takes transformers for "
            "architectures that have no family."
        ),
    ] = "auto"
    pooler_config: Annotated[
        dict[str, Any] | None,
        Meta(description="Overrides how the model pools: seq_pooling_type, use_activation, task."),
    ] = None
    tokenizer: Annotated[
        str | None, Meta(description="Hugging Face id or path of the tokenizer; default is the model's.")
    ] = None
    skip_tokenizer_init: Annotated[
        bool, Meta(description="Load no tokenizer: prompts are token ids and outputs have no text.")
    ] = False
    trust_remote_code: Annotated[
        bool,
        Meta(
            description="Accepted for compatibility with vLLM, without effect. Octavo has its own code for each "
            "architecture and never runs Python files from a model's folder; a model that needs them is "
            "rejected."
        ),
    ] = False
    revision: Annotated[str | None, Meta(description="Branch, tag or commit of the model on the hub.")] = None
    tokenizer_revision: Annotated[
        str | None, Meta(description="Branch, tag or commit of the tokenizer on the hub.")
    ] = None
    hf_token: Annotated[str | None, Meta(description="Access token for the hub.")] = None
    hf_overrides: Annotated[
        dict[str, Any] | None, Meta(description="Values that override the model's config.json, as JSON.")
    ] = None
    dtype: Annotated[
        DType, Meta(description="Data type of the computation; auto takes the model's own if it is fast on the device.")
    ] = "auto"
    quantization: Annotated[
        Quantization | None,
        Meta(
            description="How weights are quantised; default is as in the checkpoint, which compressed-tensors, gptq, "
            "awq and bitsandbytes only confirm; with dtype float32, integers in checkpoints and GGUF files are "
            "dequantised unless it names their kind. fp8 rounds unquantised weights to float8 while they are loaded, "
            "int8 and int4 to integers (GPUs, and CPUs with compiled kernels), mxfp4 to 4-bit floats."
        ),
    ] = None
    moe_backend: Annotated[
        MoeBackend,
        Meta(
            description="Kernels for experts: triton on GPUs, native (compiled) or torch on CPUs; auto takes the "
            "fastest. The others are vLLM's, and an error."
        ),
    ] = "auto"
    seed: Annotated[int, Meta(description="Seed for dummy weights and for requests without one.")] = 0
    uniform_routing: Annotated[
        bool,
        Meta(
            description="For measurements: tokens draw their experts evenly, whatever their scores; texts mean nothing."
        ),
    ] = False
    enable_return_routed_experts: Annotated[
        bool,
        Meta(description="Answers tell which experts each token chose (routing replay)."),
    ] = False
    max_model_len: Annotated[
        PositiveInt | None,
        Meta(description="Context length: maximum number of tokens of a prompt and its answer together."),
    ] = None
    allow_long_max_model_len: Annotated[
        bool,
        Meta(
            description="Allow a max_model_len above the model's context length; answers beyond that length may be "
            "nonsense."
        ),
    ] = False
    structured_outputs_backend: Annotated[
        Literal["auto", "xgrammar", "guidance"],
        Meta(
            description="Grammar backend for requests that name none; auto takes one that supports everything the "
            "grammar uses."
        ),
    ] = "auto"
    structured_outputs_disable_any_whitespace: Annotated[
        bool, Meta(description="JSON on one line, for requests whose grammar is JSON; models may otherwise indent it.")
    ] = False
    reasoning_parser: Annotated[
        str,
        Meta(
            description="Parser that separates reasoning from content; auto goes by the chat template, empty leaves "
            "reasoning in the content. Structured output constrains what follows the reasoning."
        ),
    ] = ""
    reasoning_config: Annotated[
        dict[str, Any] | None,
        Meta(
            description="Markers for thinking_token_budget in place of the reasoning parser's own, as JSON: "
            "reasoning_start_str begins reasoning, reasoning_end_str is forced when the budget is spent."
        ),
    ] = None
    reasoning_parser_plugin: Annotated[
        str, Meta(description="Python file that registers additional reasoning parsers.")
    ] = ""
    enable_prompt_embeds: Annotated[
        bool, Meta(description="Accept prompts as vectors, one per token, instead of text.")
    ] = False
    max_logprobs: Annotated[
        int,
        Meta(
            ge=-1,
            description="Maximum number of log-probabilities per token that a request may ask for; -1 is no limit.",
        ),
    ] = 20
    generation_config: Annotated[
        str,
        Meta(
            description="Source of the sampling defaults: auto is the model's generation_config.json, vllm (or octavo) "
            "the engine's own defaults, a folder the generation_config.json in it."
        ),
    ] = "auto"
    override_generation_config: Annotated[
        dict[str, Any] | None, Meta(description="Values that override the generation config, as JSON.")
    ] = None
    logits_processors: Annotated[
        list[Any] | None, Meta(description="Custom logits processors: classes, or names as package.module:Class.")
    ] = None
    allowed_functions: Annotated[
        list[str] | None,
        Meta(
            description="Functions, as package.module:function, that AsyncLLM.collective_rpc may call in the engine "
            "process; none by default."
        ),
    ] = None
    enforce_eager: Annotated[bool, Meta(description="Do not capture CUDA graphs.")] = False


class LoadSettings(msgspec.Struct, kw_only=True):
    """How weights are loaded."""

    load_format: Annotated[
        LoadFormat, Meta(description="auto goes by the files; dummy creates random weights of the right shapes.")
    ] = "auto"
    download_dir: Annotated[str | None, Meta(description="Cache folder for downloads from the hub.")] = None
    use_tqdm_on_load: Annotated[bool, Meta(description="Show a progress bar while loading.")] = True
    weight_update_dir: Annotated[
        str | None,
        Meta(description="Folder of the safetensors files that /update_weights may read; else only the model's own."),
    ] = None


class CacheSettings(msgspec.Struct, kw_only=True):
    """The paged key/value cache."""

    block_size: Annotated[BlockSize | None, Meta(description="Number of tokens in a cache block.")] = None
    mamba_block_size: Annotated[
        BlockSize | None,
        Meta(
            description="Number of tokens between the recurrent states that the prefix cache keeps, rounded up to "
            "whole cache blocks; default is 512."
        ),
    ] = None
    gpu_memory_utilization: Annotated[
        float, Meta(gt=0, le=1, description="Share of the device's memory that this process may use in total.")
    ] = 0.92
    kv_cache_memory_bytes: Annotated[
        PositiveInt | None,
        Meta(description="Size of the cache; overrides gpu_memory_utilization. Takes suffixes: 4GiB, 500MB."),
    ] = None
    cpu_cache_memory_bytes: Annotated[
        PositiveInt | None,
        Meta(description="Size of the cache on a CPU; kv_cache_memory_bytes takes precedence."),
    ] = None
    kv_cache_dtype: Annotated[
        KVCacheDType,
        Meta(
            description="Type of keys and values in the cache: auto is as the checkpoint says, else the type of the "
            "computation; fp8 (fp8_e4m3), fp8_e5m2 and the types per token and head take half the memory. Scales come "
            "from the checkpoint if fp8 is that and it has some; otherwise each token has one per head."
        ),
    ] = "auto"
    kv_cache_dtype_skip_layers: Annotated[
        list[str] | None,
        Meta(
            description="Layers whose keys and values are not quantised: indices, and sliding_window for all layers "
            "with one."
        ),
    ] = None
    num_gpu_blocks_override: Annotated[
        BlockCount | None, Meta(description="Number of cache blocks, regardless of the memory available.")
    ] = None
    enable_prefix_caching: Annotated[
        bool | None,
        Meta(
            description="Keep computed blocks and reuse them for prompts with the same beginning; on unless the device "
            "rules it out."
        ),
    ] = None


class SchedulerSettings(msgspec.Struct, kw_only=True):
    """Limits of a step and of the queue."""

    performance_mode: Annotated[
        Literal["balanced", "interactivity", "throughput"],
        Meta(
            description="Goal of the defaults: interactivity captures a graph for each batch size up to 32, throughput "
            "doubles the default max_num_seqs and max_num_batched_tokens. Unless throughput is the goal, large devices "
            "compute fewer prompt tokens per step while other requests decode."
        ),
    ] = "balanced"
    max_num_batched_tokens: Annotated[
        PositiveInt | None, Meta(description="Maximum number of tokens that the buffers of a step hold.")
    ] = None
    max_num_scheduled_tokens: Annotated[
        PositiveInt | None,
        Meta(description="Maximum number of tokens scheduled per step; default is max_num_batched_tokens."),
    ] = None
    max_num_seqs: Annotated[
        PositiveInt | None, Meta(description="Maximum number of requests in a step (max batch size).")
    ] = None
    scheduling_policy: Annotated[
        Policy, Meta(description="fcfs: first come, first served; priority: lowest priority value first.")
    ] = "fcfs"
    enable_chunked_prefill: Annotated[
        bool | None,
        Meta(
            description="Split long prompts over several steps; without it a prompt must fit into one step. On unless "
            "the device rules it out."
        ),
    ] = None
    max_num_waiting: Annotated[
        PositiveInt | None,
        Meta(description="Maximum number of waiting requests; further ones are rejected with status 429."),
    ] = None
    max_num_waiting_tokens: Annotated[
        PositiveInt | None,
        Meta(
            description="Maximum number of prompt tokens of requests without a first token; further requests are "
            "rejected with status 429."
        ),
    ] = None
    max_num_queued_reqs: Annotated[
        PositiveInt | None,
        Meta(description="Most requests in flight, running ones included; further ones are rejected with status 429."),
    ] = None
    step_timeout: Annotated[
        float,
        Meta(
            gt=0, description="Seconds without a finished step after which /health reports a busy engine as unhealthy."
        ),
    ] = 60.0
    async_scheduling: Annotated[
        bool | None, Meta(description="Prepare the next step before the tokens of the current one are known.")
    ] = None
    speculative_config: Annotated[
        dict[str, Any] | None,
        Meta(
            description="Speculative decoding, as JSON: method is ngram (drafts from the request's own text), "
            "num_speculative_tokens the number of drafts per step, prompt_lookup_min and prompt_lookup_max how many of "
            "the last tokens are looked for in the text before them (5 unless set)."
        ),
    ] = None


class DeviceSettings(msgspec.Struct, kw_only=True):
    """Devices and threads."""

    device: Annotated[Literal["auto", "cpu", "cuda"], Meta(description="Kind of device.")] = "auto"
    tensor_parallel_size: Annotated[
        int, Meta(ge=1, description="Number of devices that share each layer; on CPUs, of processes.")
    ] = 1
    distributed_executor_backend: Annotated[
        Literal["mp", "uni", "ray"] | None,
        Meta(
            description="How workers of several devices are started: mp as processes of this machine (the default), "
            "ray as actors of a Ray cluster; uni allows one device only."
        ),
    ] = None
    deterministic: Annotated[
        bool,
        Meta(
            description="Use GPU kernels whose results for a request do not depend on the rest of the batch, bit for "
            "bit."
        ),
    ] = False
    num_threads: Annotated[
        PositiveInt | None,
        Meta(description="Number of CPU threads for computation; default is one per available core."),
    ] = None


class LoggingSettings(msgspec.Struct, kw_only=True):
    """Logs, metrics, traces, profiles and cache events."""

    disable_log_stats: Annotated[bool, Meta(description="Do not log statistics periodically.")] = False
    log_stats_interval: Annotated[float, Meta(gt=0, description="Seconds between two log lines of statistics.")] = 10.0
    metrics_prefix: Annotated[
        Literal["octavo:", "vllm:"],
        Meta(description="Prefix of metric names at /metrics; vllm: keeps dashboards made for vLLM working."),
    ] = "octavo:"
    enable_log_requests: Annotated[
        bool, Meta(description="Log one line per request, with its parameters but without its text.")
    ] = False
    enable_log_outputs: Annotated[
        bool, Meta(description="Include prompts and answers in these lines; needs enable_log_requests.")
    ] = False
    max_log_len: Annotated[
        PositiveInt | None, Meta(description="Maximum number of characters of a prompt or an answer that are logged.")
    ] = None
    log_format: Annotated[Literal["text", "json"], Meta(description="Lines of text, or one JSON object per line.")] = (
        "text"
    )
    log_config_file: Annotated[
        str | None,
        Meta(
            description="JSON file that configures logging, as Python's logging.config.dictConfig reads it, instead of "
            "log_level and log_format; a server's and its engine's."
        ),
    ] = None
    fail_on_environ_validation: Annotated[
        bool, Meta(description="Do not start if one of vLLM's variables is set that has no effect here.")
    ] = False
    otlp_traces_endpoint: Annotated[
        str | None, Meta(description="URL of the OpenTelemetry collector that receives a trace of each request.")
    ] = None
    profiler_config: Annotated[
        dict[str, Any] | None,
        Meta(description='Lets /start_profile write traces, as JSON: {"torch_profiler_dir": "FOLDER"}.'),
    ] = None
    kv_events_config: Annotated[
        KVEventsConfig | None,
        Meta(
            description="Publish events of cached blocks over ZeroMQ, as JSON with vLLM's fields: "
            '{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}. Whoever can connect reads the token ids of '
            "prompts and answers."
        ),
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Lowest severity that is logged.")
    ] = "info"


class ServerSettings(msgspec.Struct, kw_only=True):
    """The HTTP server."""

    host: Annotated[str | None, Meta(description="Address to listen on; default is all addresses of this machine.")] = (
        None
    )
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 takes a free one.")] = 8000
    uds: Annotated[str | None, Meta(description="Unix socket to listen on instead of host and port.")] = None
    api_key: Annotated[
        list[str] | None,
        Meta(
            description="Keys that clients must send as bearer token, on all routes but /health and the web console's "
            "files."
        ),
    ] = None
    no_auth_paths: Annotated[
        list[str], Meta(description="Further paths that need no key, such as /metrics and /ping.")
    ] = []
    served_model_name: Annotated[
        list[str] | None, Meta(description="Names under which the model is served; responses show the first.")
    ] = None
    skip_model_name_validation: Annotated[bool, Meta(description="Accept requests with any model name.")] = False
    chat_template: Annotated[str | None, Meta(description="Chat template: a file or the template itself.")] = None
    chat_template_content_format: Annotated[
        Literal["auto", "string", "openai"],
        Meta(
            description="How the chat template gets messages' content: string as one text, openai as a list of parts; "
            "auto looks at the template."
        ),
    ] = "auto"
    reasoning_effort_map: Annotated[
        dict[Effort, str] | None,
        Meta(description="Reasoning efforts in requests, and the values given to the chat template instead, as JSON."),
    ] = None
    default_chat_template_kwargs: Annotated[
        dict[str, Any] | None,
        Meta(description="Values passed to the chat template unless the request sets them, as JSON."),
    ] = None
    response_role: Annotated[str, Meta(description="Role of chat answers.")] = "assistant"
    anthropic_disabled_thinking_effort: Annotated[
        Literal["auto", "none", "low", "medium", "high", "xhigh", "max"],
        Meta(
            description="reasoning_effort for Anthropic requests that disable thinking, for models that always reason; "
            "auto sets none."
        ),
    ] = "auto"
    tool_call_parser: Annotated[
        str,
        Meta(description="Parser for tool calls; auto goes by the chat template, empty leaves calls in the content."),
    ] = "auto"
    tool_parser_plugin: Annotated[str, Meta(description="Python file that registers additional tool-call parsers.")] = (
        ""
    )
    enable_auto_tool_choice: Annotated[
        bool,
        Meta(
            description="Accepted for compatibility with vLLM, without effect: tool calls are parsed whenever a parser "
            "is set."
        ),
    ] = False
    exclude_tools_when_tool_choice_none: Annotated[
        bool, Meta(description="Do not show tools to the model if tool_choice is none.")
    ] = False
    chat_template_date: Annotated[
        str | None,
        Meta(description="Date that chat templates use as today's, as YYYY-MM-DD; pins gpt-oss's system message."),
    ] = None
    response_store_count: Annotated[
        int, Meta(ge=0, description="Maximum number of Responses API answers kept in memory; 0 keeps none.")
    ] = 4096
    response_store_bytes: Annotated[
        int,
        Meta(
            ge=0, description="Maximum size of these answers together; the oldest are dropped. Takes suffixes: 256MiB."
        ),
    ] = 256 << 20
    allowed_mcp_server: Annotated[
        list[str] | None,
        Meta(description="MCP servers that requests to the Responses API may use, each as URL or LABEL=URL."),
    ] = None
    tool_server: Annotated[
        str | None, Meta(description="MCP servers over SSE, in vLLM's form: HOST:PORT, separated by commas.")
    ] = None
    builtin_tool: Annotated[
        list[str] | None,
        Meta(description="Plug-ins for built-in tools: TYPE=package.module:NAME or TYPE=FILE.py:NAME."),
    ] = None
    api_server_count: Annotated[int, Meta(ge=1, le=64, description="Number of API processes.")] = 1
    shutdown_timeout: Annotated[
        float, Meta(ge=0, description="Seconds that running requests get to finish after SIGTERM.")
    ] = 30.0
    max_request_bytes: Annotated[
        int, Meta(ge=1024, description="Maximum size of a request body. Takes suffixes: 4MiB.")
    ] = 4 << 20
    request_timeout: Annotated[float, Meta(gt=0, description="Seconds a client may take to send its request.")] = 30.0
    http_keep_alive_timeout: Annotated[
        int, Meta(ge=1, description="Seconds that a connection without a request is kept open.")
    ] = 30
    stream_write_timeout: Annotated[
        float, Meta(gt=0, description="Seconds after which a client that reads nothing of its stream is disconnected.")
    ] = 60.0
    request_deadline: Annotated[
        PositiveFloat | None,
        Meta(
            description="Seconds after which a request is ended; clients may ask for less with the header "
            "X-Request-Timeout.",
        ),
    ] = None
    fair_share: Annotated[
        Literal["auto", "key", "user", "none"],
        Meta(
            description="Clients between which waiting requests take turns: API keys, or the users that requests name; "
            "auto takes keys if there are several."
        ),
    ] = "auto"
    enable_admin_endpoints: Annotated[
        bool,
        Meta(
            description="Enable routes to pause, sleep, profile, reset caches and update weights; also set by "
            "VLLM_SERVER_DEV_MODE=1."
        ),
    ] = False
    enable_tokenizer_info_endpoint: Annotated[bool, Meta(description="Enable the route /tokenizer_info.")] = False
    middleware: Annotated[
        list[str],
        Meta(description="ASGI middleware around the server, as package.module.Class or package.module:Class."),
    ] = []
    sse_keep_alive_interval: Annotated[
        float,
        Meta(
            ge=0,
            description="Seconds without an event after which a stream gets a comment, for proxies that close quiet "
            "connections; 0 is never. Streams of the Responses API get none.",
        ),
    ] = 0.0
    fingerprint_mode: Annotated[
        Literal["full", "hash", "custom", "none"],
        Meta(
            description="What answers say as system_fingerprint: full or hash names version and settings, custom is "
            "fingerprint_value, none leaves it out."
        ),
    ] = "full"
    fingerprint_value: Annotated[str | None, Meta(description="The system_fingerprint of the mode custom.")] = None
    root_path: Annotated[str, Meta(description="Path prefix that a proxy strips.")] = ""
    allowed_origins: Annotated[list[str], Meta(description="Origins that CORS allows, as JSON; none by default.")] = []
    allowed_methods: Annotated[
        list[str] | None, Meta(description="Methods that CORS allows, as JSON; all by default.")
    ] = None
    allowed_headers: Annotated[
        list[str] | None, Meta(description="Headers that CORS allows, as JSON; all by default.")
    ] = None
    allow_credentials: Annotated[bool, Meta(description="Allow credentials from other origins.")] = False
    disable_fastapi_docs: Annotated[bool, Meta(description="Disable the OpenAPI page /docs.")] = False
    disable_console: Annotated[bool, Meta(description="Disable the web console at /.")] = False
    enable_request_id_headers: Annotated[
        bool, Meta(description="Return X-Request-Id, generated if the client sent none; log lines contain it as well.")
    ] = True
    enable_per_request_metrics: Annotated[
        bool, Meta(description="Add a request's own latencies to chat and completions answers, as metrics.")
    ] = False
    enable_prompt_tokens_details: Annotated[bool, Meta(description="Report cached prompt tokens in usage.")] = True
    return_tokens_as_token_ids: Annotated[
        bool, Meta(description="Write tokens in log-probabilities as token_id:NUMBER, for all requests.")
    ] = False
    enable_force_include_usage: Annotated[
        bool, Meta(description="Include usage in streams even if the client did not ask for it.")
    ] = False
    disable_uvicorn_access_log: Annotated[bool, Meta(description="Do not log HTTP requests.")] = False
    disable_access_log_for_endpoints: Annotated[
        str | None,
        Meta(description="Paths that are left out of the access log, separated by commas: /health,/metrics."),
    ] = None
    ssl_keyfile: Annotated[str | None, Meta(description="TLS key file.")] = None
    ssl_certfile: Annotated[str | None, Meta(description="TLS certificate file.")] = None
    ssl_ca_certs: Annotated[
        str | None, Meta(description="CA certificates that client certificates are checked against.")
    ] = None
    ssl_cert_reqs: Annotated[int, Meta(ge=0, description="Client certificates: 0 none, 1 optional, 2 required.")] = 0
    ssl_ciphers: Annotated[str | None, Meta(description="Ciphers for TLS up to 1.2, in OpenSSL's notation.")] = None
