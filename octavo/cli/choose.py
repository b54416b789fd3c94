"""The flags that say where ``chat`` and ``complete`` find their model."""

import argparse
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from typing import Any

from octavo.cli.backend import ChatBackend, Sampling
from octavo.cli.flags import add_setting_flags, engine_config, given_settings
from octavo.cli.parser import Parser
from octavo.cli.values import parse_count, parse_float
from octavo.config.engine_config import ENGINE_SECTIONS
from octavo.errors import ConfigError

DEFAULT_URL = "http://localhost:8000/v1"
# --seed is the model's setting; for one person's answers it means the same.
_TAKEN = frozenset({"seed"})

PARAMETERS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "temperature": (parse_float, "randomness; 0 always takes the most likely token"),
    "top_p": (parse_float, "share of probability to choose from"),
    "top_k": (parse_count, "number of tokens to choose from"),
    "min_p": (parse_float, "least probability, relative to the most likely token's"),
    "max_tokens": (parse_count, "most tokens of an answer"),
    "seed": (parse_count, "makes answers repeatable"),
    "presence_penalty": (parse_float, "discourages tokens that were used"),
    "frequency_penalty": (parse_float, "discourages tokens by how often they were used"),
    "repetition_penalty": (parse_float, "the same as a factor; 1 is off"),
}


def add_flags(parser: Parser) -> None:
    """Give a command the flags for a server, for a model loaded here, and for sampling."""
    parser.add_argument("-q", "--quick", metavar="TEXT", help="answer this one text and end")
    parser.add_argument("--stats", action="store_true", help="show speed with --quick and piped input as well")
    group = parser.add_argument_group("Server", "Without MODEL, a running server answers.")
    group.add_argument("--url", help=f"the server's address, with /v1. Default: {DEFAULT_URL}.")
    group.add_argument("--model-name", metavar="NAME", help="the model there; default is the first it has")
    group.add_argument("--api-key", metavar="KEY", help="the server's key; default is $OPENAI_API_KEY")
    add_sampling_flags(parser, taken=_TAKEN)
    add_setting_flags(parser, ENGINE_SECTIONS)
    parser.add_argument("--chat-template", metavar="TEXT", help="chat template for MODEL, as a file or the text itself")


def make_backend(namespace: argparse.Namespace) -> tuple[ChatBackend, int | None]:
    """The model that the flags choose, not started yet, and the seed if one was given."""
    values = given_settings(namespace, ENGINE_SECTIONS)
    seed = values.get("seed")
    if "model" not in values:
        misplaced = sorted(set(values) - {"seed", "log_level"})
        if misplaced:
            raise ConfigError(f"--{misplaced[0].replace('_', '-')} is for a model loaded here; name one as MODEL.")
        from octavo.cli.remote import RemoteBackend

        api_key = namespace.api_key or os.environ.get("OPENAI_API_KEY")
        return RemoteBackend(namespace.url or DEFAULT_URL, namespace.model_name, api_key), seed
    if namespace.url or namespace.model_name:
        raise ConfigError("Give either a MODEL to load here or --url and --model-name for a server, not both.")
    values.setdefault("log_level", "warning")
    values.setdefault("use_tqdm_on_load", sys.stderr.isatty())
    # The same question asked again is to have another chance of a good answer.
    values.setdefault("seed", secrets.randbelow(1 << 31))
    config = engine_config(values)
    from octavo.cli.local import LocalBackend
    from octavo.telemetry.logs import configure_logging

    configure_logging(config.logging.log_level)
    return LocalBackend(config, namespace.chat_template), seed


def add_sampling_flags(parser: Parser, *, taken: frozenset[str] = frozenset()) -> None:
    """Give a command a flag for each parameter, save those whose flags are ``taken`` by settings."""
    group = parser.add_argument_group("Sampling", "What is not given, the model's own defaults decide.")
    for name, (read, description) in PARAMETERS.items():
        if name not in taken:
            option = "--" + name.replace("_", "-")
            group.add_argument(option, dest=name, type=read, default=None, metavar="X", help=description)


def given_sampling(namespace: argparse.Namespace) -> Sampling:
    """The parameters that were given."""
    given = vars(namespace)
    return {name: given[name] for name in PARAMETERS if given.get(name) is not None}


def set_parameter(sampling: Sampling, name: str, text: str) -> None:
    """Change a parameter; ``default`` unsets it."""
    name = name.replace("-", "_")
    if name not in PARAMETERS:
        raise ConfigError(f"There is no parameter {name!r}; there are {', '.join(PARAMETERS)}.")
    if text == "default":
        sampling.pop(name, None)
        return
    try:
        sampling[name] = PARAMETERS[name][0](text)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{name} {error}.") from None
