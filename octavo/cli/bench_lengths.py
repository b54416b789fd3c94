"""Flags for the lengths of random prompts and answers."""

import argparse
from pathlib import Path

from octavo.bench.datasets import Dataset
from octavo.bench.workload import Lengths
from octavo.cli.parser import Parser
from octavo.cli.values import parse_count, parse_float
from octavo.errors import ConfigError


def add_length_flags(parser: Parser, *, has_files: bool = False) -> None:
    """Give a benchmark the flags of its prompts.

    Args:
        has_files: prompts may come from files as well.
    """
    group = parser.add_argument_group("Prompts", "Lengths in tokens.")
    if has_files:
        _add_file_flags(group)
    else:
        group.add_argument("--dataset-name", choices=("random",), default="random", help="random tokens")
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


def _add_file_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--dataset-name",
        choices=("random", "sharegpt", "custom"),
        default="random",
        help="random tokens; or from --dataset-path: ShareGPT's conversations, or JSON lines with prompt and "
        "output_tokens. Default: random.",
    )
    group.add_argument("--dataset-path", type=Path, metavar="FILE", help="JSON file, or JSON lines, on this machine")
    group.add_argument("--sharegpt-output-len", type=parse_count, help="of every answer to ShareGPT's prompts")
    group.add_argument("--custom-output-len", type=parse_count, help="of every answer to prompts of your own")
    group.add_argument("--disable-shuffle", action="store_true", help="take prompts in the file's order")
    group.add_argument("--no-oversample", action="store_true", help="do not use prompts twice if there are too few")
    group.add_argument(
        "--skip-chat-template", action="store_true", help="holds anyway: only --backend openai-chat sends chats"
    )


def given_dataset(namespace: argparse.Namespace) -> Dataset | None:
    """The file of prompts that was named; None for random ones."""
    name = namespace.dataset_name
    if name == "random":
        if namespace.dataset_path is not None:
            raise ConfigError("--dataset-path needs --dataset-name sharegpt or custom.")
        return None
    if namespace.dataset_path is None:
        raise ConfigError(f"--dataset-name {name} needs --dataset-path.")
    output_len = namespace.output_len
    if output_len is None:
        output_len = namespace.sharegpt_output_len if name == "sharegpt" else namespace.custom_output_len
    if output_len is not None and output_len < 1:
        raise ConfigError(f"Answers must have at least one token, not {output_len}.")
    return Dataset(
        name,
        namespace.dataset_path,
        output_len,
        is_shuffled=not namespace.disable_shuffle,
        may_repeat=not namespace.no_oversample,
    )


def given_lengths(namespace: argparse.Namespace) -> Lengths:
    """The lengths that were given."""
    return Lengths(
        input_len=namespace.random_input_len if namespace.input_len is None else namespace.input_len,
        output_len=namespace.random_output_len if namespace.output_len is None else namespace.output_len,
        range_ratio=namespace.random_range_ratio,
        prefix_len=namespace.random_prefix_len,
    )
