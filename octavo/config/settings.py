"""Every setting, once: its type, default, bounds and meaning.

Flags of the command line (``--max-num-seqs``), keyword arguments of ``LLM`` and ``AsyncLLM``
(``max_num_seqs``) and the table in ``docs/configuration.md`` are all read off these classes.
``None`` means "decided at start from model and device"; :mod:`octavo.planning` does that and gives its reason.
"""

import difflib
import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from octavo.config.environment import environment_warning, settings_from_environment
from octavo.config.vllm_arguments import translate
from octavo.errors import ConfigError

logger = logging.getLogger(__name__)

DType = Literal["auto", "bfloat16", "float16", "float32", "half", "float"]
LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
Policy = Literal["fcfs", "priority"]
Runner = Literal["auto", "generate", "pooling"]
Convert = Literal["auto", "none", "embed", "classify"]
PositiveInt = Annotated[int, Meta(ge=1)]
PositiveFloat = Annotated[float, Meta(gt=0)]
BlockSize = Annotated[int, Meta(ge=1, le=1024)]
BlockCount = Annotated[int, Meta(ge=2)]


class ModelSettings(msgspec.Struct, kw_only=True):
    """Which model, and how to read it."""

    model: Annotated[str, Meta(description="Hugging Face id, folder, GGUF file, or bundled:NAME.")]
    runner: Annotated[
        Runner,
        Meta(description="What the model does: generate writes text, pooling answers with vectors; auto looks at it."),
    ] = "auto"
    convert: Annotated[
        Convert,
        Meta(description="Use a model that writes text for vectors instead: embed, or classify; auto looks at it."),
    ] = "auto"
    pooler_config: Annotated[
        dict[str, Any] | None,
        Meta(description="How vectors are made, instead of as the model says: seq_pooling_type, use_activation, task."),
    ] = None
    tokenizer: Annotated[str | None, Meta(description="Where the tokenizer comes from, if not from the model.")] = None
    skip_tokenizer_init: Annotated[
        bool, Meta(description="Load no tokenizer: prompts are token ids and outputs have no text.")
    ] = False
    trust_remote_code: Annotated[
        bool,
        Meta(
            description="Accepted for vLLM's sake; lets nothing run. Octavo brings its own code for each architecture "
            "and never runs Python files from a model's folder, so a model that needs them is rejected."
        ),
    ] = False
    revision: Annotated[str | None, Meta(description="Branch, tag or commit of the model on the hub.")] = None
    tokenizer_revision: Annotated[str | None, Meta(description="The same for the tokenizer.")] = None
    hf_token: Annotated[str | None, Meta(description="Token for the hub.")] = None
    hf_overrides: Annotated[
        dict[str, Any] | None, Meta(description="Values that replace those of the model's config.json, as JSON.")
    ] = None
    dtype: Annotated[
        DType, Meta(description="Type to compute in; auto takes the model's own, where the device is fast in it.")
    ] = "auto"
    seed: Annotated[int, Meta(description="Seed for dummy weights and for requests without one.")] = 0
    max_model_len: Annotated[
        PositiveInt | None, Meta(description="Longest sequence in tokens, prompt and answer together.")
    ] = None
    allow_long_max_model_len: Annotated[
        bool,
        Meta(
            description="Let max_model_len exceed what the model was made for; its answers may be nonsense from there."
        ),
    ] = False
    structured_outputs_backend: Annotated[
        Literal["auto", "xgrammar", "guidance"],
        Meta(description="What compiles the grammars of requests that name none; auto takes what follows all of one."),
    ] = "auto"
    enable_prompt_embeds: Annotated[
        bool, Meta(description="Take prompts that are vectors, one for each token's place, in place of text.")
    ] = False
    max_logprobs: Annotated[
        int, Meta(ge=-1, description="Most log-probabilities a request may ask for per token; -1 is no limit.")
    ] = 20
    generation_config: Annotated[
        str,
        Meta(
            description="Sampling defaults: auto takes the model's generation_config.json, vllm (or octavo) the "
            "engine's own, a folder that folder's file."
        ),
    ] = "auto"
    override_generation_config: Annotated[
        dict[str, Any] | None, Meta(description="Values that replace those of the generation config, as JSON.")
    ] = None
    logits_processors: Annotated[
        list[Any] | None, Meta(description="Custom logit processors: classes, or names as package.module:Class.")
    ] = None
    allowed_functions: Annotated[
        list[str] | None,
        Meta(
            description="Functions, as package.module:function, that AsyncLLM.collective_rpc may call in the engine's "
            "process; none by default."
        ),
    ] = None
    enforce_eager: Annotated[bool, Meta(description="Never capture device graphs.")] = False


