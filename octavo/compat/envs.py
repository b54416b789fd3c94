"""vLLM's ``vllm.envs``: its variables as attributes, read on access.

A variable that Octavo honours has the value that holds here, from the environment or by default; one whose answer is
always the same here has that, whatever the environment says. Others have their text in the environment.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo.config import ServerSettings
from octavo.config.environment import read_bool
from octavo.config.settings import LoggingSettings, SchedulerSettings
from octavo.errors import ConfigError

_SERVER, _LOGGING, _SCHEDULER = ServerSettings(), LoggingSettings(), SchedulerSettings()
_CACHES = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
_CONFIGS = Path(os.environ.get("XDG_CONFIG_HOME", "~/.config")).expanduser()

# What holds whatever the environment says.
_FIXED: dict[str, Any] = {
    "VLLM_USE_V1": True,
    "VLLM_NO_USAGE_STATS": True,
    "VLLM_DO_NOT_TRACK": True,
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_ENABLE_V1_MULTIPROCESSING": False,
    "VLLM_USE_MODELSCOPE": False,
    "VLLM_USE_PRECOMPILED": False,
    "VLLM_PLUGINS": [],
}

# Variable → how its text is read, and what it is without one.
_READ: dict[str, tuple[Callable[[str], Any], Any]] = {
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": (read_bool, False),
    "VLLM_API_KEY": (str, None),
    "VLLM_ATTENTION_BACKEND": (str, None),
    "VLLM_BATCH_INVARIANT": (read_bool, False),
    "VLLM_CACHE_ROOT": (str, str(_CACHES / "vllm")),
    "VLLM_CONFIGURE_LOGGING": (read_bool, True),
    "VLLM_CONFIG_ROOT": (str, str(_CONFIGS / "vllm")),
    "VLLM_CPU_KVCACHE_SPACE": (int, None),
    "VLLM_CPU_NUM_OF_RESERVED_CPU": (int, None),
    "VLLM_CPU_OMP_THREADS_BIND": (str, "auto"),
    "VLLM_ENABLE_RESPONSES_API_STORE": (read_bool, _SERVER.response_store_count > 0),
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": (int, int(_SCHEDULER.step_timeout)),
    "VLLM_HOST_IP": (str, ""),
    "VLLM_HTTP_MAX_REQUEST_BODY_SIZE": (int, _SERVER.max_request_bytes),
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": (int, _SERVER.http_keep_alive_timeout),
    "VLLM_LOGGING_CONFIG_PATH": (str, None),
    "VLLM_LOGGING_LEVEL": (str.upper, _LOGGING.log_level.upper()),
    "VLLM_LOG_STATS_INTERVAL": (float, _LOGGING.log_stats_interval),
    "VLLM_PORT": (int, None),
    "VLLM_SERVER_DEV_MODE": (read_bool, False),
    "VLLM_SKIP_MODEL_NAME_VALIDATION": (read_bool, False),
    "VLLM_SYSTEM_START_DATE": (str, None),
    "VLLM_TORCH_PROFILER_DIR": (str, None),
    "VLLM_TRACE_FUNCTION": (int, 0),
}


def is_set(name: str) -> bool:
    """Whether a variable is in the environment."""
    return name in os.environ


def __getattr__(name: str) -> Any:
    if name in _FIXED:
        return _FIXED[name]
    text = os.environ.get(name) if name.startswith("VLLM_") else None
    read, default = _READ.get(name, (str, None))
    if text is None:
        if name in _READ:
            return default
        if name == "VLLM_TARGET_DEVICE":
            from octavo.compat.platform import current_platform

            return current_platform.device_type
        raise AttributeError(f"vllm.envs has no {name} here, and the environment does not set it.")
    try:
        return read(text)
    except ValueError as error:
        raise ConfigError(f"The variable {name} cannot be read, got {text!r}: {error}.") from None


def __dir__() -> list[str]:
    return sorted({"is_set", "VLLM_TARGET_DEVICE", *_FIXED, *_READ, *(n for n in os.environ if n.startswith("VLLM_"))})
