"""Code that starts vLLM's server itself."""

import asyncio
from typing import Any

import pytest

from octavo.compat import api_server
from octavo.config import EngineConfig, ServerSettings
from octavo.errors import ConfigError, InvalidRequestError


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[EngineConfig, ServerSettings]]:
    """What would be served."""
    found: list[tuple[EngineConfig, ServerSettings]] = []

    async def serve(settings: EngineConfig, server: ServerSettings) -> int:
        found.append((settings, server))
        return 0

    monkeypatch.setattr(api_server, "serve_alone", serve)
    monkeypatch.setattr(api_server, "configure_logging", lambda *_: None)
    return found


def parsed(*arguments: str) -> Any:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)


@pytest.mark.parametrize("model", [["m"], ["--model", "m"]])
def test_flags_reach_the_settings(mirror: None, served: list[Any], model: list[str]) -> None:
    from vllm.entrypoints.common.cli_args import validate_parsed_serve_args
    from vllm.entrypoints.openai.api_server import run_server

    flags = ["--port", "8123", "--max_model_len", "64", "--reasoning-parser", "qwen3", "--api-key", "a", "b"]
    args = parsed(*model, *flags)
    args.of_the_callers_own = 3
    validate_parsed_serve_args(args)
    asyncio.run(run_server(args))
    config = EngineConfig.from_kwargs(model="m", max_model_len=64, reasoning_parser="qwen3")
    assert served == [(config, ServerSettings(port=8123, api_key=["a", "b"]))]


def test_what_cannot_be_is_said(mirror: None, served: list[Any]) -> None:
    with pytest.raises(ConfigError, match="port"):
        api_server.validate_parsed_serve_args(parsed("m", "--port", "99999"))
    with pytest.raises(ConfigError, match="api_server_count is 1"):
        asyncio.run(api_server.run_server(parsed("m", "--api-server-count", "2")))
    with pytest.raises(InvalidRequestError, match="root_path is not supported"):
        asyncio.run(api_server.run_server(parsed("m"), root_path="/x"))
    assert served == []