class LoadSettings(msgspec.Struct, kw_only=True):
    """How weights get into memory."""

    load_format: Annotated[
        LoadFormat, Meta(description="auto looks at the files; dummy makes random weights from the shapes.")
    ] = "auto"
    download_dir: Annotated[str | None, Meta(description="Cache folder for downloads from the hub.")] = None
    use_tqdm_on_load: Annotated[bool, Meta(description="Show a progress bar while loading.")] = True
    weight_update_dir: Annotated[
        str | None,
        Meta(description="Folder below which /update_weights may find safetensors files; else only the model's own."),
    ] = None


class CacheSettings(msgspec.Struct, kw_only=True):
    """The paged key/value cache."""

    block_size: Annotated[BlockSize | None, Meta(description="Tokens in a cache block.")] = None
    gpu_memory_utilization: Annotated[
        float, Meta(gt=0, le=1, description="Share of the device's memory this process may use for everything it does.")
    ] = 0.92
    kv_cache_memory_bytes: Annotated[
        PositiveInt | None, Meta(description="Bytes for the cache; overrides the share. Takes suffixes: 4GiB, 500MB.")
    ] = None
    cpu_cache_memory_bytes: Annotated[
        PositiveInt | None,
        Meta(description="The same where the device is a CPU; kv_cache_memory_bytes goes first."),
    ] = None
    num_gpu_blocks_override: Annotated[
        BlockCount | None, Meta(description="Number of cache blocks, whatever memory there is.")
    ] = None
    enable_prefix_caching: Annotated[
        bool | None,
        Meta(
            description="Keep computed blocks and reuse them for prompts that begin alike; on unless the device says."
        ),
    ] = None


class SchedulerSettings(msgspec.Struct, kw_only=True):
    """What one step may hold."""

    performance_mode: Annotated[
        Literal["balanced", "interactivity", "throughput"],
        Meta(
            description="What defaults aim at: interactivity captures a graph for each batch size up to 32, "
            "throughput doubles the default max_num_seqs and max_num_batched_tokens."
        ),
    ] = "balanced"
    max_num_batched_tokens: Annotated[PositiveInt | None, Meta(description="Most tokens that a step has room for.")] = (
        None
    )
    max_num_scheduled_tokens: Annotated[
        PositiveInt | None,
        Meta(description="Most tokens that the scheduler puts into a step; default is max_num_batched_tokens."),
    ] = None
    max_num_seqs: Annotated[PositiveInt | None, Meta(description="Most requests in a step.")] = None
    scheduling_policy: Annotated[
        Policy, Meta(description="fcfs: first come, first served; priority: lowest priority value first.")
    ] = "fcfs"
    enable_chunked_prefill: Annotated[
        bool | None,
        Meta(
            description="Split long prompts over steps; without it a prompt must fit one step's budget. On unless the "
            "device says."
        ),
    ] = None
    max_num_waiting: Annotated[
        PositiveInt | None, Meta(description="Most requests that may wait; further ones are refused with status 429.")
    ] = None
    max_num_waiting_tokens: Annotated[
        PositiveInt | None,
        Meta(description="Most prompt tokens that may wait for their first answer token; more are refused likewise."),
    ] = None
    step_timeout: Annotated[
        float, Meta(gt=0, description="Seconds without a finished step after which a busy engine counts as down.")
    ] = 60.0
    async_scheduling: Annotated[
        bool | None, Meta(description="Prepare the next step before the last one's tokens are known.")
    ] = None


class DeviceSettings(msgspec.Struct, kw_only=True):
    """Where to run."""

    device: Annotated[Literal["auto", "cpu", "cuda"], Meta(description="Kind of device.")] = "auto"
    tensor_parallel_size: Annotated[int, Meta(ge=1, description="Devices that share each layer; only 1 so far.")] = 1
    deterministic: Annotated[
        bool,
        Meta(description="GPU kernels whose results for a request have the same bits whatever else is in the batch."),
    ] = False
    num_threads: Annotated[
        PositiveInt | None, Meta(description="CPU threads for computing; default is one per available core.")
    ] = None


