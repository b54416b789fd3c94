"""Settings from environment variables: vLLM's that are settings here, and the same under Octavo's prefix."""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from octavo.errors import ConfigError

_VLLM, _OWN = "VLLM_", "OCTAVO_"
_LEVELS = {"TRACE": "debug", "FATAL": "error", "CRITICAL": "error", "WARN": "warning"}


@dataclass(frozen=True, slots=True)
class VllmVariable:
    """A vLLM environment variable that sets a setting.

    Attributes:
        setting: its name; ``OCTAVO_`` and this name in capitals is the variable's other spelling.
        read: the setting's value for a text; None leaves the setting as it is.
        meaning: what the variable does, for people.
    """

    setting: str
    read: Callable[[str], Any]
    meaning: str


def read_bool(text: str) -> bool:
    """Whether a variable is on.

    Raises:
        ValueError: it says neither.
    """
    word = text.strip().lower()
    if word not in ("", "0", "1", "true", "false", "yes", "no", "on", "off"):
        raise ValueError("it is 0 or 1")
    return word in ("1", "true", "yes", "on")


def _gibibytes(text: str) -> int | None:
    return int(float(text) * (1 << 30)) or None


def _level(text: str) -> str:
    return _LEVELS.get(text.upper(), text.lower())


def _store_count(text: str) -> int | None:
    return None if read_bool(text) else 0


VLLM_VARIABLES: dict[str, VllmVariable] = {
    "VLLM_API_KEY": VllmVariable("api_key", lambda text: [text], "key that clients must send"),
    "VLLM_SERVER_DEV_MODE": VllmVariable("enable_admin_endpoints", read_bool, "1 opens the admin routes"),
    "VLLM_SYSTEM_START_DATE": VllmVariable("chat_template_date", str, "date that chat templates take for today's"),
    "VLLM_ENABLE_RESPONSES_API_STORE": VllmVariable(
        "response_store_count", _store_count, "0 stores no responses; they are stored by default"
    ),
    "VLLM_SKIP_MODEL_NAME_VALIDATION": VllmVariable(
        "skip_model_name_validation", read_bool, "1 takes requests under any model name"
    ),
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": VllmVariable(
        "http_keep_alive_timeout", int, "seconds that an idle connection is kept open"
    ),
    "VLLM_HTTP_MAX_REQUEST_BODY_SIZE": VllmVariable("max_request_bytes", int, "largest request body in bytes"),
    "VLLM_LOGGING_LEVEL": VllmVariable("log_level", _level, "least severity to log"),
    "VLLM_LOG_STATS_INTERVAL": VllmVariable("log_stats_interval", float, "seconds between lines of figures"),
    "VLLM_CPU_KVCACHE_SPACE": VllmVariable("cpu_cache_memory_bytes", _gibibytes, "GiB for the cache, on a CPU"),
    "VLLM_CPU_OMP_THREADS_BIND": VllmVariable(
        "cpu_threads_bind", str, "CPUs of computing threads: `auto`, `nobind`, or lists such as `0-31|32-63`"
    ),
    "VLLM_CPU_NUM_OF_RESERVED_CPU": VllmVariable(
        "cpu_reserved_cores", int, "cores of each process that computing threads leave to others"
    ),
    "VLLM_CACHE_ROOT": VllmVariable("cache_root", str, "folder of compiled kernels"),
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": VllmVariable(
        "allow_long_max_model_len", read_bool, "1 lets max_model_len exceed what the model was made for"
    ),
    "VLLM_BATCH_INVARIANT": VllmVariable("deterministic", read_bool, "1 makes results independent of the batch"),
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": VllmVariable(
        "step_timeout", float, "seconds without a finished step after which a busy engine counts as down"
    ),
}

# Variables for behaviour that is already the default, or that needs no setting here.
SATISFIED: dict[str, str] = {
    "VLLM_NO_USAGE_STATS": "no usage figures are ever sent",
    "VLLM_DO_NOT_TRACK": "no usage figures are ever sent",
    "VLLM_USAGE_SOURCE": "no usage figures are ever sent",
    "VLLM_USAGE_STATS_SERVER": "no usage figures are ever sent",
    "VLLM_USE_V1": "there is one engine",
    "VLLM_WORKER_MULTIPROC_METHOD": "the engine process is always started afresh (spawn)",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "the server's engine has a process of its own, LLM's has none",
    "VLLM_HOST_IP": "processes of one machine talk over Unix sockets",
    "VLLM_PORT": "processes of one machine talk over Unix sockets",
    "VLLM_RPC_BASE_PATH": "processes of one machine talk over Unix sockets",
    "VLLM_LOOPBACK_IP": "processes of one machine talk over Unix sockets",
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "a dead engine is restarted, and its requests resume",
    "VLLM_ENGINE_READY_TIMEOUT_S": "the server waits for its engine as long as that lives",
    "VLLM_CONFIG_ROOT": "there are no files of settings besides the one that --config names",
    "VLLM_DISABLE_COMPILE_CACHE": "nothing is compiled ahead of time",
    "VLLM_DISABLE_LOG_LOGO": "there is no logo",
    "VLLM_ENABLE_CUDA_COMPATIBILITY": "read when octavo is imported",
    "VLLM_CUDA_COMPATIBILITY_PATH": "read when octavo is imported",
    "VLLM_CONFIGURE_LOGGING": "read when logging is set up",
    "VLLM_LOGGING_CONFIG_PATH": "read when logging is set up",
}

OWN_VARIABLES = {
    "OCTAVO_CPU_KERNELS": "the build of the compiled CPU kernels, or `torch` for none ([cpu.md](cpu.md))",
}
"""Octavo's variables that are no setting, and what they choose: each process reads them where it needs them."""


def settings_from_environment(
    names: Collection[str], given: Collection[str] = (), environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Settings that variables give.

    Args:
        names: settings that may be taken.
        given: settings that have a value already, which wins.
        environment: the variables; this process's unless given.

    Raises:
        ConfigError: a variable's value cannot be read.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    for name, known in VLLM_VARIABLES.items():
        if known.setting not in names or known.setting in given:
            continue
        own = _OWN + known.setting.upper()
        variable = own if environment.get(own) else name
        text = environment.get(variable)
        if not text:
            continue
        try:
            value = known.read(text)
        except ValueError as error:
            raise ConfigError(f"The variable {variable} cannot be read, got {text!r}: {error}.") from None
        if value is not None:
            values[known.setting] = value
    return values


def environment_warning(environment: Mapping[str, str] | None = None, *, is_error: bool = False) -> str:
    """One sentence that names vLLM's variables that are set in vain; empty if there are none.

    Raises:
        ConfigError: with that sentence, if there are any and that ``is_error``.
    """
    environment = os.environ if environment is None else environment
    names = sorted(
        name for name in environment if name.startswith(_VLLM) and name not in VLLM_VARIABLES and name not in SATISFIED
    )
    if not names:
        return ""
    sentence = (
        f"Variables of vLLM without effect here: {', '.join(names)}; docs/vllm-arguments.md lists those with one."
    )
    if is_error:
        raise ConfigError(sentence)
    return sentence
