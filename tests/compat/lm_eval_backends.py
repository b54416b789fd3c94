"""One backend of lm-eval on one folder, as a process of its own: prints its answers as JSON.

Arguments: ``vllm`` or ``hf``, and the model's folder. ``vllm`` runs under ``python -m octavo.compat``.
"""

import json
import sys
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

CONTINUATIONS = [
    ("The capital of France is", " Paris"),
    ("The capital of France is", " Berlin"),
    ("Water boils at a temperature of", " 100 degrees Celsius, and freezes at 0."),
    ("", "Once upon a time there was a lighthouse."),
    ("Roses are red,\nviolets are blue,\n", "sugar is sweet,\nand so are you."),
    ("def fib(n):\n    if n < 2:\n        return n\n    return fib(n - 1)", " + fib(n - 2)"),
]
TEXTS = [
    "The old lighthouse keeper climbed the stairs and lit the lamp, as he had done every night for forty years.",
    "In 1905, Einstein published four papers; one of them explained the photoelectric effect. " * 12,
]
QUESTIONS = [("Question: What is two plus two?\nAnswer:", "\n"), ("The first three letters of the alphabet are", ".")]


def main(backend: str, folder: str) -> None:
    # One window each: the two backends cut longer texts at different places.
    sizes: dict[str, Any] = {"max_length": 1024, "dtype": "float32"}
    if backend == "hf":
        model = get_model("hf")(pretrained=folder, device="cpu", batch_size=1, **sizes)
    else:
        model = get_model("vllm")(pretrained=folder, max_gen_toks=16, **sizes)
    asked = [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(CONTINUATIONS)]
    rolling = [Instance("loglikelihood_rolling", {}, (text,), index) for index, text in enumerate(TEXTS)]
    until = [
        Instance("generate_until", {}, (text, {"until": [stop], "do_sample": False, "max_gen_toks": 16}), index)
        for index, (text, stop) in enumerate(QUESTIONS)
    ]
    print(
        json.dumps(
            {
                "loglikelihood": model.loglikelihood(asked, disable_tqdm=True),
                "rolling": model.loglikelihood_rolling(rolling, disable_tqdm=True),
                "generated": model.generate_until(until, disable_tqdm=True),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