class LoggingSettings(msgspec.Struct, kw_only=True):
    """What is written to the log, to traces and to profiles."""

    disable_log_stats: Annotated[bool, Meta(description="No periodic line of figures.")] = False
    log_stats_interval: Annotated[float, Meta(gt=0, description="Seconds between two such lines.")] = 10.0
    metrics_prefix: Annotated[
        Literal["octavo:", "vllm:"],
        Meta(description="How the names at /metrics begin; with vllm: dashboards made for vLLM work unchanged."),
    ] = "octavo:"
    enable_log_requests: Annotated[
        bool, Meta(description="A line per request, with its parameters but without its text.")
    ] = False
    enable_log_outputs: Annotated[
        bool, Meta(description="Show prompts and answers in those lines, too; needs enable_log_requests.")
    ] = False
    max_log_len: Annotated[
        PositiveInt | None, Meta(description="Most characters of a prompt or an answer that are logged.")
    ] = None
    log_format: Annotated[
        Literal["text", "json"], Meta(description="Lines for people, or one JSON object a line, for programs.")
    ] = "text"
    otlp_traces_endpoint: Annotated[
        str | None, Meta(description="Where to send a trace of each request: the URL of an OpenTelemetry collector.")
    ] = None
    profiler_config: Annotated[
        dict[str, Any] | None,
        Meta(description='Lets /start_profile write traces, as JSON: {"torch_profiler_dir": "FOLDER"}.'),
    ] = None
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="Least severity to log.")] = (
        "info"
    )


