"""Flags for the lengths of random prompts and answers."""

import argparse

from octavo.bench.workload import Lengths
from octavo.cli.parser import Parser
from octavo.cli.values import parse_count, parse_float


def add_length_flags(parser: Parser) -> None:
    """Give a benchmark the flags of its random prompts."""
    group = parser.add_argument_group("Random prompts", "Lengths in tokens.")
    group.add_argument("--dataset-name", choices=("random",), default="random", help="kind of prompts: random tokens")
    group.add_argument("--random-input-len", type=parse_count, default=1024, help="of a prompt. Default: 1024.")
    group.add_argument("--random-output-len", type=parse_count, default=128, help="of an answer. Default: 128.")
    group.add_argument("--input-len", type=parse_count, help="the same as --random-input-len")
    group.add_argument("--output-len", type=parse_count, help="the same as --random-output-len")
    group.add_argument(
        "--random-range-ratio",
        type=parse_float,
        default=0.0,
        help="lengths vary evenly by this share up and down, 0 to below 1. Default: 0.",
    )
    group.add_argument(
        "--random-prefix-len", type=parse_count, default=0, help="tokens that all prompts begin with. Default: 0."
    )


def given_lengths(namespace: argparse.Namespace) -> Lengths:
    """The lengths that were given.

    Raises:
        ConfigError: they are out of bounds.
    """
    return Lengths(
        input_len=namespace.random_input_len if namespace.input_len is None else namespace.input_len,
        output_len=namespace.random_output_len if namespace.output_len is None else namespace.output_len,
        range_ratio=namespace.random_range_ratio,
        prefix_len=namespace.random_prefix_len,
    )
