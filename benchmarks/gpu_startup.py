"""How long an engine takes from a new process to its first token, and where that time goes.

    python benchmarks/gpu_startup.py --models qwen3-8b qwen3-0.6b --output-json result.json

Each start is a process of its own: first with an empty cache of compiled kernels, then with the one the start before it
filled; with dummy weights, and with safetensors files that are written beforehand and so lie in the page cache.
It runs on a CPU as well (``--models tiny``), where nothing is compiled.
"""

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import describe, save
from safetensors.torch import save_file

from octavo.bench.shapes import model_path
from octavo.hub import load_model_config, resolve
from octavo.layers.build import Build
from octavo.layers.weights import collect_slots
from octavo.models.registry import build_model
from octavo.telemetry.phases import process_age

_SHARD_BYTES = 4 << 30
_PROMPT = [100 + position for position in range(128)]


def main() -> int:
    """Measure and save, or be one of the starts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["qwen3-8b"], help="shapes by name, or folders with config.json")
    parser.add_argument("--repeats", type=int, default=3, help="warm starts of each kind")
    parser.add_argument("--settings", type=json.loads, default={}, help="settings of the engine, as JSON")
    parser.add_argument("--no-files", action="store_true", help="dummy weights only")
    parser.add_argument("--output-json", type=Path)
    parser.add_argument("--start", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.start is not None:
        print(json.dumps(one_start(given.start, given.settings)))
        return 0
    environment = describe()
    results = {model: measure(model, given.settings, given.repeats, not given.no_files) for model in given.models}
    save({**environment, "settings": given.settings, "models": results}, given.output_json)
    return 0


def measure(model: str, settings: dict[str, Any], repeats: int, has_files: bool) -> dict[str, Any]:
    """All kinds of start of one model."""
    with model_path(model) as folder, tempfile.TemporaryDirectory(prefix="octavo-") as work:
        kinds = {"dummy": (folder, {"load_format": "dummy"})}
        if has_files:
            kinds["safetensors"] = (str(write_weights(Path(folder), Path(work))), {})
        return {
            name: starts(path, {**settings, **own}, repeats, Path(work, f"kernels-{name}"))
            for name, (path, own) in kinds.items()
        }


def starts(path: str, settings: dict[str, Any], repeats: int, kernels: Path) -> dict[str, Any]:
    """A start with no compiled kernels at hand, and some with them."""
    cold, *warm = [start_process(path, settings, kernels) for _ in range(1 + repeats)]
    return {"cold": cold, "warm": warm, "warm_ready_seconds": statistics.median(run["ready"] for run in warm)}


def start_process(path: str, settings: dict[str, Any], kernels: Path) -> dict[str, Any]:
    """One start in a new process; ``whole`` is all its time, seen from outside.

    Raises:
        RuntimeError: it failed.
    """
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "--start", path, "--settings", json.dumps(settings)],
        env={**os.environ, "TRITON_CACHE_DIR": str(kernels)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"A start of {path} ended with status {done.returncode}.")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{path} {settings}: {figures}", file=sys.stderr)
    return {**figures, "whole": time.perf_counter() - begin}


def one_start(path: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Start an engine in this process; seconds until it can be asked, of its first answers, and its own log's lines."""
    log = _Lines()
    logging.getLogger("octavo").addHandler(log)
    logging.getLogger("octavo").setLevel(logging.INFO)
    imported = process_age()
    begin = time.perf_counter()
    from octavo import LLM, SamplingParams

    llm = LLM(path, **{"skip_tokenizer_init": True, **settings})
    ready = time.perf_counter() - begin
    answers = []
    for _ in range(5):
        begin = time.perf_counter()
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False)
        llm.generate({"prompt_token_ids": _PROMPT}, params, use_tqdm=False)
        answers.append(time.perf_counter() - begin)
    return {"import": imported, "ready": ready, "first_tokens": answers, "memory": device_memory(), "log": log.lines}


def device_memory() -> dict[str, int]:
    """Bytes of the device: all, free, and what torch has of it."""
    if not torch.cuda.is_available():
        return {}
    free, total = torch.cuda.mem_get_info()
    return {
        "total": total,
        "free": free,
        "reserved": torch.cuda.memory_reserved(),
        "most_allocated": torch.cuda.max_memory_allocated(),
    }


class _Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def write_weights(source: Path, folder: Path) -> Path:
    """The model of a folder with random weights, in safetensors files as large models have them."""
    target = folder / "model"
    target.mkdir()
    (target / "config.json").write_text((source / "config.json").read_text())
    config = load_model_config(resolve(str(source)))
    with torch.device("meta"):
        slots = collect_slots(build_model(config, Build(), 1))
    wanted = {name: torch.Size(places[0].source_shapes[0]) for name, places in slots.items()}
    shards: list[dict[str, torch.Size]] = [{}]
    size = 0
    for name, shape in wanted.items():
        size += shape.numel() * 2
        if size > _SHARD_BYTES:
            shards.append({})
            size = shape.numel() * 2
        shards[-1][name] = shape
    noise = (0.02 * torch.randn(max(shape.numel() for shape in wanted.values()))).to(torch.bfloat16)
    index = {}
    for number, shapes in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file({name: noise[: shape.numel()].view(shape).clone() for name, shape in shapes.items()}, target / file)
        index |= dict.fromkeys(shapes, file)
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return target


if __name__ == "__main__":
    sys.exit(main())