class ServerSettings(msgspec.Struct, kw_only=True):
    """The HTTP server."""

    host: Annotated[str | None, Meta(description="Address to listen on; default is all of this machine's.")] = None
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 takes a free one.")] = 8000
    uds: Annotated[str | None, Meta(description="Unix socket to listen on instead of host and port.")] = None
    api_key: Annotated[
        list[str] | None, Meta(description="Keys that clients must send as bearer token; all routes but health.")
    ] = None
    no_auth_paths: Annotated[
        list[str], Meta(description="Paths besides /health that need no key, such as /metrics and /ping.")
    ] = []
    served_model_name: Annotated[
        list[str] | None, Meta(description="Names under which the model is served; the first is shown in answers.")
    ] = None
    skip_model_name_validation: Annotated[
        bool, Meta(description="Answer requests under any model name, by the model that is there.")
    ] = False
    chat_template: Annotated[str | None, Meta(description="Chat template, as a file or the text itself.")] = None
    default_chat_template_kwargs: Annotated[
        dict[str, Any] | None, Meta(description="Values for the chat template unless the request sets them, as JSON.")
    ] = None
    response_role: Annotated[str, Meta(description="Role of the answers in chats.")] = "assistant"
    anthropic_disabled_thinking_effort: Annotated[
        Literal["auto", "none", "low", "medium", "high", "xhigh", "max"],
        Meta(
            description="reasoning_effort of Anthropic requests that switch thinking off, for models that cannot; "
            "auto sets none."
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        Meta(description="How thoughts are told from answers; auto goes by the chat template, empty leaves them in."),
    ] = ""
    reasoning_config: Annotated[
        dict[str, str] | None,
        Meta(
            description="Markers for thinking_token_budget in place of the reasoning parser's own, as JSON: "
            "reasoning_start_str begins reasoning, reasoning_end_str is forced when the budget is spent."
        ),
    ] = None
    reasoning_parser_plugin: Annotated[
        str, Meta(description="Python file of yours that registers more reasoning parsers.")
    ] = ""
    tool_call_parser: Annotated[
        str,
        Meta(description="How calls of tools are found in answers; auto goes by the chat template, empty leaves them."),
    ] = "auto"
    tool_parser_plugin: Annotated[str, Meta(description="Python file of yours that registers more tool parsers.")] = ""
    enable_auto_tool_choice: Annotated[
        bool, Meta(description="Accepted for vLLM's sake: models choose tools by themselves wherever a parser is set.")
    ] = False
    exclude_tools_when_tool_choice_none: Annotated[
        bool, Meta(description="Do not show tools to the model if tool_choice is none.")
    ] = False
    chat_template_date: Annotated[
        str | None,
        Meta(description="Date that templates write as today's, as YYYY-MM-DD; pins gpt-oss's system message."),
    ] = None
    response_store_count: Annotated[
        int, Meta(ge=0, description="Most answers of the Responses API that are kept in memory; 0 keeps none.")
    ] = 4096
    response_store_bytes: Annotated[
        int, Meta(ge=0, description="Most bytes that they may take; the oldest go. Takes suffixes: 256MiB.")
    ] = 256 << 20
    allowed_mcp_server: Annotated[
        list[str] | None,
        Meta(description="MCP servers that requests of the Responses API may use, each as URL or LABEL=URL."),
    ] = None
    tool_server: Annotated[
        str | None, Meta(description="The same for servers over SSE, as vLLM names them: HOST:PORT, comma between.")
    ] = None
    builtin_tool: Annotated[
        list[str] | None,
        Meta(description="Hooks for built-in tools: TYPE=package.module:NAME or TYPE=FILE.py:NAME."),
    ] = None
    api_server_count: Annotated[int, Meta(ge=1, le=64, description="Number of API processes.")] = 1
    shutdown_timeout: Annotated[
        float, Meta(ge=0, description="Seconds that running requests may take after SIGTERM.")
    ] = 30.0
    max_request_bytes: Annotated[int, Meta(ge=1024, description="Largest request body. Takes suffixes: 4MiB.")] = (
        4 << 20
    )
    request_timeout: Annotated[float, Meta(gt=0, description="Seconds a client may take to send its request.")] = 30.0
    http_keep_alive_timeout: Annotated[
        int, Meta(ge=1, description="Seconds that a connection without a request is kept open.")
    ] = 30
    stream_write_timeout: Annotated[
        float, Meta(gt=0, description="Seconds a client may leave a streamed answer unread before it is cut.")
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
            description="Between whom requests that wait are shared out fairly: API keys, or users as requests name "
            "them; auto takes keys if there are several."
        ),
    ] = "auto"
    enable_admin_endpoints: Annotated[
        bool,
        Meta(
            description="Routes to pause, sleep, profile, reset caches and update weights; VLLM_SERVER_DEV_MODE=1, too."
        ),
    ] = False
    enable_tokenizer_info_endpoint: Annotated[bool, Meta(description="The route /tokenizer_info.")] = False
    middleware: Annotated[
        list[str], Meta(description="ASGI middleware to put around the server, as package.module.Class or :Class.")
    ] = []
    root_path: Annotated[str, Meta(description="Path prefix that a proxy strips.")] = ""
    allowed_origins: Annotated[list[str], Meta(description="Origins allowed by CORS, as JSON; none unless given.")] = []
    allowed_methods: Annotated[
        list[str] | None, Meta(description="Methods that CORS allows, as JSON; all unless given.")
    ] = None
    allowed_headers: Annotated[
        list[str] | None, Meta(description="Headers that CORS allows, as JSON; all unless given.")
    ] = None
    allow_credentials: Annotated[bool, Meta(description="Let other origins send credentials.")] = False
    disable_fastapi_docs: Annotated[bool, Meta(description="No OpenAPI page.")] = False
    disable_console: Annotated[bool, Meta(description="No web page at /.")] = False
    enable_request_id_headers: Annotated[
        bool, Meta(description="Send X-Request-Id back, or one of the server's making; log lines name it as well.")
    ] = True
    enable_per_request_metrics: Annotated[
        bool, Meta(description="Let answers of chat and completions tell their own latencies, as metrics.")
    ] = False
    enable_prompt_tokens_details: Annotated[bool, Meta(description="Report cached prompt tokens in usage.")] = True
    return_tokens_as_token_ids: Annotated[
        bool, Meta(description="Write tokens in log-probabilities as token_id:NUMBER, for all requests.")
    ] = False
    enable_force_include_usage: Annotated[bool, Meta(description="Stream usage even if the client did not ask.")] = (
        False
    )
    disable_uvicorn_access_log: Annotated[bool, Meta(description="No line per HTTP request.")] = False
    disable_access_log_for_endpoints: Annotated[
        str | None, Meta(description="Paths without such a line, with commas between them: /health,/metrics.")
    ] = None
    ssl_keyfile: Annotated[str | None, Meta(description="Key file for TLS.")] = None
    ssl_certfile: Annotated[str | None, Meta(description="Certificate file for TLS.")] = None
    ssl_ca_certs: Annotated[str | None, Meta(description="Certificates that clients' are checked against.")] = None
    ssl_cert_reqs: Annotated[
        int, Meta(ge=0, description="Whether clients need a certificate: 0 no, 1 may have one, 2 must.")
    ] = 0
    ssl_ciphers: Annotated[str | None, Meta(description="Ciphers for TLS up to 1.2, as OpenSSL writes them.")] = None


