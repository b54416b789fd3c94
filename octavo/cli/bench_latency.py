"""``octavo bench latency``: how long one batch takes."""

from collections.abc import Sequence
from pathlib import Path

from octavo.bench.offline import measure_latency
from octavo.bench.workload import Lengths, random_prompts
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
    parser = Parser("octavo bench latency", "Time batches of fixed lengths, one after another.", "MODEL")
    parser.add_argument("--input-len", type=parse_count, default=32, help="tokens of a prompt. Default: 32.")
    parser.add_argument("--output-len", type=parse_count, default=128, help="tokens of an answer. Default: 128.")
    parser.add_argument("--batch-size", type=parse_count, default=8, help="prompts of a batch. Default: 8.")
    parser.add_argument("--n", type=parse_count, default=1, help="answers to each prompt. Default: 1.")
    parser.add_argument("--num-iters-warmup", type=parse_count, default=10, help="batches beforehand. Default: 10.")
    parser.add_argument("--num-iters", type=parse_count, default=30, help="batches that count. Default: 30.")
    parser.add_argument("--output-json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--disable-detokenize", action="store_true", help="leave turning tokens into text out")
    add_setting_flags(parser, ENGINE_SECTIONS)
    given = parser.parse(arguments)
    check_counts(given, "batch_size", "n", "num_iters")
    settings = {"enable_prefix_caching": False, **given_settings(given, ENGINE_SECTIONS)}
    config = engine_config(settings)
    lengths = Lengths(given.input_len, given.output_len)

    from octavo.cli.bench_model import load_model

    model, token_ids = load_model(settings)
    num_batches = given.num_iters_warmup + given.num_iters
    prompts = random_prompts(num_batches * given.batch_size, lengths, token_ids, config.model.seed)
    batches = [prompts[start : start + given.batch_size] for start in range(0, len(prompts), given.batch_size)]
    result = measure_latency(model, batches, given.num_iters_warmup, given.n, not given.disable_detokenize)
    print(result.table())
    write_json(given.output_json, {**result.as_json(), **describe_run(given, config)})
    return 0
