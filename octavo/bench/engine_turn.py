"""Measures one engine in a separate process: ``python engine_turn.py < job.json``.

It uses vLLM's offline interface and only the standard library, so that any engine's Python can run it. A job:

    {"module": "vllm", "settings": {"model": …}, "cases": ["latency", …], "scale": 1.0, "token_ids": [1000, 100000],
     "started": seconds on the epoch clock, "result": file to write}

Prompts are drawn in the same order whichever cases run, so that a job is the same for every engine.
"""

import importlib
import json
import logging
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

CASES = ("latency", "decode", "prefill", "mixed", "chat", "first_token")
DECODE_BATCHES = (8, 32, 128, 256)
PREFILL_LEN, SMALL_PREFILL_LEN = 4096, 512
NUM_FIRST_TOKENS = 50


@dataclass
class GenerateCall:
    """One call of ``generate``.

    Attributes:
        case: the case that it belongs to; ``warm-up`` always runs.
        name: the measurement; calls with the same name are repetitions.
    """

    case: str
    name: str
    prompts: list[list[int]]
    output_lens: list[int]


def draw_calls(scale: float, token_ids: Sequence[int], seed: int = 0) -> Iterator[GenerateCall]:
    """All calls of all cases, in order, generated lazily.

    Args:
        scale: shrinks batch sizes and counts, for small machines; 1 is full size.
        token_ids: range of token ids to draw from, as (first, end).
    """
    source = random.Random(seed)

    def call(case: str, name: str, input_lens: Sequence[int], output_lens: list[int]) -> GenerateCall:
        prompts = [[source.randrange(*token_ids) for _ in range(length)] for length in input_lens]
        return GenerateCall(case, name, prompts, output_lens)

    yield call("warm-up", "warm-up", [64] * 8, [16] * 8)
    for output_len, repeats in ((1, 5), (257, 3)):
        for _ in range(repeats):
            yield call("latency", f"latency_{output_len}", [128], [output_len])
    for batch_size in dict.fromkeys(max(2, int(batch_size * scale)) for batch_size in DECODE_BATCHES):
        for output_len in (1, 129):
            yield call("decode", f"decode_{batch_size}_{output_len}", [256] * batch_size, [output_len] * batch_size)
    count, length = max(2, int(64 * scale)), PREFILL_LEN if scale == 1 else SMALL_PREFILL_LEN
    for _ in range(2):
        yield call("prefill", f"prefill_{length}", [length] * count, [1] * count)
    count = max(4, int(1000 * scale))
    yield call("mixed", "mixed", [1024] * count, [128] * count)
    input_lens = [min(2048, max(8, int(source.lognormvariate(5.0, 1.1)))) for _ in range(count)]
    output_lens = [min(1024, max(8, int(source.lognormvariate(5.2, 0.8)))) for _ in range(count)]
    yield call("chat", "chat", input_lens, output_lens)
    for _ in range(NUM_FIRST_TOKENS):
        yield call("first_token", "first_token", [128], [1])


class StartNotes(logging.Handler):
    """Keeps the lines that an engine logs about its startup phases; they begin with "Start: "."""

    def __init__(self, module: str) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []
        logger = logging.getLogger(module)
        logger.setLevel(logging.INFO)
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        kind, separator, note = record.getMessage().partition("Start: ")
        if separator and not kind:
            self.lines.append(note)


def main() -> None:
    """Run the job on standard input."""
    job = json.load(sys.stdin)
    phases = {"python": time.time() - job["started"]}
    start = time.perf_counter()
    module = importlib.import_module(job["module"])
    make_model, make_params = module.LLM, module.SamplingParams
    phases["import"] = time.perf_counter() - start
    notes = StartNotes(job["module"])
    start = time.perf_counter()
    model = make_model(**job["settings"])
    phases["engine"] = time.perf_counter() - start
    calls: list[dict[str, Any]] = []
    for call in draw_calls(job["scale"], job["token_ids"]):
        if call.case not in ("warm-up", *job["cases"]):
            continue
        seconds = run_call(model, make_params, call)
        if call.case == "warm-up":
            phases["first call"] = seconds
        else:
            input_lens = [len(prompt) for prompt in call.prompts]
            calls.append(
                {"name": call.name, "seconds": seconds, "input_lens": input_lens, "output_lens": call.output_lens}
            )
        print(f"{job['module']}: {call.name} took {seconds:.4f} s", file=sys.stderr, flush=True)
    with open(job["result"], "w", encoding="utf-8") as file:
        report = {"version": str(module.__version__), "phases": phases, "start_notes": notes.lines, "calls": calls}
        json.dump(report, file)


def run_call(model: Any, make_params: Any, call: GenerateCall) -> float:
    """Duration of a call in seconds.

    Raises:
        RuntimeError: an answer does not have the requested length.
    """
    inputs = [{"prompt_token_ids": prompt} for prompt in call.prompts]
    params = [
        make_params(temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False)
        for length in call.output_lens
    ]
    start = time.perf_counter()
    outputs = model.generate(inputs, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    if [len(output.outputs[0].token_ids) for output in outputs] != call.output_lens:
        raise RuntimeError(f"An answer of {call.name} has another length than was asked for.")
    return seconds


if __name__ == "__main__":
    main()
