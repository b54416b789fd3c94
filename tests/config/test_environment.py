"""Settings from environment variables."""

import logging
from typing import Any

import pytest

from octavo.cli.flags import engine_config
from octavo.config import EngineConfig, ServerSettings
from octavo.config.engine_config import ENGINE_SECTIONS
from octavo.config.environment import VLLM_VARIABLES, environment_warning, settings_from_environment
from octavo.errors import ConfigError

ENGINE_NAMES = {name for section in ENGINE_SECTIONS.values() for name in section.__struct_fields__}
SERVER_NAMES = set(ServerSettings.__struct_fields__)


@pytest.mark.parametrize(
    ("variable", "text", "setting", "value"),
    [
        ("VLLM_API_KEY", "secret", "api_key", ["secret"]),
        ("VLLM_SERVER_DEV_MODE", "1", "enable_admin_endpoints", True),
        ("VLLM_SERVER_DEV_MODE", "0", "enable_admin_endpoints", False),
        ("VLLM_SYSTEM_START_DATE", "2025-06-28", "chat_template_date", "2025-06-28"),
        ("VLLM_ENABLE_RESPONSES_API_STORE", "0", "response_store_count", 0),
        ("VLLM_SKIP_MODEL_NAME_VALIDATION", "true", "skip_model_name_validation", True),
        ("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "5", "http_keep_alive_timeout", 5),
        ("VLLM_HTTP_MAX_REQUEST_BODY_SIZE", "33554432", "max_request_bytes", 1 << 25),
        ("VLLM_LOGGING_LEVEL", "DEBUG", "log_level", "debug"),
        ("VLLM_LOGGING_LEVEL", "CRITICAL", "log_level", "error"),
        ("VLLM_LOG_STATS_INTERVAL", "2.5", "log_stats_interval", 2.5),
        ("VLLM_CPU_KVCACHE_SPACE", "40", "cpu_cache_memory_bytes", 40 << 30),
        ("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1", "allow_long_max_model_len", True),
        ("VLLM_BATCH_INVARIANT", "1", "deterministic", True),
        ("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "300", "step_timeout", 300.0),
        ("VLLM_CPU_OMP_THREADS_BIND", "0-31|32-63", "cpu_threads_bind", "0-31|32-63"),
        ("VLLM_CPU_OMP_THREADS_BIND", "nobind", "cpu_threads_bind", "nobind"),
        ("VLLM_CPU_NUM_OF_RESERVED_CPU", "2", "cpu_reserved_cores", 2),
        ("VLLM_CACHE_ROOT", "/caches", "cache_root", "/caches"),
        ("OCTAVO_LOG_LEVEL", "warning", "log_level", "warning"),
    ],
)
def test_a_variable_gives_its_setting(variable: str, text: str, setting: str, value: Any) -> None:
    assert settings_from_environment(ENGINE_NAMES | SERVER_NAMES, (), {variable: text}) == {setting: value}


def test_every_variable_stands_for_a_setting() -> None:
    assert {variable.setting for variable in VLLM_VARIABLES.values()} <= ENGINE_NAMES | SERVER_NAMES


def test_what_is_given_wins_and_octavos_own_spelling_goes_first() -> None:
    environment = {"VLLM_API_KEY": "a", "OCTAVO_API_KEY": "b"}
    assert settings_from_environment({"api_key"}, (), environment) == {"api_key": ["b"]}
    assert settings_from_environment({"api_key"}, {"api_key"}, environment) == {}


def test_an_empty_variable_is_none() -> None:
    assert settings_from_environment({"api_key"}, (), {"VLLM_API_KEY": ""}) == {}
    assert settings_from_environment(ENGINE_NAMES, (), {"VLLM_CPU_KVCACHE_SPACE": "0"}) == {}


@pytest.mark.parametrize(
    ("variable", "text"),
    [("VLLM_BATCH_INVARIANT", "perhaps"), ("VLLM_CPU_KVCACHE_SPACE", "much"), ("VLLM_CPU_NUM_OF_RESERVED_CPU", "few")],
)
def test_a_variable_that_cannot_be_read_is_named(variable: str, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"{variable} cannot be read, got '{text}'"):
        settings_from_environment(ENGINE_NAMES, (), {variable: text})


def test_variables_without_effect_are_named_once() -> None:
    environment = {"VLLM_ROCM_USE_AITER": "1", "VLLM_USE_V1": "1", "VLLM_API_KEY": "x", "VLLM_FOO": "", "PATH": "/"}
    assert environment_warning(environment).startswith("Variables of vLLM without effect here: VLLM_FOO, VLLM_ROCM")
    assert environment_warning({"VLLM_NO_USAGE_STATS": "1"}) == ""


@pytest.mark.parametrize("name", ["VLLM_CPU_SGL_KERNEL", "VLLM_CPU_MOE_PREPACK", "VLLM_TUNED_CONFIG_FOLDER"])
def test_kernels_and_tables_of_another_engine_are_not_ignored_silently(name: str) -> None:
    assert f"without effect here: {name};" in environment_warning({name: "0-7"})


def test_keyword_arguments_take_variables(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    monkeypatch.setenv("VLLM_TRACE_FUNCTION", "1")
    with caplog.at_level(logging.WARNING):
        config = EngineConfig.from_kwargs(model="m", log_level="debug")
    assert config.device.deterministic and config.logging.log_level == "debug"
    assert [record.getMessage() for record in caplog.records if "VLLM_TRACE_FUNCTION" in record.getMessage()]
    assert not EngineConfig.from_kwargs(model="m", deterministic=False).device.deterministic


def test_variables_in_vain_can_stop_a_start(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("VLLM_FOO", "1")
    with pytest.raises(ConfigError, match="without effect here: VLLM_FOO"):
        EngineConfig.from_kwargs(model="m", fail_on_environ_validation=True)
    with pytest.raises(ConfigError, match="without effect here: VLLM_FOO"):
        engine_config({"model": "m", "fail_on_environ_validation": True})
    EngineConfig.from_kwargs(model="m")
    assert "VLLM_FOO" in caplog.text
    monkeypatch.delenv("VLLM_FOO")
    assert EngineConfig.from_kwargs(model="m", fail_on_environ_validation=True).logging.fail_on_environ_validation
