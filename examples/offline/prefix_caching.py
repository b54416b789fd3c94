"""Reuse the key/value cache of a prefix that prompts have in common."""

import time

from octavo import LLM, SamplingParams

MANUAL = "The lamp is switched on with the left button and off with the right button. " * 20


def main() -> None:
    """Ask two questions about one long text; the second one finds the text in the prefix cache."""
    llm = LLM("bundled:smollm2")
    params = SamplingParams(temperature=0.0, max_tokens=8)
    for question in ("How is it switched on?", "How is it switched off?"):
        start = time.perf_counter()
        (output,) = llm.generate([f"{MANUAL}\nQuestion: {question}\nAnswer:"], params, use_tqdm=False)
        took = time.perf_counter() - start
        print(f"{output.num_cached_tokens} of {len(output.prompt_token_ids)} prompt tokens cached, {took:.2f} s")


if __name__ == "__main__":
    main()
