"""Every setting, once: its type, default, bounds and meaning.

Flags of the command line (``--max-num-seqs``), keyword arguments of ``LLM`` and ``AsyncLLM``
(``max_num_seqs``) and the table in ``docs/configuration.md`` are all derived from these classes; the text below a field
is its description (:mod:`octavo.config.descriptions`).
They are grouped and checked by :mod:`octavo.config.engine_config`.
``None`` means "chosen at startup for the model and the device"; :mod:`octavo.planning` chooses and records its reason.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from octavo.config.kv_events import KVEventsConfig
from octavo.config.values import (
    BlockCount,
    BlockSize,
    Convert,
    DType,
    Effort,
    KVCacheDType,
    LoadFormat,
    ModelImpl,
    MoeBackend,
    Policy,
    PositiveFloat,
    PositiveInt,
    Quantization,
    Runner,
)


class ModelSettings(msgspec.Struct, kw_only=True):
    """Model, tokenizer and data types."""

    model: str
    """Hugging Face id, folder, GGUF file, or bundled:NAME."""
    runner: Runner = "auto"
    """Task of the model: generate produces text, pooling produces vectors; auto decides by the model's files."""
    convert: Convert = "auto"
    """Turn a generating model into a pooling model: embed or classify; auto decides by the model's files."""
    model_impl: ModelImpl = "auto"
    """Who implements the model: octavo (or vllm) its own families, transformers the modules of the transformers library
    with Octavo's attention, cache and linear layers; auto takes transformers for architectures that have no family."""
    pooler_config: dict[str, Any] | None = None
    """Overrides how the model pools: seq_pooling_type, use_activation, task."""
    tokenizer: str | None = None
    """Hugging Face id or path of the tokenizer; default is the model's."""
    skip_tokenizer_init: bool = False
    """Load no tokenizer: prompts are token ids and outputs have no text."""
    trust_remote_code: bool = False
    """Accepted for compatibility with vLLM, without effect. Octavo has its own code for each architecture and never
    runs Python files from a model's folder; a model that needs them is rejected."""
    revision: str | None = None
    """Branch, tag or commit of the model on the hub."""
    tokenizer_revision: str | None = None
    """Branch, tag or commit of the tokenizer on the hub."""
    hf_token: str | None = None
    """Access token for the hub."""
    hf_overrides: dict[str, Any] | None = None
    """Values that override the model's config.json, as JSON."""
    dtype: DType = "auto"
    """Data type of the computation; auto takes the model's own if it is fast on the device."""
    quantization: Quantization | None = None
    """How weights are quantised; default is as in the checkpoint, which compressed-tensors, gptq, awq and bitsandbytes
    only confirm; with dtype float32, integers in checkpoints and GGUF files are dequantised unless it names their kind.
    fp8 rounds unquantised weights to float8 while they are loaded (on CPUs with compiled kernels to int8, unless dtype
    is float32), int8 and int4 to integers and mxfp4 to 4-bit floats (GPUs, and CPUs with compiled kernels).
    gptq_marlin, modelopt_fp4 and the like are vLLM's names of these."""
    moe_backend: MoeBackend = "auto"
    """Kernels for experts: triton on GPUs, native (compiled) or torch on CPUs; auto takes the fastest. The others are
    vLLM's, and an error."""
    seed: int = 0
    """Seed for dummy weights and for requests without one."""
    uniform_routing: bool = False
    """For measurements: tokens draw their experts evenly, whatever their scores; texts mean nothing."""
    enable_return_routed_experts: bool = False
    """Answers tell which experts each token chose (routing replay)."""
    max_model_len: PositiveInt | None = None
    """Context length: maximum number of tokens of a prompt and its answer together."""
    allow_long_max_model_len: bool = False
    """Allow a max_model_len above the model's context length; answers beyond that length may be nonsense."""
    structured_outputs_backend: Literal["auto", "xgrammar", "guidance"] = "auto"
    """Grammar backend for requests that name none; auto takes one that supports everything the grammar uses."""
    structured_outputs_disable_any_whitespace: bool = False
    """JSON on one line, for requests whose grammar is JSON; models may otherwise indent it."""
    reasoning_parser: str = ""
    """Parser that separates reasoning from content; auto goes by the chat template, empty leaves reasoning in the
    content. Structured output constrains what follows the reasoning."""
    reasoning_config: dict[str, Any] | None = None
    """Markers for thinking_token_budget in place of the reasoning parser's own, as JSON: reasoning_start_str begins
    reasoning, reasoning_end_str is forced when the budget is spent."""
    reasoning_parser_plugin: str = ""
    """Python file that registers additional reasoning parsers."""
    enable_prompt_embeds: bool = False
    """Accept prompts as vectors, one per token, instead of text."""
    max_logprobs: Annotated[int, Meta(ge=-1)] = 20
    """Maximum number of log-probabilities per token that a request may ask for; -1 is no limit."""
    generation_config: str = "auto"
    """Source of the sampling defaults: auto is the model's generation_config.json, vllm (or octavo) the engine's own
    defaults, a folder the generation_config.json in it."""
    override_generation_config: dict[str, Any] | None = None
    """Values that override the generation config, as JSON."""
    logits_processors: list[Any] | None = None
    """Custom logits processors: classes, or names as package.module:Class."""
    allowed_functions: list[str] | None = None
    """Functions, as package.module:function, that AsyncLLM.collective_rpc may call in the engine process; none by
    default."""
    enforce_eager: bool = False
    """Do not capture CUDA graphs."""


