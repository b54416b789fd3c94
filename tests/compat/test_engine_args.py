"""Settings as ``EngineArgs``: checked like the keywords of ``LLM``, and flags like those of the command line."""

import argparse
import dataclasses

import pytest

from octavo.compat.engine_args import AsyncEngineArgs, EngineArgs
from octavo.compat.utils import FlexibleArgumentParser
from octavo.config import EngineConfig
from octavo.errors import ConfigError


def test_fields_are_the_settings() -> None:
    args = EngineArgs("some/model", max_num_seqs=4, dtype="float32")
    assert (args.model, args.max_num_seqs, args.dtype, args.seed) == ("some/model", 4, "float32", 0)
    expected = EngineConfig.from_kwargs(model="some/model", max_num_seqs=4, dtype="float32")
    assert args.create_engine_config() == expected
    # As "LLM(**asdict(args))" has it.
    assert EngineConfig.from_kwargs(**dataclasses.asdict(args)) == expected
    args.max_num_seqs = 5
    assert args.create_engine_config().scheduler.max_num_seqs == 5
    assert issubclass(AsyncEngineArgs, EngineArgs)


@pytest.mark.parametrize(("settings", "words"), [({"max_num_seq": 3}, "max_num_seqs"), ({"max_num_seqs": 0}, ">= 1")])
def test_wrong_settings_are_named(settings: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EngineArgs(model="some/model", **settings)


def test_flags() -> None:
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    parser.add_argument("--port", type=int, default=3)
    found = parser.parse_args(
        ["--model", "a", "--max_num_seqs=7", "--kv-cache-memory-bytes", "1GiB", "--no-enable-prefix-caching"]
    )
    assert found.port == 3 and found.tensor_parallel_size == 1
    args = AsyncEngineArgs.from_cli_args(found)
    assert isinstance(args, AsyncEngineArgs)
    assert args.create_engine_config() == EngineConfig.from_kwargs(
        model="a", max_num_seqs=7, kv_cache_memory_bytes=1 << 30, enable_prefix_caching=False
    )
    assert AsyncEngineArgs.from_cli_args(argparse.Namespace(model="b", unknown=1)).model == "b"
    with pytest.raises(SystemExit):
        parser.parse_args(["--max-num-seqs", "many"])
