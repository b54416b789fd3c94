"""``octavo profile``: which kernels a step spends its time in."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.bench.shapes import SHAPES, model_path
from octavo.cli.bench_report import check_counts, describe_environment, write_json
from octavo.cli.flags import add_setting_flags, engine_config, given_settings
from octavo.cli.parser import Parser
from octavo.cli.values import parse_count
from octavo.config.engine_config import ENGINE_SECTIONS
from octavo.errors import ConfigError

_CASES = ("decode", "prefill", "mixed")
_DEFAULT_MODEL = "qwen3-0.6b"
_SHOWN_KERNELS = 25


def run(arguments: Sequence[str]) -> int:
    """Profile; returns the exit status."""
    given = make_parser().parse(arguments)
    check_counts(given, "batch", "steps", "input_len")
    settings: dict[str, Any] = {"log_level": "warning", **given_settings(given, ENGINE_SECTIONS)}
    model = settings.setdefault("model", _DEFAULT_MODEL)
    if model in SHAPES:
        settings.setdefault("load_format", "dummy")
    _check_folder(given.out)
    with model_path(model) as path:
        measured = _profile({**settings, "model": path}, given)
    result = {
        "kind": "profile",
        "model": Path(model).name,
        **describe_environment("octavo profile", arguments),
        **measured,
    }

    from octavo.bench.picture import draw_bars
    from octavo.bench.results import profile_bar, render

    print(render({**result, "kernels": result["kernels"][:_SHOWN_KERNELS]}, is_markdown=False))
    print(f"\nTrace, figures and picture are in {given.out}; the trace opens in ui.perfetto.dev.")
    write_json(given.out / "profile.json", result)
    write_json(given.json, result)
    (given.out / "profile.svg").write_text(draw_bars([profile_bar(result)]), encoding="utf-8")
    return 0


def make_parser() -> Parser:
    """The command's parser."""
    parser = Parser(
        "octavo profile",
        "Run the engine under torch's profiler in a steady state, say which kernels (on a CPU: operators) the time of "
        "a step goes to, and write a Chrome trace. Built-in shapes with dummy weights: "
        f"{', '.join(SHAPES)}. Default: {_DEFAULT_MODEL}.",
        "[MODEL]",
    )
    parser.add_argument("--case", choices=_CASES, default="decode", help="what the steps hold. Default: decode.")
    parser.add_argument("--batch", type=parse_count, default=32, help="requests in flight. Default: 32.")
    parser.add_argument("--steps", type=parse_count, default=20, help="steps to profile. Default: 20.")
    parser.add_argument("--input-len", type=parse_count, default=256, help="tokens of a prompt. Default: 256.")
    parser.add_argument(
        "--out", type=Path, default=Path("profile"), metavar="FOLDER", help="for the results. Default: ./profile."
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    add_setting_flags(parser, ENGINE_SECTIONS)
    return parser


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"Cannot write to {folder}: {error.strerror}.") from None


def _profile(settings: dict[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    config = engine_config(settings)

    from octavo.bench.profile import WINDOW, ProfileLoad, profile_engine
    from octavo.bench.profile_summary import read_trace, summarise_trace
    from octavo.engine.core import EngineCore
    from octavo.platforms import select_platform
    from octavo.telemetry.logs import configure_logging

    configure_logging(config.logging.log_level)
    engine = EngineCore(config)
    trace = given.out / "trace.json.gz"
    load = ProfileLoad(given.case, given.batch, given.input_len)
    platform = select_platform(config.device.device)
    plain_seconds = profile_engine(engine, platform.device, load, given.steps, trace)
    summary = summarise_trace(read_trace(trace), WINDOW)
    dtype = engine.plan.dtype
    engine.shutdown()
    return {
        "ceilings": {"device": platform.describe(), "dtype": dtype, "read_bandwidth": None, "matmul_rate": None},
        "case": given.case,
        "batch": given.batch,
        "input_len": given.input_len,
        "num_steps": given.steps,
        "plain_seconds": plain_seconds,
        "wall_seconds": summary.wall,
        "busy_seconds": summary.busy,
        "groups": [{"name": name, "seconds": seconds} for name, seconds in summary.groups().items()],
        "kernels": [
            {
                "name": kernel.name,
                "group": kernel.group,
                "count": kernel.count,
                "total_seconds": kernel.total,
                "own_seconds": kernel.own,
            }
            for kernel in summary.kernels
        ],
    }
