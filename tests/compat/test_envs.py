"""``vllm.envs``: what scripts read from it."""

import pytest

from octavo.config import ServerSettings
from octavo.config.environment import VLLM_VARIABLES
from octavo.errors import ConfigError


def test_values_are_what_holds_here(mirror: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import envs
    from vllm.envs import VLLM_USE_V1

    for name in VLLM_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        getattr(envs, name)
    monkeypatch.setenv("VLLM_USE_V1", "0")
    assert VLLM_USE_V1 is True and envs.VLLM_USE_V1 is True
    assert ServerSettings().http_keep_alive_timeout == envs.VLLM_HTTP_TIMEOUT_KEEP_ALIVE
    assert envs.VLLM_LOGGING_LEVEL == "INFO" and envs.VLLM_API_KEY is None and envs.VLLM_PORT is None
    assert envs.VLLM_TARGET_DEVICE in ("cpu", "cuda")
    assert {"VLLM_USE_V1", "VLLM_API_KEY", "is_set"} <= set(dir(envs))


def test_they_change_with_the_environment(mirror: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import envs

    for text, value in (("7", 7), ("8", 8)):
        monkeypatch.setenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", text)
        assert value == envs.VLLM_HTTP_TIMEOUT_KEEP_ALIVE and envs.is_set("VLLM_HTTP_TIMEOUT_KEEP_ALIVE")
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    assert envs.VLLM_SERVER_DEV_MODE is True
    monkeypatch.setenv("VLLM_OF_TOMORROW", "yes")
    assert envs.VLLM_OF_TOMORROW == "yes"
    monkeypatch.setenv("VLLM_PORT", "many")
    with pytest.raises(ConfigError, match="VLLM_PORT cannot be read, got 'many'"):
        _ = envs.VLLM_PORT


def test_unknown_ones_are_named(mirror: None) -> None:
    from vllm import envs

    with pytest.raises(AttributeError, match="no VLLM_OF_YESTERDAY here"):
        _ = envs.VLLM_OF_YESTERDAY
    with pytest.raises(ImportError):
        exec("from vllm.envs import PATH")
