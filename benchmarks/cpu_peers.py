"""Octavo, llama.cpp and Hugging Face transformers on the same processor cores, in turns, in ratios.

    python benchmarks/cpu_peers.py --llama-python VENV/bin/python --output-json result.json --plot result.svg

Each turn is a process of its own, so that memory and start-up are the engine's alone; turns alternate, so that whatever
else the machine does falls on all. Figures are medians over rounds. llama.cpp runs with flash attention and without,
Hugging Face in bfloat16 and in float32, each in turns of its own; a table has the better of the two in each line.

- Decode: 16 tokens in, 128 out after the first, greedy, in the time beyond that of the first; at batch 1 and 16.
- Prefill: 512 tokens in, 1 out. Prompts are random tokens; no engine caches prefixes.
- Memory: resident after the work, without the key/value cache, above that of a process that has only imported torch
  (for llama.cpp: llama_cpp).
- Start-up: from the command to the first token of a prompt of 16. Bytecode is kept, as where packages are installed.

SmolLM2 is in Q4_1 already; bf16, Q4_0 and Q8_0 are made from its dequantised weights, and kept in ``--work``. A peer
that is not installed and a model that is not on this machine are named and left out. llama-cpp-python wants to be built
on the machine itself, since published wheels do not use all that a processor has:

    python -m venv VENV
    CMAKE_ARGS=-DGGML_NATIVE=ON VENV/bin/pip install --no-binary llama-cpp-python llama-cpp-python
"""

import argparse
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common import describe
from cpu_peers_engines import LOADERS
from cpu_peers_models import NAMES, ModelFiles, prepare
from cpu_peers_report import medians, plot, ratios, tables
from cpu_peers_turns import Contestant, Machine, TurnError, bare_bytes, contestants, default_pythons, run_turn

from octavo.errors import ModelNotFoundError


def main() -> int:
    """Run all turns and show them, or show those of an earlier run."""
    parser = arguments()
    given = parser.parse_args()
    if given.plot is not None and find_spec("matplotlib") is None:
        parser.error("--plot needs Matplotlib: pip install 'octavo[bench]'.")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    result = json.loads(given.recorded.read_text(encoding="utf-8")) if given.recorded else measure(given)
    for model, found in result["models"].items():
        print(tables(model, found), end="\n\n")
    if given.output_json is not None:
        given.output_json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if given.plot is not None:
        plot(result["models"], given.plot)
    return 0


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=NAMES, help=f"{', '.join(NAMES)} or GGUF files")
    parser.add_argument("--engines", nargs="+", choices=LOADERS, default=list(LOADERS))
    parser.add_argument("--weights", nargs="+", help="only these, such as bf16 q4_0 q4_1 q8_0 int8 int4")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each engine, weights and setting")
    parser.add_argument("--patience", type=float, default=300, help="seconds after which a turn is given up")
    parser.add_argument("--threads", type=int, default=_num_cores())
    parser.add_argument("--llama-python", default=sys.executable, help="interpreter that has llama-cpp-python")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache" / "octavo-bench-models")
    parser.add_argument("--output-json", type=Path)
    parser.add_argument("--plot", type=Path, help="a picture, in the format that its name ends with")
    parser.add_argument("--recorded", type=Path, help="measure nothing; show the figures of this JSON file")
    return parser


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Figures of all models, with their environment."""
    environment = describe()
    machine = Machine(default_pythons(given.llama_python), given.threads, given.patience)
    missing_engines: dict[str, str] = {}
    bare: dict[str, float] = {}
    for engine in given.engines:
        try:
            bare[engine] = bare_bytes(machine, engine)
        except (TurnError, OSError) as error:
            missing_engines[engine] = str(error)
    models = {}
    missing_models: dict[str, str] = {}
    for name in given.models:
        try:
            model = prepare(name, given.work)
        except ModelNotFoundError as error:
            print(f"Left out: {name}. {error}", file=sys.stderr)
            missing_models[name] = str(error)
            continue
        entered = contestants(list(bare), given.weights, model)
        models[model.name] = measure_model(model, entered, given.rounds, machine, bare)
        models[model.name]["left_out"] |= missing_engines
    return {
        **environment,
        "load_average_at_end": os.getloadavg(),
        "threads": given.threads,
        "rounds": given.rounds,
        "bare_mb": {engine: size / 1e6 for engine, size in bare.items()},
        "models": models,
        "missing_models": missing_models,
    }


def measure_model(
    model: ModelFiles, entered: list[Contestant], rounds: int, machine: Machine, bare: dict[str, float]
) -> dict[str, Any]:
    """All turns of one model, and what they amount to; what fails once is not tried again."""
    turns: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for number in range(1, rounds + 1):
        for contestant, setting in [(one, setting) for one in entered for setting in one.settings]:
            name = contestant.name_with(setting)
            if name in left_out:
                continue
            try:
                turn = run_turn(contestant, setting, model, machine, bare[contestant.engine])
            except TurnError as error:
                left_out[name] = str(error)
                print(f"Left out: {name}. {error}", file=sys.stderr)
                continue
            turns.append({"round": number, "contestant": contestant.name, "setting": setting, **turn})
            print(json.dumps(turns[-1]), file=sys.stderr)
    found = medians(turns)
    return {"medians": found, "ratios": ratios(found), "left_out": left_out, "turns": turns}


def _num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    sys.exit(main())
