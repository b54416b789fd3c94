"""``octavo bench throughput``: how many tokens/s over many requests."""

from collections.abc import Sequence
from pathlib import Path

from octavo.bench.offline import measure_throughput
from octavo.bench.workload import random_prompts
from octavo.cli.bench_lengths import add_length_flags, given_lengths
from octavo.cli.bench_report import check_counts, describe_run, write_json
from octavo.cli.flags import add_setting_flags, engine_config, given_settings
from octavo.cli.parser import Parser
from octavo.cli.values import parse_count
from octavo.config.engine_config import ENGINE_SECTIONS


def run(arguments: Sequence[str]) -> int:
    """Measure; returns the exit status.

    Raises:
        OctavoError: a flag or the model is wrong.
    """
    parser = Parser("octavo bench throughput", "Time many requests of random tokens, all at once.", "MODEL")
    parser.add_argument("--n", type=parse_count, default=1, help="answers to each prompt. Default: 1.")
    parser.add_argument("--num-prompts", type=parse_count, default=1000, help="requests. Default: 1000.")
    parser.add_argument("--num-warmups", type=parse_count, default=0, help="requests beforehand. Default: 0.")
    parser.add_argument("--output-json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--disable-detokenize", action="store_true", help="leave turning tokens into text out")
    add_length_flags(parser)
    add_setting_flags(parser, ENGINE_SECTIONS)
    given = parser.parse(arguments)
    check_counts(given, "num_prompts", "n")
    lengths = given_lengths(given)
    settings = given_settings(given, ENGINE_SECTIONS)
    config = engine_config(settings)

    from octavo.cli.bench_model import load_model

    model, token_ids = load_model(settings)
    prompts = random_prompts(given.num_warmups + given.num_prompts, lengths, token_ids, config.model.seed)
    result = measure_throughput(model, prompts, given.num_warmups, given.n, not given.disable_detokenize)
    print(result.table())
    write_json(given.output_json, {**result.as_json(), **describe_run(given, config)})
    return 0