class LoadSettings(msgspec.Struct, kw_only=True):
    """How weights are loaded."""

    load_format: LoadFormat = "auto"
    """auto goes by the files; dummy creates random weights of the right shapes. hf, fastsafetensors, instanttensor and
    runai_streamer, vLLM's readers of safetensors files, mean safetensors."""
    download_dir: str | None = None
    """Cache folder for downloads from the hub."""
    use_tqdm_on_load: bool = True
    """Show a progress bar while loading."""
    weight_update_dir: str | None = None
    """Folder of the safetensors files that /update_weights may read; else only the model's own."""


class CacheSettings(msgspec.Struct, kw_only=True):
    """The paged key/value cache."""

    block_size: BlockSize | None = None
    """Number of tokens in a cache block."""
    mamba_block_size: BlockSize | None = None
    """Number of tokens between the recurrent states that the prefix cache keeps, rounded up to whole cache blocks;
    default is 512."""
    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1)] = 0.92
    """Share of the device's memory that this process may use in total."""
    kv_cache_memory_bytes: PositiveInt | None = None
    """Size of the cache; overrides gpu_memory_utilization. Takes suffixes: 4GiB, 500MB."""
    cpu_cache_memory_bytes: PositiveInt | None = None
    """Size of the cache on a CPU; kv_cache_memory_bytes takes precedence."""
    kv_cache_dtype: KVCacheDType = "auto"
    """Type of keys and values in the cache: auto is as the checkpoint says, else the type of the computation; fp8
    (fp8_e4m3), fp8_e5m2 and the types per token and head take half the memory. Scales come from the checkpoint if fp8
    is that and it has some; otherwise each token has one per head."""
    kv_cache_dtype_skip_layers: list[str] | None = None
    """Layers whose keys and values are not quantised: indices, and sliding_window for all layers with one."""
    num_gpu_blocks_override: BlockCount | None = None
    """Number of cache blocks, regardless of the memory available."""
    enable_prefix_caching: bool | None = None
    """Keep computed blocks and reuse them for prompts with the same beginning; on unless the device rules it out."""


