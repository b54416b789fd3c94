"""``octavo bench latency`` and ``octavo bench throughput``: a model in this process."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.bench.offline import measure_latency, measure_throughput
from octavo.bench.workload import COMMON_TOKEN_IDS, Lengths, random_prompts
from octavo.cli.bench_lengths import add_length_flags, given_lengths
from octavo.cli.bench_report import check_counts, describe_run, write_json
from octavo.cli.flags import add_setting_flags, engine_config, given_settings
from octavo.cli.parser import Parser
from octavo.cli.values import parse_count
from octavo.config.engine_config import ENGINE_SECTIONS

if TYPE_CHECKING:
    from octavo.llm import LLM


def run_latency(arguments: Sequence[str]) -> int:
    """Time one batch after another; returns the exit status."""
    parser = Parser("octavo bench latency", "Time batches of fixed lengths, one after another.", "MODEL")
    parser.add_argument("--input-len", type=parse_count, default=32, help="tokens of a prompt. Default: 32.")
    parser.add_argument("--output-len", type=parse_count, default=128, help="tokens of an answer. Default: 128.")
    parser.add_argument("--batch-size", type=parse_count, default=8, help="prompts of a batch. Default: 8.")
    parser.add_argument("--num-iters-warmup", type=parse_count, default=10, help="batches beforehand. Default: 10.")
    parser.add_argument("--num-iters", type=parse_count, default=30, help="batches that count. Default: 30.")
    given = _parse(parser, arguments)
    check_counts(given, "batch_size", "n", "num_iters")
    settings = {"enable_prefix_caching": False, **given_settings(given, ENGINE_SECTIONS)}
    config = engine_config(settings)
    lengths = Lengths(given.input_len, given.output_len)

    model, token_ids = _load_model(settings)
    num_batches = given.num_iters_warmup + given.num_iters
    prompts = random_prompts(num_batches * given.batch_size, lengths, token_ids, config.model.seed)
    batches = [prompts[start : start + given.batch_size] for start in range(0, len(prompts), given.batch_size)]
    result = measure_latency(model, batches, given.num_iters_warmup, given.n, not given.disable_detokenize)
    print(result.table())
    write_json(given.output_json, {**result.as_json(), **describe_run(given, config)})
    return 0


def run_throughput(arguments: Sequence[str]) -> int:
    """Time all prompts at once; returns the exit status."""
    parser = Parser("octavo bench throughput", "Time many requests of random tokens, all at once.", "MODEL")
    parser.add_argument("--num-prompts", type=parse_count, default=1000, help="requests. Default: 1000.")
    parser.add_argument("--num-warmups", type=parse_count, default=0, help="requests beforehand. Default: 0.")
    add_length_flags(parser)
    given = _parse(parser, arguments)
    check_counts(given, "num_prompts", "n")
    lengths = given_lengths(given)
    settings = given_settings(given, ENGINE_SECTIONS)
    config = engine_config(settings)

    model, token_ids = _load_model(settings)
    prompts = random_prompts(given.num_warmups + given.num_prompts, lengths, token_ids, config.model.seed)
    result = measure_throughput(model, prompts, given.num_warmups, given.n, not given.disable_detokenize)
    print(result.table())
    write_json(given.output_json, {**result.as_json(), **describe_run(given, config)})
    return 0


def _parse(parser: Parser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments, with the flags that both benchmarks have."""
    parser.add_argument("--n", type=parse_count, default=1, help="answers to each prompt. Default: 1.")
    parser.add_argument("--output-json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--disable-detokenize", action="store_true", help="leave turning tokens into text out")
    add_setting_flags(parser, ENGINE_SECTIONS)
    return parser.parse(arguments)


def _load_model(settings: Mapping[str, Any]) -> tuple["LLM", Sequence[int]]:
    """Load a model; returns it with the token ids that prompts may hold."""
    # These take seconds to import, which a wrong flag should not cost.
    from octavo.llm import LLM
    from octavo.telemetry.logs import configure_logging

    configure_logging(settings.get("log_level", "warning"))
    model = LLM(**settings)
    tokenizer = model.llm_engine.tokenizer
    return model, COMMON_TOKEN_IDS if tokenizer is None else range(len(tokenizer))
