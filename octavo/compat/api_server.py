"""vLLM's API server for embedding code: its flags on the caller's parser, and a coroutine that serves."""

import argparse
from collections.abc import Mapping
from typing import Any

from octavo.api.launch import serve_alone
from octavo.cli.flags import ALL_SECTIONS, engine_config, server_settings
from octavo.compat.engine_args import add_plain_flags, defaults_of
from octavo.config import EngineConfig, ServerSettings
from octavo.errors import ConfigError
from octavo.inputs.foreign import reject_foreign
from octavo.telemetry.logs import configure_logging


def make_arg_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Give a parser the flags of ``octavo serve``, and the model as an argument without one."""
    parser.add_argument("model_tag", nargs="?", help="the same as --model")
    add_plain_flags(parser, ALL_SECTIONS.values())
    return parser


def validate_parsed_serve_args(args: argparse.Namespace) -> None:
    """Check what a parser with these flags found."""
    _settings(vars(args))


async def run_server(args: argparse.Namespace, **uvicorn_options: Any) -> None:
    """Serve until a signal, from this event loop.

    Args:
        args: what a parser of :func:`make_arg_parser` found.
        uvicorn_options: not supported.

    Raises:
        OctavoError: a setting or the model is wrong, or the address is taken.
    """
    reject_foreign(**uvicorn_options)
    config, server = _settings(vars(args))
    if server.api_server_count != 1:
        raise ConfigError("api_server_count is 1 where code starts the server itself; octavo serve takes more.")
    log = config.logging
    configure_logging(log.log_level, log.log_format, log.log_config_file)
    await serve_alone(config, server)


def _settings(given: Mapping[str, Any]) -> tuple[EngineConfig, ServerSettings]:
    """What differs from the defaults, as settings; other attributes are left alone."""
    defaults = {name: value for section in ALL_SECTIONS.values() for name, value in defaults_of(section).items()}
    values = {name: value for name, value in given.items() if name in defaults and value != defaults[name]}
    values["model"] = given.get("model_tag") or given.get("model") or defaults["model"]
    return engine_config(values), server_settings(values)