class SchedulerSettings(msgspec.Struct, kw_only=True):
    """Limits of a step and of the queue."""

    performance_mode: Literal["balanced", "interactivity", "throughput"] = "balanced"
    """Goal of the defaults: interactivity captures a graph for each batch size up to 32, throughput doubles the default
    max_num_seqs and max_num_batched_tokens. Unless throughput is the goal, large devices compute fewer prompt tokens
    per step while other requests decode."""
    max_num_batched_tokens: PositiveInt | None = None
    """Maximum number of tokens that the buffers of a step hold."""
    max_num_scheduled_tokens: PositiveInt | None = None
    """Maximum number of tokens scheduled per step; default is max_num_batched_tokens."""
    max_num_seqs: PositiveInt | None = None
    """Maximum number of requests in a step (max batch size)."""
    scheduling_policy: Policy = "fcfs"
    """fcfs: first come, first served; priority: lowest priority value first."""
    enable_chunked_prefill: bool | None = None
    """Split long prompts over several steps; without it a prompt must fit into one step. On unless the device rules it
    out."""
    max_num_waiting: PositiveInt | None = None
    """Maximum number of waiting requests; further ones are rejected with status 429."""
    max_num_waiting_tokens: PositiveInt | None = None
    """Maximum number of prompt tokens of requests without a first token; further requests are rejected with status
    429."""
    max_num_queued_reqs: PositiveInt | None = None
    """Maximum number of requests in flight, running ones included; further ones are rejected with status 429."""
    step_timeout: Annotated[float, Meta(gt=0)] = 60.0
    """Seconds without a finished step after which /health reports a busy engine as unhealthy."""
    async_scheduling: bool | None = None
    """Prepare the next step before the tokens of the current one are known."""
    speculative_config: dict[str, Any] | None = None
    """Speculative decoding, as JSON: method is ngram (drafts from the request's own text), num_speculative_tokens the
    number of drafts per step, prompt_lookup_min and prompt_lookup_max how many of the last tokens are looked for in the
    text before them (5 unless set)."""


class DeviceSettings(msgspec.Struct, kw_only=True):
    """Devices and threads."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Kind of device."""
    tensor_parallel_size: Annotated[int, Meta(ge=1)] = 1
    """Number of devices that share each layer; on CPUs, of processes."""
    distributed_executor_backend: Literal["mp", "uni", "ray"] | None = None
    """How workers of several devices are started: mp as processes of this machine (the default), ray as actors of a Ray
    cluster; uni allows one device only."""
    deterministic: bool = False
    """Use GPU kernels whose results for a request do not depend on the rest of the batch, bit for bit."""
    num_threads: PositiveInt | None = None
    """Number of CPU threads for computation; default is one per core that the process may use, as cpu_threads_bind
    says."""
    cpu_threads_bind: str = "auto"
    """CPUs of the threads that compute on a CPU. auto takes one hardware thread of each core, and where several
    processes compute, gives each one NUMA node's cores; nobind leaves threads to the system, and their number to
    OMP_NUM_THREADS if that is set; a list such as 0-31, or 0-31|32-63 for two processes, has one thread on each CPU
    named."""
    cpu_reserved_cores: Annotated[int, Meta(ge=0)] | None = None
    """Cores of each process that cpu_threads_bind auto leaves to other threads; default is 1 where several processes
    have more than two cores each, else 0."""
    cache_root: str | None = None
    """Folder of what a start leaves for the next one: kernels compiled for this machine's GPU. Default is octavo in
    $XDG_CACHE_HOME or ~/.cache, or, for the kernels, the folder that TRITON_CACHE_DIR names. It may be deleted at any
    time."""


