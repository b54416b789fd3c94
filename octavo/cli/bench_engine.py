"""``octavo bench engine``: this engine beside another and beside what the device allows."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.bench.engine import Engine, EngineMeasurement, measure_ceilings_apart, medians, run_turn
from octavo.bench.engine_turn import CASES
from octavo.bench.shapes import SHAPES, model_path
from octavo.cli.bench_report import check_counts, describe_environment, write_json
from octavo.cli.parser import Parser
from octavo.cli.values import parse_count, parse_float, parse_json_object, split_names
from octavo.config import EngineConfig
from octavo.errors import ConfigError

_FIRST_TOKEN_ID, _END_OF_TOKEN_IDS = 1000, 100_000
_DTYPES = {"half": "float16", "float": "float32"}


def run(arguments: Sequence[str]) -> int:
    """Measure; returns the exit status."""
    given = make_parser().parse(arguments)
    check_counts(given, "rounds", "max_model_len")
    cases = split_names(given.cases, CASES, "case")
    if not 0 < given.scale <= 1:
        raise ConfigError(f"--scale must be above 0 and at most 1, not {given.scale}.")
    with model_path(given.model) as path:
        result = _measure(given, path, cases)
    result = {
        "kind": "engine",
        "model": Path(given.model).name,
        **describe_environment("octavo bench engine", arguments),
        **result,
    }

    from octavo.bench.results import render

    print(render(result, is_markdown=False))
    write_json(given.json, result)
    return 0


def make_parser() -> Parser:
    """The command's parser."""
    parser = Parser(
        "octavo bench engine",
        "Start-up, latency, decoding, prefill and mixed loads of the offline engine, greedy, on random token ids, each "
        "turn in a fresh process; beside another engine's if one is named, and beside what the device allows.",
    )
    parser.add_argument(
        "--model", default="qwen3-0.6b", help=f"{', '.join(SHAPES)}, or a model's folder or id. Default: qwen3-0.6b."
    )
    parser.add_argument(
        "--against", metavar="MODULE", help="another engine with vLLM's offline interface: vllm, or any such module"
    )
    parser.add_argument(
        "--against-python", default=sys.executable, metavar="FILE", help="the Python that has it, if not this one"
    )
    parser.add_argument(
        "--cases", default=",".join(CASES), metavar="NAMES", help=f"of {', '.join(CASES)}, with commas. Default: all."
    )
    parser.add_argument(
        "--scale", type=parse_float, default=1.0, help="shrinks batch sizes and counts, for small machines. Default: 1."
    )
    parser.add_argument("--rounds", type=parse_count, default=1, help="turns of each engine. Default: 1.")
    parser.add_argument(
        "--load-format", default="dummy", metavar="FORMAT", help="dummy makes random weights. Default: dummy."
    )
    parser.add_argument("--max-model-len", type=parse_count, default=8192, help="longest sequence. Default: 8192.")
    parser.add_argument(
        "--gpu-memory-utilization", type=parse_float, default=0.88, help="share of the device. Default: 0.88."
    )
    parser.add_argument(
        "--settings", type=parse_json_object, default={}, metavar="JSON", help="further settings of Octavo's LLM"
    )
    parser.add_argument(
        "--against-settings", type=parse_json_object, default={}, metavar="JSON", help="the same for the other engine"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures and all samples here")
    return parser


def _measure(given: argparse.Namespace, path: str, cases: Sequence[str]) -> dict[str, Any]:
    from octavo.hub import find_model

    settings = {
        "model": path,
        "load_format": given.load_format,
        "skip_tokenizer_init": True,
        "max_model_len": given.max_model_len,
        "seed": 0,
        "gpu_memory_utilization": given.gpu_memory_utilization,
    }
    config = EngineConfig.from_kwargs(**{**settings, **given.settings})
    _, model_config = find_model(config)
    dtype = model_config.dtype if config.model.dtype == "auto" else config.model.dtype
    measured = measure_ceilings_apart(config.device.device, _DTYPES.get(dtype, dtype), config.device.num_threads)

    from octavo.bench.engine_figures import figures_of
    from octavo.bench.limits import Ceilings, ModelLimits, item_bytes
    from octavo.bench.stored_shares import find_shares

    ceilings = Ceilings(measured["read_bandwidth"], measured["matmul_rate"], measured["float8_rate"])
    shares = find_shares(
        config,
        model_config,
        measured["dtype"],
        measured.pop("formats"),
        has_float8_cache=measured.pop("has_float8_cache"),
    )
    limits = ModelLimits(model_config, item_bytes(measured["dtype"]), ceilings, shares)
    engines = [Engine("octavo", {**settings, **given.settings})]
    if given.against:
        engines.append(Engine(given.against, {**settings, **given.against_settings}, given.against_python))
    end = min(_END_OF_TOKEN_IDS, model_config.vocab_size)
    token_ids = (min(_FIRST_TOKEN_ID, end // 2), end)
    turns: list[list[EngineMeasurement]] = [[] for _ in engines]
    for _ in range(given.rounds):
        for engine, own in zip(engines, turns, strict=True):
            own.append(run_turn(engine, cases, given.scale, token_ids))
    figures = [[figures_of(turn.phases["engine"], turn.samples, limits) for turn in own] for own in turns]
    return {
        "ceilings": measured,
        "figures": [
            {"name": figure.name, "title": figure.title, "is_time": figure.is_time, "limit": figure.limit}
            for figure in figures[0][0]
        ],
        "engines": [
            {
                "module": engine.module,
                "version": own[0].version,
                "settings": {name: value for name, value in engine.settings.items() if name != "model"},
                "figures": medians([{figure.name: figure.value for figure in turn} for turn in of_turns]),
                "phases": medians([turn.phases for turn in own]),
                "turns": [_as_json(turn) for turn in own],
            }
            for engine, own, of_turns in zip(engines, turns, figures, strict=True)
        ],
    }


def _as_json(turn: EngineMeasurement) -> dict[str, Any]:
    seconds = {name: samples.seconds for name, samples in turn.samples.items()}
    return {"phases": turn.phases, "start_notes": turn.start_notes, "seconds": seconds}
