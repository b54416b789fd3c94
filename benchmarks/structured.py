"""What a grammar costs: tokens a second after the first one, with a JSON schema and without, in turns.

python benchmarks/structured.py --batch 32 --output-json result.json
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from common import describe, save

from octavo import LLM, RequestOutput, SamplingParams, StructuredOutputsParams

SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 100,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 30},
            "kind": {"enum": ["harbour", "island", "lighthouse"]},
            "height": {"type": "integer", "minimum": 0, "maximum": 500},
        },
        "required": ["name", "kind", "height"],
        "additionalProperties": False,
    },
}
PROMPT = "A list of places by the sea, as JSON: "


def main() -> None:
    """Run, compare, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled:smollm2")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backends", nargs="+", default=["xgrammar", "guidance"])
    parser.add_argument("--output-json", type=Path)
    given = parser.parse_args()
    llm = LLM(given.model, max_model_len=2048, max_num_seqs=max(given.batch, 8))
    kinds: dict[str, StructuredOutputsParams | None] = {
        "free": None,
        **{backend: StructuredOutputsParams(json=SCHEMA, backend=backend) for backend in given.backends},
    }
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(given.rounds + 1):
        for kind, form in kinds.items():
            params = [
                SamplingParams(
                    temperature=0.8,
                    seed=index,
                    max_tokens=given.tokens,
                    ignore_eos=True,
                    structured_outputs=form,
                )
                for index in range(given.batch)
            ]
            rate = decode_rate(llm.generate([PROMPT] * given.batch, params, use_tqdm=False))
            if turn:  # the first turn compiles
                rates[kind].append(rate)
                print(f"{kind}: {rate:,.0f} tokens/s", file=sys.stderr)
    medians = {kind: statistics.median(found) for kind, found in rates.items()}
    costs = {kind: 1 - median / medians["free"] for kind, median in medians.items() if kind != "free"}
    figures = {**describe(), "model": given.model, "batch": given.batch, "tokens": given.tokens}
    save({**figures, "tokens_per_second": rates, "medians": medians, "costs": costs}, given.output_json)


def decode_rate(outputs: list[RequestOutput]) -> float:
    """Tokens a second, from when all have their first to the end of the last."""
    times = [output.metrics for output in outputs if output.metrics is not None]
    assert len(times) == len(outputs)
    begin, end = max(one.first_token_ts for one in times), max(one.last_token_ts for one in times)
    return sum(len(output.outputs[0].token_ids) - 1 for output in outputs) / (end - begin)


if __name__ == "__main__":
    main()