class LoggingSettings(msgspec.Struct, kw_only=True):
    """Logs, metrics, traces, profiles and cache events."""

    disable_log_stats: bool = False
    """Do not log statistics periodically."""
    log_stats_interval: Annotated[float, Meta(gt=0)] = 10.0
    """Seconds between two log lines of statistics."""
    metrics_prefix: Literal["octavo:", "vllm:"] = "octavo:"
    """Prefix of metric names at /metrics; vllm: keeps dashboards made for vLLM working."""
    enable_log_requests: bool = False
    """Log one line per request, with its parameters but without its text."""
    enable_log_outputs: bool = False
    """Include prompts and answers in these lines; needs enable_log_requests."""
    max_log_len: PositiveInt | None = None
    """Maximum number of characters of a prompt or an answer that are logged."""
    log_format: Literal["text", "json"] = "text"
    """Lines of text, or one JSON object per line."""
    log_config_file: str | None = None
    """JSON file that configures logging, as Python's logging.config.dictConfig reads it, instead of log_level and
    log_format; a server's and its engine's."""
    fail_on_environ_validation: bool = False
    """Do not start if one of vLLM's variables is set that has no effect here."""
    otlp_traces_endpoint: str | None = None
    """URL of the OpenTelemetry collector that receives a trace of each request."""
    profiler_config: dict[str, Any] | None = None
    """Lets /start_profile write traces, as JSON: {"torch_profiler_dir": "FOLDER"}."""
    kv_events_config: KVEventsConfig | None = None
    """Publish events of cached blocks over ZeroMQ, as JSON with vLLM's fields: {"enable_kv_cache_events": true,
    "endpoint": "tcp://*:5557"}. Whoever can connect reads the token ids of prompts and answers."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest severity that is logged."""


