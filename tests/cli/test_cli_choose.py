"""The model that ``chat`` and ``complete`` load for themselves."""

import argparse

from octavo.cli.choose import add_flags, make_backend
from octavo.cli.local import LocalBackend
from octavo.cli.parser import Parser


def parse(*arguments: str) -> argparse.Namespace:
    parser = Parser("octavo chat", "", "[MODEL]")
    add_flags(parser)
    return parser.parse_args(arguments)


def engine_seed(*arguments: str) -> int:
    backend, _ = make_backend(parse("org/model", *arguments))
    assert isinstance(backend, LocalBackend)
    return backend._engine.settings.model.seed


def test_each_start_draws_otherwise_unless_a_seed_is_given() -> None:
    assert len({engine_seed() for _ in range(4)}) > 1
    assert engine_seed("--seed", "7") == 7


def test_requests_bear_only_a_seed_that_was_given() -> None:
    assert make_backend(parse("org/model"))[1] is None
    assert make_backend(parse("org/model", "--seed", "7"))[1] == 7
