"""``octavo bench kernels``: each kernel of a step beside the library and beside what the device allows."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.bench.shapes import SHAPES, model_path
from octavo.cli.bench_report import check_counts, describe_environment, write_json
from octavo.cli.parser import Parser
from octavo.cli.values import parse_count, split_numbers
from octavo.config import EngineConfig
from octavo.config.settings import DeviceSettings


def run(arguments: Sequence[str]) -> int:
    """Measure; returns the exit status, 1 if a kernel failed."""
    given = make_parser().parse(arguments)
    check_counts(given, "context")
    batches = split_numbers("--batch", given.batch, int, lambda batch: batch > 0, "from 1 on")
    with model_path(given.model) as path:
        measured = _measure(given, path, batches)
    result = {
        "kind": "kernels",
        "model": Path(given.model).name,
        **describe_environment("octavo bench kernels", arguments),
        **measured,
    }

    from octavo.bench.results import render

    print(render(result, is_markdown=False))
    if measured["left_out"]:
        print(f"\nOnly on a GPU: {', '.join(measured['left_out'])}.")
    write_json(given.json, result)
    return int(any(kernel["error"] for part in measured["parts"] for kernel in part["kernels"]))


def make_parser() -> Parser:
    """The command's parser."""
    parser = Parser(
        "octavo bench kernels",
        "Time each kernel of a step, on a GPU in graphs over weights and caches that exceed the last cache, beside the "
        "library's kernel and the limit: bytes over measured bandwidth, or operations over the measured rate.",
    )
    parser.add_argument(
        "--model", default="qwen3-0.6b", help=f"{', '.join(SHAPES)}, or a model's folder or id. Default: qwen3-0.6b."
    )
    parser.add_argument(
        "--batch", default="1,8,32,128,256", metavar="NUMBERS", help="requests that decode. Default: 1,8,32,128,256."
    )
    parser.add_argument("--context", type=parse_count, default=1024, help="tokens of each request. Default: 1024.")
    parser.add_argument(
        "--prefill-tokens", type=parse_count, default=8192, help="of a step of fresh prompts; 0: none. Default: 8192."
    )
    parser.add_argument("--filter", default="", metavar="TEXT", help="only kernels whose name holds this")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float16", "float32"), default="auto", help="to use")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="to measure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures and all samples here")
    return parser


def _measure(given: argparse.Namespace, path: str, batches: Sequence[int]) -> dict[str, Any]:
    from octavo.hub import find_model

    _, config = find_model(EngineConfig.from_kwargs(model=path))

    import torch

    from octavo.bench.ceilings import measure_ceilings
    from octavo.bench.kernels import cases_for, is_possible, measure, settings_of
    from octavo.bench.kernels_case import Setting
    from octavo.kernels import bind_kernels
    from octavo.platforms import runtime_of, select_platform

    platform = select_platform(given.device)
    host_threads = platform.prepare(DeviceSettings())
    bind_kernels(platform)
    dtype: torch.dtype = getattr(torch, config.dtype if given.dtype == "auto" else given.dtype)
    with host_threads:
        ceilings = measure_ceilings(platform, dtype)
    cache_bytes = runtime_of(platform.device).last_cache_bytes()
    base = Setting(config, dtype, platform, "decode", 1, given.context, cache_bytes)
    parts, left_out = [], set()
    for setting in settings_of(base, batches, given.prefill_tokens):
        chosen = cases_for(setting, given.filter)
        possible = [case for case in chosen if is_possible(case, setting)]
        left_out |= {case.name for case in chosen} - {case.name for case in possible}
        kernels = []
        with host_threads, torch.inference_mode():
            for case in possible:
                kernels.append(measure(case, setting, ceilings))
                print(f"{setting.phase}, {setting.num_rows} × {setting.context}: {case.name}", file=sys.stderr)
        parts.append(
            {
                "title": f"{setting.phase}, {setting.num_rows} × {setting.context:,} tokens",
                "phase": setting.phase,
                "num_rows": setting.num_rows,
                "context": setting.context,
                "kernels": kernels,
            }
        )
    return {
        "ceilings": {
            "device": platform.describe(),
            "dtype": str(dtype).removeprefix("torch."),
            "read_bandwidth": ceilings.read_bandwidth,
            "matmul_rate": ceilings.matmul_rate,
        },
        "parts": parts,
        "left_out": sorted(left_out),
    }
