"""Octavo and sentence-transformers in turns: texts in, vectors of a sentence encoder out, on a CPU.

    python benchmarks/encoders.py FOLDER --rounds 3 --output-json result.json

FOLDER is a model for sentence-transformers, such as the one that ``python tests/parity/fetch_minilm.py`` prints. Each
turn is a process of its own; turns alternate, so that whatever else the machine does falls on both. Both get the same
texts and cut them into tokens themselves. Figures are medians of repetitions, then of turns.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import describe, save

ENGINES = ("octavo", "sentence-transformers")
# Name: how many texts, fewest and most words of one. Most words of the list are one token.
SCENARIOS = {"single": (1, 16, 16), "short": (128, 4, 32), "mixed": (64, 4, 240), "long": (32, 240, 240)}
WORDS = (
    "the of and to in is was for on with as by at from that this which river house winter captain water morning light "
    "stone letter clock bread market garden history number music paper window village engine language science mountain"
)
Embed = Callable[[list[str]], Any]


def main() -> int:
    """Run turns, or one turn of one engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each engine")
    parser.add_argument("--repeats", type=int, default=5, help="repetitions within a turn")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--output-json", type=Path)
    parser.add_argument("--turn", choices=ENGINES, help="run one turn here and print its figures")
    given = parser.parse_args()
    if given.turn is not None:
        load = {"octavo": load_octavo, "sentence-transformers": load_sentence_transformers}[given.turn]
        print(json.dumps(measure(load(given.folder, given.threads), given.scenarios, given.repeats)))
        return 0
    environment = describe()
    turns: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
    for number in range(given.rounds):
        for engine in ENGINES:
            figures = run_turn(engine, given)
            print(f"round {number + 1}, {engine}: {figures}", file=sys.stderr)
            turns[engine].append(figures)
    medians = {
        engine: {name: statistics.median(turn[name] for turn in turns[engine]) for name in given.scenarios}
        for engine in ENGINES
    }
    ratios = {name: medians[ENGINES[0]][name] / medians[ENGINES[1]][name] for name in given.scenarios}
    figures = {"threads": given.threads, "texts_per_second": medians, "ratios": ratios, "turns": turns}
    save({**environment, **figures}, given.output_json)
    return 0


def run_turn(engine: str, given: argparse.Namespace) -> dict[str, float]:
    """One turn in a process of its own: texts a second by scenario."""
    command = [sys.executable, __file__, str(given.folder), "--turn", engine, "--threads", str(given.threads)]
    command += ["--repeats", str(given.repeats), "--scenarios", *given.scenarios]
    environment = {**os.environ, "OMP_NUM_THREADS": str(given.threads)}
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return figures


def measure(embed: Embed, scenarios: list[str], repeats: int) -> dict[str, float]:
    """Texts a second by scenario, each repetition with fresh texts, after a warm-up."""
    source, words = random.Random(0), WORDS.split()
    figures = {}
    for name in scenarios:
        num_texts, fewest, most = SCENARIOS[name]
        seconds = []
        for _ in range(repeats + 1):
            texts = [" ".join(source.choices(words, k=source.randint(fewest, most))) for _ in range(num_texts)]
            start = time.perf_counter()
            embed(texts)
            seconds.append(time.perf_counter() - start)
        figures[name] = num_texts / statistics.median(seconds[1:])
    return figures


def load_octavo(folder: Path, threads: int) -> Embed:
    """Octavo's ``LLM.embed`` with default settings."""
    from octavo import LLM

    llm = LLM(str(folder), device="cpu", num_threads=threads, use_tqdm_on_load=False)
    return lambda texts: llm.embed(texts, use_tqdm=False)


def load_sentence_transformers(folder: Path, threads: int) -> Embed:
    """``SentenceTransformer.encode`` with its default batches of 32 texts, sorted by length."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    model = SentenceTransformer(str(folder), device="cpu")
    return lambda texts: model.encode(texts, show_progress_bar=False)


if __name__ == "__main__":
    sys.exit(main())
