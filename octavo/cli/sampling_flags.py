"""Sampling parameters as flags of ``chat`` and ``complete``, and of ``/set``."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from octavo.cli.parser import Parser
from octavo.cli.values import parse_count, parse_float
from octavo.errors import ConfigError

Sampling = dict[str, Any]

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
    """Change a parameter; ``default`` unsets it.

    Raises:
        ConfigError: there is no such parameter, or the text is not a value of it.
    """
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
