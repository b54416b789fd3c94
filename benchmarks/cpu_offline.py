"""Octavo and Hugging Face ``generate`` in turns: SmolLM2 in bfloat16, greedy, token ids in and out.

    python benchmarks/cpu_offline.py --rounds 3 --output-json result.json

Each turn is a process of its own; turns alternate, so that whatever else the machine does falls on both. Both read
the weights of the same GGUF file. Decoding is what a call of 128 in and 129 out takes beyond one of 128 in and 1 out,
at batch 1 and 16; prefill is a call of 512 in and 1 out. Medians over repetitions, then turns.
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

from common import describe, save

ENGINES = ("octavo", "huggingface")
MODEL = "bundled:smollm2"
VOCABULARY = range(100, 49_000)
# Name: batch size, prompt tokens, output tokens.
SCENARIOS = {"decode_1": (1, 128, 129), "decode_16": (16, 128, 129), "prefill_512": (1, 512, 1)}
Generate = Callable[[list[list[int]], int], int]
"""Generates so many tokens for each prompt; returns how many tokens came in all."""


def main() -> int:
    """Run turns, or one turn of one engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each engine")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions within a turn")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output-json", type=Path)
    parser.add_argument("--turn", choices=ENGINES, help="run one turn here and print its figures")
    given = parser.parse_args()
    if given.turn is not None:
        make = {"octavo": load_octavo, "huggingface": load_huggingface}[given.turn]
        print(json.dumps(measure(make(given.threads), given.repeats)))
        return 0
    environment = describe()
    turns: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
    for number in range(given.rounds):
        for engine in ENGINES:
            figures = run_turn(engine, given.threads, given.repeats)
            print(f"round {number + 1}, {engine}: {figures}", file=sys.stderr)
            turns[engine].append(figures)
    medians = {
        engine: {name: statistics.median(turn[name] for turn in turns[engine]) for name in SCENARIOS}
        for engine in ENGINES
    }
    ratios = {name: medians["octavo"][name] / medians["huggingface"][name] for name in SCENARIOS}
    save(
        {**environment, "threads": given.threads, "tokens_per_second": medians, "ratios": ratios, "turns": turns},
        given.output_json,
    )
    return 0


def run_turn(engine: str, threads: int, repeats: int) -> dict[str, float]:
    """One turn in a process of its own: tokens a second by scenario."""
    command = [sys.executable, __file__, "--turn", engine, "--threads", str(threads), "--repeats", str(repeats)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return figures


def measure(generate: Generate, repeats: int) -> dict[str, float]:
    """Tokens a second by scenario: the median of some repetitions, each with fresh prompts, after a warm-up."""
    source = random.Random(0)
    figures = {}
    for name, (batch_size, input_len, output_len) in SCENARIOS.items():

        def seconds(num_tokens: int, shape: tuple[int, int] = (batch_size, input_len)) -> float:
            prompts = [source.choices(VOCABULARY, k=shape[1]) for _ in range(shape[0])]
            start = time.perf_counter()
            came = generate(prompts, num_tokens)
            elapsed = time.perf_counter() - start
            assert came == shape[0] * num_tokens, f"{came} tokens came"
            return elapsed

        seconds(2)
        if output_len == 1:
            rates = [batch_size * input_len / seconds(1) for _ in range(repeats)]
        else:
            decoded = batch_size * (output_len - 1)
            rates = [decoded / (seconds(output_len) - seconds(1)) for _ in range(repeats)]
        figures[name] = statistics.median(rates)
    return figures


def load_octavo(threads: int) -> Generate:
    """Octavo, without the prefix cache."""
    from octavo import LLM, PromptType, SamplingParams

    model = LLM(MODEL, dtype="bfloat16", enable_prefix_caching=False, num_threads=threads, log_level="warning")

    def generate(prompts: list[list[int]], output_len: int) -> int:
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=output_len, detokenize=False)
        inputs: list[PromptType] = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = model.generate(inputs, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return generate


def load_huggingface(threads: int) -> Generate:
    """The same weights in transformers, with its cache."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    from octavo.hub import resolve

    torch.set_num_threads(threads)
    path = resolve(MODEL).path
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    # As from_pretrained does it, without the package accelerate that it insists on.
    weights = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model, torch_dtype=torch.bfloat16)
    missing, unexpected = model.load_state_dict(weights["tensors"], strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, f"weights do not fit: {missing}, {unexpected}"
    model.tie_weights()
    # No token ends a text, so that both engines generate the same number.
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0

    def generate(prompts: list[list[int]], output_len: int) -> int:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            output = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=output_len, do_sample=False, use_cache=True
            )
        return (output.shape[1] - ids.shape[1]) * output.shape[0]

    return generate


if __name__ == "__main__":
    sys.exit(main())
