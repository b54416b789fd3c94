"""What penalties and log-probabilities cost: tokens per second of decoding with them, as shares of those without.

    python benchmarks/sampling_costs.py --models qwen3-0.6b llama3.2-1b qwen3-8b

Dummy weights; every kind of request decodes in turns. Speed is that of the tokens after the first.
"""

import argparse
import random
import statistics
import time
from pathlib import Path
from typing import Any

from common import describe, save

from octavo import LLM, SamplingParams
from octavo.bench.shapes import model_path

KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "penalties": (128, {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.2}),
    "5 log-probabilities": (64, {"logprobs": 5}),
}
"""By name: batch size, and the parameters."""
PROMPT_LEN = 256


def main() -> int:
    """Measure all models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["qwen3-0.6b"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--num-tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, help="in place of each kind's own")
    parser.add_argument("--output-json", type=Path)
    given = parser.parse_args()
    figures = {model: measure(model, given) for model in given.models}
    save({**describe(), "figures": figures}, given.output_json)
    return 0


def measure(model: str, given: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second by kind, and the shares."""
    with model_path(model) as path:
        llm = LLM(path, load_format="dummy", skip_tokenizer_init=True, max_model_len=4096, seed=0)
    figures: dict[str, Any] = {}
    for name, (own_batch, params) in KINDS.items():
        batch = given.batch or own_batch
        speeds: dict[str, list[float]] = {"without": [], "with": []}
        for own in ({}, params):
            _speed(llm, batch, 16, own)
        for _ in range(given.turns):
            for kind, own in (("without", {}), ("with", params)):
                speeds[kind].append(_speed(llm, batch, given.num_tokens, own))
        medians = {kind: round(statistics.median(values)) for kind, values in speeds.items()}
        share = statistics.median(b / a for a, b in zip(*speeds.values(), strict=True))
        figures[name] = {"batch": batch, **medians, "share": round(share, 3)}
        print(model, name, figures[name], flush=True)
    llm.shutdown()
    return figures


def _speed(llm: LLM, batch: int, num_tokens: int, params: dict[str, Any]) -> float:
    draw = random.Random(0).randrange
    prompts = [{"prompt_token_ids": [draw(1000, 100_000) for _ in range(PROMPT_LEN)]} for _ in range(batch)]
    seconds = []
    for length in (1, 1 + num_tokens):
        sampling = SamplingParams(temperature=0.8, max_tokens=length, ignore_eos=True, detokenize=False, **params)
        start = time.perf_counter()
        llm.generate(prompts, sampling, use_tqdm=False)
        seconds.append(time.perf_counter() - start)
    return batch * num_tokens / (seconds[1] - seconds[0])


if __name__ == "__main__":
    raise SystemExit(main())