class ServerSettings(msgspec.Struct, kw_only=True):
    """The HTTP server."""

    host: str | None = None
    """Address to listen on; default is all addresses of this machine."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    """Port to listen on; 0 takes a free one."""
    uds: str | None = None
    """Unix socket to listen on instead of host and port."""
    api_key: list[str] | None = None
    """Keys that clients must send as bearer token, on all routes but /health and the web console's files."""
    no_auth_paths: list[str] = []
    """Further paths that need no key, such as /metrics and /ping."""
    served_model_name: list[str] | None = None
    """Names under which the model is served; responses show the first."""
    skip_model_name_validation: bool = False
    """Accept requests with any model name."""
    chat_template: str | None = None
    """Chat template: a file or the template itself."""
    chat_template_content_format: Literal["auto", "string", "openai"] = "auto"
    """How the chat template gets messages' content: string as one text, openai as a list of parts; auto looks at the
    template."""
    reasoning_effort_map: dict[Effort, str] | None = None
    """Reasoning efforts in requests, and the values given to the chat template instead, as JSON."""
    default_chat_template_kwargs: dict[str, Any] | None = None
    """Values passed to the chat template unless the request sets them, as JSON."""
    response_role: str = "assistant"
    """Role of chat answers."""
    anthropic_disabled_thinking_effort: Literal["auto", "none", "low", "medium", "high", "xhigh", "max"] = "auto"
    """reasoning_effort for Anthropic requests that disable thinking, for models that always reason; auto sets none."""
    tool_call_parser: str = "auto"
    """Parser for tool calls; auto goes by the chat template, empty leaves calls in the content."""
    tool_parser_plugin: str = ""
    """Python file that registers additional tool-call parsers."""
    enable_auto_tool_choice: bool = False
    """Accepted for compatibility with vLLM, without effect: tool calls are parsed whenever a parser is set."""
    exclude_tools_when_tool_choice_none: bool = False
    """Do not show tools to the model if tool_choice is none."""
    chat_template_date: str | None = None
    """Date that chat templates use as today's, as YYYY-MM-DD; pins gpt-oss's system message."""
    response_store_count: Annotated[int, Meta(ge=0)] = 4096
    """Maximum number of Responses API answers kept in memory; 0 keeps none."""
    response_store_bytes: Annotated[int, Meta(ge=0)] = 256 << 20
    """Maximum size of these answers together; the oldest are dropped. Takes suffixes: 256MiB."""
    allowed_mcp_server: list[str] | None = None
    """MCP servers that requests to the Responses API may use, each as URL or LABEL=URL."""
    tool_server: str | None = None
    """MCP servers over SSE, in vLLM's form: HOST:PORT, separated by commas."""
    builtin_tool: list[str] | None = None
    """Plug-ins for built-in tools: TYPE=package.module:NAME or TYPE=FILE.py:NAME."""
    api_server_count: Annotated[int, Meta(ge=1, le=64)] = 1
    """Number of API processes."""
    shutdown_timeout: Annotated[float, Meta(ge=0)] = 30.0
    """Seconds that running requests get to finish after SIGTERM."""
    max_request_bytes: Annotated[int, Meta(ge=1024)] = 4 << 20
    """Maximum size of a request body. Takes suffixes: 4MiB."""
    request_timeout: Annotated[float, Meta(gt=0)] = 30.0
    """Seconds a client may take to send its request."""
    http_keep_alive_timeout: Annotated[int, Meta(ge=1)] = 30
    """Seconds that a connection without a request is kept open."""
    stream_write_timeout: Annotated[float, Meta(gt=0)] = 60.0
    """Seconds after which a client that reads nothing of its stream is disconnected."""
    request_deadline: PositiveFloat | None = None
    """Seconds after which a request is ended; clients may ask for less with the header X-Request-Timeout."""
    fair_share: Literal["auto", "key", "user", "none"] = "auto"
    """Clients between which waiting requests take turns: API keys, or the users that requests name; auto takes keys if
    there are several."""
    enable_admin_endpoints: bool = False
    """Enable routes to pause, sleep, profile, reset caches and update weights; also set by VLLM_SERVER_DEV_MODE=1."""
    enable_tokenizer_info_endpoint: bool = False
    """Enable the route /tokenizer_info."""
    middleware: list[str] = []
    """ASGI middleware around the server, as package.module.Class or package.module:Class."""
    sse_keep_alive_interval: Annotated[float, Meta(ge=0)] = 0.0
    """Seconds without an event after which a stream gets a comment, for proxies that close quiet connections; 0 is
    never. Streams of the Responses API get none."""
    fingerprint_mode: Literal["full", "hash", "custom", "none"] = "full"
    """What answers say as system_fingerprint: full or hash names version and settings, custom is fingerprint_value,
    none leaves it out."""
    fingerprint_value: str | None = None
    """The system_fingerprint of the mode custom."""
    root_path: str = ""
    """Path prefix that a proxy strips."""
    allowed_origins: list[str] = []
    """Origins that CORS allows, as JSON; none by default."""
    allowed_methods: list[str] | None = None
    """Methods that CORS allows, as JSON; all by default."""
    allowed_headers: list[str] | None = None
    """Headers that CORS allows, as JSON; all by default."""
    allow_credentials: bool = False
    """Allow credentials from other origins."""
    disable_fastapi_docs: bool = False
    """Disable the OpenAPI page /docs."""
    disable_console: bool = False
    """Disable the web console at /."""
    enable_request_id_headers: bool = True
    """Return X-Request-Id, generated if the client sent none; log lines contain it as well."""
    enable_per_request_metrics: bool = False
    """Add a request's own latencies to chat and completions answers, as metrics."""
    enable_prompt_tokens_details: bool = True
    """Report cached prompt tokens in usage."""
    return_tokens_as_token_ids: bool = False
    """Write tokens in log-probabilities as token_id:NUMBER, for all requests."""
    enable_force_include_usage: bool = False
    """Include usage in streams even if the client did not ask for it."""
    disable_uvicorn_access_log: bool = False
    """Do not log HTTP requests."""
    disable_access_log_for_endpoints: str | None = None
    """Paths that are left out of the access log, separated by commas: /health,/metrics."""
    ssl_keyfile: str | None = None
    """TLS key file."""
    ssl_certfile: str | None = None
    """TLS certificate file."""
    ssl_ca_certs: str | None = None
    """CA certificates that client certificates are checked against."""
    ssl_cert_reqs: Annotated[int, Meta(ge=0)] = 0
    """Client certificates: 0 none, 1 optional, 2 required."""
    ssl_ciphers: str | None = None
    """Ciphers for TLS up to 1.2, in OpenSSL's notation."""
