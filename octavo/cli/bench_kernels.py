"""``octavo bench kernels``: each kernel of a step beside the library and beside what the device allows.

With ``--group-sizes``, attention alone, with any number of query heads per key/value head.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.bench.shapes import SHAPES, model_path
from octavo.cli.bench_report import check_counts, describe_environment, write_json
from octavo.cli.parser import Parser
from octavo.cli.values import parse_count, split_numbers
from octavo.config import EngineConfig
from octavo.config.settings import DeviceSettings
from octavo.quantization.cache_format import CACHE_TYPES

if TYPE_CHECKING:
    from octavo.bench.kernels_case import Setting
    from octavo.bench.limits import Ceilings


def run(arguments: Sequence[str]) -> int:
    """Measure; returns the exit status, 1 if a kernel failed."""
    given = make_parser().parse(arguments)
    check_counts(given, "context")
    batches = split_numbers("--batch", given.batch, int, lambda batch: batch > 0, "from 1 on")
    sizes = []
    if given.group_sizes is not None:
        sizes = split_numbers("--group-sizes", given.group_sizes, int, lambda size: size > 0, "from 1 on")
    with model_path(given.model) as path:
        measured, errors = _measure_groups(given, path, sizes) if sizes else _measure(given, path, batches)
    result = {
        "kind": "group_sizes" if sizes else "kernels",
        "model": Path(given.model).name,
        **describe_environment("octavo bench kernels", arguments),
        **measured,
    }

    from octavo.bench.results import render

    print(render(result, is_markdown=False))
    if left_out := measured.get("left_out"):
        print(f"\nOnly on a GPU: {', '.join(left_out)}.")
    for error in errors:
        print(error, file=sys.stderr)
    write_json(given.json, result)
    return int(bool(errors))


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
    parser.add_argument(
        "--group-sizes",
        nargs="?",
        const=",".join(map(str, range(1, 17))),
        metavar="NUMBERS",
        help="instead of a model's kernels, attention with these numbers of query heads per key/value head, head sizes "
        "64 and 128, and as many key/value heads as the model has: decode of 1 and 8 × 32768 and 128 × 1024 tokens, "
        "and prefill of 2 × 4096. Without numbers: 1 to 16.",
    )
    parser.add_argument("--filter", default="", metavar="TEXT", help="only kernels whose name holds this")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float16", "float32"), default="auto", help="to use")
    parser.add_argument(
        "--kv-cache-dtype", choices=("auto", *CACHE_TYPES), default="auto", help="of cached keys and values"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="to measure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures and all samples here")
    return parser


@dataclass(frozen=True, slots=True)
class _Bench:
    """What every measurement needs: a decode step of one row on the device, and the device's limits."""

    base: "Setting"
    ceilings: "Ceilings"
    host_threads: AbstractContextManager[object]

    def describe(self) -> dict[str, Any]:
        """The device and its limits, for the result."""
        return {
            "device": self.base.platform.describe(),
            "dtype": str(self.base.dtype).removeprefix("torch."),
            "read_bandwidth": self.ceilings.read_bandwidth,
            "matmul_rate": self.ceilings.matmul_rate,
        }


def _prepare(given: argparse.Namespace, path: str) -> _Bench:
    from octavo.hub import find_model

    _, config = find_model(EngineConfig.from_kwargs(model=path))

    import torch

    from octavo.bench.ceilings import measure_ceilings
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
    kv_dtype = None if given.kv_cache_dtype == "auto" else getattr(torch, CACHE_TYPES[given.kv_cache_dtype])
    base = Setting(config, dtype, platform, "decode", 1, given.context, cache_bytes, kv_dtype)
    return _Bench(base, ceilings, host_threads)


def _measure(given: argparse.Namespace, path: str, batches: Sequence[int]) -> tuple[dict[str, Any], list[str]]:
    """The result, and the errors of kernels that failed."""
    bench = _prepare(given, path)

    import torch

    from octavo.bench.kernels import cases_for, is_possible, measure, settings_of

    parts: list[dict[str, Any]] = []
    left_out: set[str] = set()
    for setting in settings_of(bench.base, batches, given.prefill_tokens):
        chosen = cases_for(setting, given.filter)
        possible = [case for case in chosen if is_possible(case, setting)]
        left_out |= {case.name for case in chosen} - {case.name for case in possible}
        kernels = []
        with bench.host_threads, torch.inference_mode():
            for case in possible:
                kernels.append(measure(case, setting, bench.ceilings))
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
    errors = [kernel["error"] for part in parts for kernel in part["kernels"] if kernel["error"]]
    return {"ceilings": bench.describe(), "parts": parts, "left_out": sorted(left_out)}, errors


def _measure_groups(given: argparse.Namespace, path: str, sizes: Sequence[int]) -> tuple[dict[str, Any], list[str]]:
    """The result, and the errors of group sizes that failed."""
    bench = _prepare(given, path)

    import torch

    from octavo.bench.group_sizes import measure_group_sizes

    with bench.host_threads, torch.inference_mode():
        parts = measure_group_sizes(
            bench.base, sizes, bench.ceilings, report=lambda name: print(name, file=sys.stderr, flush=True)
        )
    errors = [
        f"head size {part['head_dim']}, {load['title']}, group size {size['group_size']}: {size['error']}"
        for part in parts
        for load in part["loads"]
        for size in load["sizes"]
        if size["error"]
    ]
    num_kv_heads = bench.base.config.num_kv_heads
    return {"ceilings": bench.describe(), "num_kv_heads": num_kv_heads, "parts": parts}, errors