class EngineConfig(msgspec.Struct, kw_only=True):
    """All settings of one engine."""

    model: ModelSettings
    load: LoadSettings = msgspec.field(default_factory=LoadSettings)
    cache: CacheSettings = msgspec.field(default_factory=CacheSettings)
    scheduler: SchedulerSettings = msgspec.field(default_factory=SchedulerSettings)
    device: DeviceSettings = msgspec.field(default_factory=DeviceSettings)
    logging: LoggingSettings = msgspec.field(default_factory=LoggingSettings)

    @classmethod
    def from_kwargs(cls, **kwargs: Any) -> "EngineConfig":
        """Build from flat keyword arguments, named like the settings, or like vLLM's.

        What is not given may come from environment variables (:mod:`octavo.config.environment`). Arguments of vLLM
        that change nothing are named in one warning, as are its variables.

        Raises:
            ConfigError: unknown name (with the nearest known one), wrong type, value out of bounds, or an argument of
                vLLM that needs a feature which is missing.
        """
        translation = translate(kwargs, has_server=False)
        settings = dict(translation.settings)
        for name in _SERVER_NAMES_OF_ENGINES & set(settings):
            translation.without_effect[name] = settings.pop(name)
        for warning in (translation.warning(), environment_warning()):
            if warning:
                logger.warning("%s", warning)
        return cls.from_settings({**settings, **settings_from_environment(_SECTION_OF, settings)})

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "EngineConfig":
        """Build from settings by name alone.

        Raises:
            ConfigError: as :meth:`from_kwargs`.
        """
        by_section: dict[str, dict[str, Any]] = {section: {} for section in ENGINE_SECTIONS}
        for name, value in settings.items():
            section = _SECTION_OF.get(name)
            if section is None:
                raise ConfigError(_explain_unknown(name))
            if value is not None:  # as if it were not given
                by_section[section][name] = str(value).removeprefix("torch.") if name == "dtype" else value
        config = cls(**{s: convert_section(ENGINE_SECTIONS[s], values) for s, values in by_section.items()})
        if config.model.trust_remote_code:
            logger.warning("trust_remote_code lets nothing run: Octavo runs no code from a model's folder.")
        return config


ENGINE_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "model": ModelSettings,
    "load": LoadSettings,
    "cache": CacheSettings,
    "scheduler": SchedulerSettings,
    "device": DeviceSettings,
    "logging": LoggingSettings,
}
_SECTION_OF: dict[str, str] = {
    name: section for section, struct in ENGINE_SECTIONS.items() for name in struct.__struct_fields__
}
# vLLM's engine arguments that are only the server's here: a name to show, a time to wait at the end.
_SERVER_NAMES_OF_ENGINES = {"served_model_name", "shutdown_timeout"}


def _explain_unknown(name: str) -> str:
    if name in ServerSettings.__struct_fields__:
        return f"{name!r} is a setting of the server: octavo serve has it, LLM does not."
    near = difflib.get_close_matches(name, _SECTION_OF, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"There is no setting {name!r}.{hint}"


def convert_section(struct: type[msgspec.Struct], values: dict[str, Any]) -> Any:
    """Check ``values`` against a section and build it.

    Raises:
        ConfigError: a value has the wrong type or is out of bounds; the sentence names the setting.
    """
    for name, value in values.items():
        try:
            msgspec.convert({**_required(struct), name: value}, struct)
        except msgspec.ValidationError as error:
            reason = str(error).split(" - at ")[0]
            raise ConfigError(f"Setting {name!r} is wrong, got {value!r}: {reason}.") from None
    try:
        return msgspec.convert(values, struct)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{error}.") from None


def _required(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: "" for field in msgspec.structs.fields(struct) if field.required}
